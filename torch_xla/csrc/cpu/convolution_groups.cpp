#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "cpu/convolution_columns.h"
#include "cpu/convolution_ways.h"
#include "cpu/ffi_parts.h"
#include "cpu/float_vectors.h"
#include "cpu/instruction_sets.h"
#include "cpu/small_product.h"

namespace torch_xla::cpu {
namespace {

using namespace runtime::pjrt;

/// For each tap of the kernel, the inputs that it multiplies.
using Taps = std::vector<float*>;

/// Outputs or their gradients, whose rows are as far apart as the rows in the plane.
class Outputs {
 public:
  Outputs(int64_t rows, int64_t columns, int64_t step)
      : rows_(rows),
        columns_(columns),
        step_(step),
        data_((rows - 1) * step + columns + Plane::kBehind) {}

  float* data() { return data_.data(); }
  /// Includes unused floats between the rows; vectors may reach further behind the last output.
  int64_t count() const { return (rows_ - 1) * step_ + columns_; }

  void Give(float* y) const {
    for (int64_t row = 0; row < rows_; ++row) {
      CopyRun(data_.data() + row * step_, columns_, y + row * columns_);
    }
  }
  /// The floats between the rows stay zero.
  void Take(const float* y) {
    for (int64_t row = 0; row < rows_; ++row) {
      CopyRun(y + row * columns_, columns_, data_.data() + row * step_);
    }
  }

 private:
  const int64_t rows_, columns_, step_;
  std::vector<float> data_;
};

/// y = bias + the weighted sum of the taps' inputs.
template <int kLanes>
C10_ALWAYS_INLINE void Sum(const Taps& taps, const float* weights, float bias, int64_t count,
                           float* y) {
  using V = Lanes<kLanes>;
  // Enough independent sums to hide the latency of additions.
  constexpr int kVectors = 4;
  static_assert(kVectors * kLanes <= Plane::kBehind);
  const int64_t num_taps = taps.size();
  int64_t i = 0;
  for (; i + kLanes < count; i += kVectors * kLanes) {
    V sums[kVectors];
    for (int v = 0; v < kVectors; ++v) sums[v] = V{} + bias;
    for (int64_t t = 0; t < num_taps; ++t) {
      for (int v = 0; v < kVectors; ++v) {
        sums[v] += Load<V>(taps[t] + i + v * kLanes) * weights[t];
      }
    }
    for (int v = 0; v < kVectors; ++v) Store(sums[v], y + i + v * kLanes);
  }
  for (; i < count; i += kLanes) {
    V sum = V{} + bias;
    for (int64_t t = 0; t < num_taps; ++t) sum += Load<V>(taps[t] + i) * weights[t];
    Store(sum, y + i);
  }
}

/// Adds the products of dy and the inputs of some taps to sums [kTaps, kLanes].
template <int kLanes, int kTaps>
C10_ALWAYS_INLINE void MultiplySome(float* const* taps, const float* dy, int64_t count,
                                    float* sums) {
  using V = Lanes<kLanes>;
  V of_taps[kTaps];
  for (int t = 0; t < kTaps; ++t) of_taps[t] = Load<V>(sums + t * kLanes);
  for (int64_t i = 0; i < count; i += kLanes) {
    const V own = Load<V>(dy + i);
    for (int t = 0; t < kTaps; ++t) of_taps[t] += own * Load<V>(taps[t] + i);
  }
  for (int t = 0; t < kTaps; ++t) Store(of_taps[t], sums + t * kLanes);
}

/// Takes the largest number of taps at once that divides the number of all taps.
template <int kLanes, int kTaps, int... kFewer>
C10_ALWAYS_INLINE void Multiply(const Taps& taps, const float* dy, int64_t count, float* sums) {
  const int64_t num_taps = taps.size();
  if constexpr (sizeof...(kFewer) > 0) {
    if (num_taps % kTaps != 0) return Multiply<kLanes, kFewer...>(taps, dy, count, sums);
  }
  for (int64_t t = 0; t < num_taps; t += kTaps) {
    MultiplySome<kLanes, kTaps>(&taps[t], dy, count, sums + t * kLanes);
  }
}

/// Adds the outputs' gradients, weighted, to the taps' inputs, which are the input's gradients.
template <int kLanes>
C10_ALWAYS_INLINE void Spread(const Taps& taps, const float* weights, const float* dy,
                              int64_t count) {
  using V = Lanes<kLanes>;
  const int64_t num_taps = taps.size();
  for (int64_t t = 0; t < num_taps; ++t) {
    for (int64_t i = 0; i < count; i += kLanes) {
      Store(Load<V>(taps[t] + i) + Load<V>(dy + i) * weights[t], taps[t] + i);
    }
  }
}

struct Functions {
  int64_t lanes;
  void (*sum)(const Taps&, const float*, float, int64_t, float*);
  void (*multiply)(const Taps&, const float*, int64_t, float*);
  void (*spread)(const Taps&, const float*, const float*, int64_t);
};

const Functions& Chosen() {
  static const Functions functions{
      ProductLanes(), ForThisProcessor<&Sum<4>, &Sum<8>, &Sum<16>>(),
      ForThisProcessor<&Multiply<4, 9, 7, 5, 4, 3, 1>, &Multiply<8, 9, 7, 5, 4, 3, 1>,
                       &Multiply<16, 9, 7, 5, 4, 3, 1>>(),
      ForThisProcessor<&Spread<4>, &Spread<8>, &Spread<16>>()};
  return functions;
}

/// The axis with which the input's gradient is a convolution of the outputs' gradients.
Axis Reversed(const Axis& axis) {
  return {.input = axis.output,
          .output = axis.input,
          .kernel = axis.kernel,
          .stride = 1,
          .padding = (axis.kernel - 1) * axis.dilation - axis.padding,
          .dilation = axis.dilation};
}

/// A thread's data for a group of an image: all input channels, and one output channel.
struct Group {
  Group(const Axis& rows, const Axis& row, int64_t channels)
      : size(rows.input * row.input),
        made(rows.output * row.output),
        outputs(rows.output, row.output, row.seen_together()) {
    for (int64_t c = 0; c < channels; ++c) {
      const Plane& plane = planes.emplace_back(rows, row);
      for (int64_t i = 0; i < rows.kernel; ++i) {
        for (int64_t j = 0; j < row.kernel; ++j) taps.push_back(plane.Seen(i, j));
      }
    }
  }

  void Take(const float* from) {
    for (Plane& plane : planes) {
      plane.Take(from);
      from += size;
    }
  }

  const int64_t size, made;  // of a channel
  std::vector<Plane> planes;
  Outputs outputs;
  Taps taps;
};

class Convolution {
 public:
  Convolution(const ConvolutionProduct& call, int64_t groups, const float* bias)
      : columns_(call.x.sizes(), call.w.sizes(), call.y.sizes(), call.stride, call.padding,
                 call.dilation),
        images_(call.x.size(0)),
        groups_(groups),
        inputs_(call.x.size(1) / groups),
        outputs_(call.y.size(1) / groups),
        weights_(inputs_ * columns_.taps()),
        x_(call.x.mutable_data_ptr<float>()),
        w_(call.w.mutable_data_ptr<float>()),
        y_(call.y.mutable_data_ptr<float>()),
        bias_(bias),
        functions_(Chosen()) {}

  void Forward(const XLA_FFI_CallFrame& frame) const {
    ForEach(frame, images_, [&](int64_t begin, int64_t end) {
      Group group(columns_.rows, columns_.row, inputs_);
      for (int64_t i = begin; i < end; ++i) {
        group.Take(x_ + i * inputs_ * group.size);
        for (int64_t o = 0; o < outputs_; ++o) {
          const int64_t output = i % groups_ * outputs_ + o;
          Sum(group, w_ + output * weights_, bias_ ? bias_[output] : 0,
              y_ + (i * outputs_ + o) * group.made);
        }
      }
    });
  }

  void InputGradient(const XLA_FFI_CallFrame& frame) const {
    const Axis rows = Reversed(columns_.rows), row = Reversed(columns_.row);
    const bool is_dense = columns_.rows.stride == 1 && columns_.row.stride == 1;
    if (is_dense && rows.padding >= 0 && row.padding >= 0) {
      SumReversed(frame, rows, row);
      return;
    }
    ForEach(frame, images_, [&](int64_t begin, int64_t end) {
      Group group(columns_.rows, columns_.row, inputs_);
      for (int64_t i = begin; i < end; ++i) {
        for (Plane& plane : group.planes) plane.Clear();
        for (int64_t o = 0; o < outputs_; ++o) {
          group.outputs.Take(y_ + (i * outputs_ + o) * group.made);
          functions_.spread(group.taps, w_ + (i % groups_ * outputs_ + o) * weights_,
                            group.outputs.data(), group.outputs.count());
        }
        float* to = x_ + i * inputs_ * group.size;
        for (const Plane& plane : group.planes) {
          plane.Give(to);
          to += group.size;
        }
      }
    });
  }

  void WeightGradient(const XLA_FFI_CallFrame& frame) const {
    const int64_t lanes = functions_.lanes, count = outputs_ * weights_;
    ForEach(frame, 1, [&](int64_t begin, int64_t end) {
      Group group(columns_.rows, columns_.row, inputs_);
      std::vector<float> sums(count * lanes);
      for (int64_t i = begin; i < end; ++i) {
        std::fill(sums.begin(), sums.end(), 0.0F);
        for (int64_t n = 0; n < images_; ++n) {
          const int64_t at = n * groups_ + i;
          group.Take(x_ + at * inputs_ * group.size);
          for (int64_t o = 0; o < outputs_; ++o) {
            group.outputs.Take(y_ + (at * outputs_ + o) * group.made);
            functions_.multiply(group.taps, group.outputs.data(), group.outputs.count(),
                                sums.data() + o * weights_ * lanes);
          }
        }
        for (int64_t k = 0; k < count; ++k) {
          const auto first = sums.begin() + k * lanes;
          w_[i * count + k] = std::accumulate(first, first + lanes, 0.0F);
        }
      }
    });
  }

  /// If not, products with the zeros of the padding or between the rows may be NaN.
  bool HasFiniteWeights() const {
    return std::all_of(w_, w_ + groups_ * outputs_ * weights_,
                       [](float weight) { return std::isfinite(weight); });
  }

 private:
  /// Calls work(begin, end) for parts of all groups of `images` images.
  template <typename Work>
  void ForEach(const XLA_FFI_CallFrame& frame, int64_t images, const Work& work) const {
    const int64_t products = images_ / images * outputs_ * weights_ * columns_.outputs();
    InParts(frame, images * groups_, products * choices::kPlaneProduct, work);
  }

  void Sum(Group& group, const float* weights, float bias, float* to) const {
    functions_.sum(group.taps, weights, bias, group.outputs.count(), group.outputs.data());
    group.outputs.Give(to);
  }

  /// The input's gradient as a convolution of the outputs' gradients.
  void SumReversed(const XLA_FFI_CallFrame& frame, const Axis& rows, const Axis& row) const {
    const int64_t taps = columns_.taps();
    ForEach(frame, images_, [&](int64_t begin, int64_t end) {
      Group group(rows, row, outputs_);
      std::vector<float> weights(outputs_ * taps);
      for (int64_t i = begin; i < end; ++i) {
        group.Take(y_ + i * outputs_ * group.size);
        for (int64_t c = 0; c < inputs_; ++c) {
          for (int64_t o = 0; o < outputs_; ++o) {
            const float* from = w_ + (i % groups_ * outputs_ + o) * weights_ + c * taps;
            std::reverse_copy(from, from + taps, weights.begin() + o * taps);
          }
          Sum(group, weights.data(), 0, x_ + (i * inputs_ + c) * group.made);
        }
      }
    });
  }

  const Columns columns_;
  const int64_t images_, groups_;
  const int64_t inputs_, outputs_;  // channels of a group
  const int64_t weights_;           // of an output
  float *const x_, *const w_, *const y_;
  const float* const bias_;
  const Functions& functions_;
};

}  // namespace

bool RunGroups(const ConvolutionProduct& call, int64_t groups, const XLA_FFI_CallFrame& frame,
               const float* bias) {
  const int64_t pairs = call.w.size(1) * call.w.size(0);
  if (call.w.dim() > 4 || pairs > choices::kPairsOfGroup * groups) return false;
  const Convolution convolution(call, groups, bias);
  switch (call.part) {
    case ConvolutionPart::kForward:
      if (!convolution.HasFiniteWeights()) return false;
      convolution.Forward(frame);
      return true;
    case ConvolutionPart::kInputGradient:
      if (!convolution.HasFiniteWeights()) return false;
      convolution.InputGradient(frame);
      return true;
    case ConvolutionPart::kWeightGradient:
      convolution.WeightGradient(frame);
      return convolution.HasFiniteWeights();
  }
  TORCH_INTERNAL_ASSERT(false);
}

}  // namespace torch_xla::cpu
