// Average and max pooling over the last 2 or 3 dimensions. Batched or not makes no
// difference: whatever comes before them is left alone.
//
// Sums and maxima are taken one dimension after the other: k0 + k1 terms instead of k0 * k1.
// Gradients are dense: what each input element gets from the windows that may cover it. The
// StableHLO op for it, select_and_scatter, is 24 times slower than ATen on XLA:CPU.
#include <algorithm>

#include "XLALowerings.h"
#include "lowering/elementwise.h"

namespace torch_xla::lowering::aten {
namespace {

using stablehlo::Add;
using stablehlo::BroadcastInDim;
using stablehlo::Convert;
using stablehlo::Multiply;
using stablehlo::ReduceOp;
using stablehlo::Reshape;
using stablehlo::Select;

/// Indices within one plane fit: half the memory traffic of int64.
constexpr ElementType kIndex = ElementType::kS32;

// ---- One dimension ----------------------------------------------------------------------

/// The windows along one dimension.
struct Window {
  int64_t dim;  // of the array
  int64_t input, output;
  int64_t kernel, stride, padding, dilation = 1;

  int64_t extent() const { return (kernel - 1) * dilation + 1; }
  /// Windows of which none overlap and none leave a gap.
  bool Tiles() const {
    return padding == 0 && kernel == stride && dilation == 1 && input == output * kernel;
  }
};

/// One number per position along dimension `dim`, broadcast to `dims`.
Value Table(Value like, const Dims& numbers, ElementType element, int64_t dim, const Dims& dims) {
  Value table = ConstantS64(like.builder(), numbers);
  return BroadcastInDim(Convert(table, element), dims, {dim});
}

Dims WithSize(Dims dims, int64_t dim, int64_t size) {
  dims[dim] = size;
  return dims;
}

Value PadAlong(Value x, int64_t dim, Value value, int64_t low, int64_t high) {
  const Dims none(x.rank(), 0);
  return low == 0 && high == 0 ? x
                               : Pad(x, value, WithSize(none, dim, low), WithSize(none, dim, high));
}

/// `x` padded (or cropped) with `value` to what the windows cover.
Value PadWindows(Value x, const Window& w, Value value) {
  const int64_t covered = (w.output - 1) * w.stride + w.extent();
  return PadAlong(x, w.dim, value, w.padding, covered - w.input - w.padding);
}

/// Element `tap` of each window of a padded array.
Value Tap(Value padded, const Window& w, int64_t tap) {
  const int64_t start = tap * w.dilation;
  return Slice(padded, WithSize(Dims(padded.rank(), 0), w.dim, start),
               WithSize(padded.dims(), w.dim, start + (w.output - 1) * w.stride + 1),
               WithSize(Dims(padded.rank(), 1), w.dim, w.stride));
}

/// Each element along `dim` `count` times.
Value RepeatEach(Value x, int64_t dim, int64_t count) {
  if (count == 1) return x;
  Dims split = x.dims(), axes;
  split.insert(split.begin() + dim + 1, count);
  for (int64_t i = 0; i <= x.rank(); ++i) {
    if (i != dim + 1) axes.push_back(i);
  }
  return Reshape(BroadcastInDim(x, split, axes), WithSize(x.dims(), dim, x.dim(dim) * count));
}

Value SumWindows(Value x, const Window& w) {
  if (w.Tiles()) {
    Dims split = WithSize(x.dims(), w.dim, w.output);
    split.insert(split.begin() + w.dim + 1, w.kernel);
    return Reduce(Reshape(x, split), {w.dim + 1}, ReduceOp::kAdd);
  }
  stablehlo::Window window{.dimensions = WithSize(Dims(x.rank(), 1), w.dim, w.kernel),
                           .strides = WithSize(Dims(x.rank(), 1), w.dim, w.stride),
                           .padding = stablehlo::Padding(x.rank(), {0, 0})};
  const int64_t covered = (w.output - 1) * w.stride + w.kernel;
  window.padding[w.dim] = {w.padding, std::max<int64_t>(covered - w.input - w.padding, 0)};
  return ReduceWindow(x, window, ReduceOp::kAdd);
}

/// The transpose of SumWindows: each input element gets the sum of its windows.
Value SpreadWindows(Value y, const Window& w) {
  if (w.Tiles()) return RepeatEach(y, w.dim, w.kernel);
  stablehlo::Window window{.dimensions = WithSize(Dims(y.rank(), 1), w.dim, w.kernel),
                           .base_dilations = WithSize(Dims(y.rank(), 1), w.dim, w.stride),
                           .padding = stablehlo::Padding(y.rank(), {0, 0})};
  const int64_t low = w.kernel - 1 - w.padding;
  const int64_t spread = (w.output - 1) * w.stride + 1;
  window.padding[w.dim] = {low, w.input + w.kernel - 1 - spread - low};
  return ReduceWindow(y, window, ReduceOp::kAdd);
}

// ---- All pooled dimensions --------------------------------------------------------------

/// From the dimensions of input and output and PyTorch's parameters.
std::vector<Window> Windows(const Dims& input, const Dims& output, size_t pooled,
                            c10::IntArrayRef kernel, c10::IntArrayRef stride,
                            c10::IntArrayRef padding, c10::IntArrayRef dilation) {
  const Dims kernels = PerDimension(kernel, pooled), paddings = PerDimension(padding, pooled),
             dilations = PerDimension(dilation, pooled),
             strides = stride.empty() ? kernels : PerDimension(stride, pooled);
  std::vector<Window> windows;
  for (size_t i = 0; i < pooled; ++i) {
    const size_t dim = input.size() - pooled + i;
    windows.push_back({static_cast<int64_t>(dim), input[dim], output[dim], kernels[i], strides[i],
                       paddings[i], dilations[i]});
  }
  return windows;
}

// ---- Max pooling ------------------------------------------------------------------------

/// Values and their flat indices in the pooled dimensions.
std::vector<Value> MaxPool(LoweringContext& cx, Value x, const std::vector<Window>& windows) {
  Value lowest = stablehlo::LowestOrNegInf(x.builder(), x.element());
  Value zero = stablehlo::Scalar(x, 0, kIndex);
  Value best = x, index = stablehlo::BroadcastTo(zero, x.dims());
  std::vector<std::pair<int64_t, Dims>> firsts;  // first element of each window, per dimension
  int64_t pitch = 1;                             // from one element to the next
  // Innermost first: of equal values the first one in row-major order is kept.
  for (auto w = windows.rbegin(); w != windows.rend(); pitch *= w->input, ++w) {
    const Dims dims = WithSize(best.dims(), w->dim, w->output);
    auto places = [&](int64_t tap) {  // of an element of each window; negative in the padding
      Dims result(w->output);
      for (int64_t o = 0; o < w->output; ++o) {
        result[o] = (o * w->stride - w->padding + tap * w->dilation) * pitch;
      }
      return result;
    };
    firsts.push_back({w->dim, places(0)});
    for (int64_t& place : firsts.back().second) {
      while (place < 0) place += w->dilation * pitch;
    }
    Value values = PadWindows(best, *w, lowest), indices = PadWindows(index, *w, zero);
    // What a window of nothing but -inf reports: -inf at its first element.
    best = stablehlo::BroadcastTo(lowest, dims);
    index = stablehlo::BroadcastTo(zero, dims);
    for (const auto& [dim, first] : firsts) index = Add(index, Table(x, first, kIndex, dim, dims));
    for (int64_t tap = 0; tap < w->kernel; ++tap) {
      Value value = Tap(values, *w, tap);
      Value place = Add(Tap(indices, *w, tap), Table(x, places(tap), kIndex, w->dim, dims));
      // NaN wins, and the last one of several.
      Value better =
          Or(Compare(value, best, Direction::kGt), Compare(value, value, Direction::kNe));
      best = Select(better, value, best);
      index = Select(better, place, index);
    }
  }
  return {best, Convert(index, cx.output_element(1))};
}

/// Adds each gradient where its index says, by a scatter into the flattened planes.
Value ScatterMaxPoolBackward(Value grad, Value indices, const Dims& dims, size_t pooled) {
  int64_t plane = 1, planes = 1;
  for (size_t i = 0; i < dims.size(); ++i) (i + pooled < dims.size() ? planes : plane) *= dims[i];
  const Dims flat = {planes, grad.type().num_elements() / planes};
  Value start = stablehlo::Iota(grad.builder(), {ElementType::kS64, flat}, 0);
  Value places = Add(Reshape(Convert(indices, ElementType::kS64), flat),
                     Multiply(start, stablehlo::FullLike(start, plane)));
  Value zeros = Constant(grad.builder(), 0, {grad.element(), {planes * plane}});
  const Dims all = {flat[0] * flat[1]};
  return Reshape(
      Scatter(
          zeros, Reshape(places, all), Reshape(grad, all),
          {.inserted_window_dims = {0}, .scatter_dims_to_operand_dims = {0}, .index_vector_dim = 1},
          ReduceOp::kAdd),
      dims);
}

Value MaxPoolBackward(LoweringContext& cx, Value grad_output, Value indices,
                      const std::vector<Window>& windows) {
  const Dims dims = cx.output_dims();
  Value grad = Convert(grad_output, ComputeType(grad_output.element()));
  if (grad.type().num_elements() == 0) return Constant(cx.builder(), 0, cx.output_type());
  // Input element h lies in the window that starts last at or before it, number (h + padding)
  // / stride, and in at most (extent - 1) / stride windows before that one.
  Dims counts, plane;
  int64_t terms = 1;
  for (const Window& w : windows) {
    counts.push_back((w.extent() - 1) / w.stride + 1);
    terms *= counts.back();
    plane.push_back(w.input);
  }
  constexpr int64_t kMaxTerms = 9;
  if (terms > kMaxTerms) {
    return ToOutput(cx, ScatterMaxPoolBackward(grad, indices, dims, windows.size()));
  }
  int64_t size = 1;
  for (int64_t n : plane) size *= n;
  Value self = stablehlo::BroadcastTo(
      Reshape(stablehlo::Iota(cx.builder(), {kIndex, {size}}, 0), plane), dims);
  Value places = Convert(indices, kIndex);
  for (const Window& w : windows) {
    grad = RepeatEach(grad, w.dim, w.stride);
    places = RepeatEach(places, w.dim, w.stride);
  }
  Value none = stablehlo::Scalar(grad, -1, kIndex), zero = stablehlo::ScalarLike(grad, 0);
  Value sum = stablehlo::BroadcastTo(zero, dims);
  for (int64_t term = 0; term < terms; ++term) {
    Value g = grad, place = places;
    int64_t rest = term;
    for (size_t i = 0; i < windows.size(); rest /= counts[i++]) {
      const Window& w = windows[i];
      const int64_t low = rest % counts[i] * w.stride - w.padding;
      const int64_t high = w.input - w.output * w.stride - low;
      g = PadAlong(g, w.dim, zero, low, high);
      place = PadAlong(place, w.dim, none, low, high);
    }
    Value hit = Compare(place, self, Direction::kEq);
    sum = Add(sum, Select(hit, g, stablehlo::ZerosLike(g)));
  }
  return ToOutput(cx, sum);
}

// ---- Average pooling --------------------------------------------------------------------

/// What each window's sum is divided by, as an array of `dims`.
Value Divisor(Value like, const std::vector<Window>& windows, bool count_include_pad,
              std::optional<int64_t> divisor_override, const Dims& dims) {
  if (divisor_override) {
    return Constant(like.builder(), *divisor_override, {like.element(), dims});
  }
  Value divisor = Constant(like.builder(), 1, {like.element(), dims});
  for (const Window& w : windows) {
    Dims sizes(w.output);
    for (int64_t o = 0; o < w.output; ++o) {
      // The padding counts, but not what ceil_mode adds beyond it.
      const int64_t from = o * w.stride - w.padding;
      const int64_t to = std::min(from + w.kernel, w.input + w.padding);
      sizes[o] = count_include_pad ? to - from : std::min(to, w.input) - std::max<int64_t>(from, 0);
    }
    divisor = Multiply(divisor, Table(like, sizes, like.element(), w.dim, dims));
  }
  return divisor;
}

Value AveragePool(LoweringContext& cx, Value x, const std::vector<Window>& windows,
                  bool count_include_pad, std::optional<int64_t> divisor_override) {
  Value sum = Convert(x, ComputeType(x.element()));
  for (auto w = windows.rbegin(); w != windows.rend(); ++w) sum = SumWindows(sum, *w);
  return ToOutput(
      cx, Divide(sum, Divisor(sum, windows, count_include_pad, divisor_override, sum.dims())));
}

Value AveragePoolBackward(LoweringContext& cx, Value grad_output,
                          const std::vector<Window>& windows, bool count_include_pad,
                          std::optional<int64_t> divisor_override) {
  Value grad = Convert(grad_output, ComputeType(grad_output.element()));
  grad = Divide(grad, Divisor(grad, windows, count_include_pad, divisor_override, grad.dims()));
  for (const Window& w : windows) grad = SpreadWindows(grad, w);
  return ToOutput(cx, grad);
}

// ---- Adaptive average pooling -----------------------------------------------------------

/// Ranges [first, last) of positions along a dimension.
struct Ranges {
  Dims first, last;
};

/// PyTorch's adaptive windows: output o covers [o * in / out, ceil((o + 1) * in / out)).
Ranges AdaptiveWindows(int64_t input, int64_t output) {
  Ranges ranges;
  for (int64_t o = 0; o < output; ++o) {
    ranges.first.push_back(o * input / output);
    ranges.last.push_back(((o + 1) * input + output - 1) / output);
  }
  return ranges;
}

/// The windows that cover each input element.
Ranges Inverse(const Ranges& windows, int64_t input) {
  Ranges ranges;
  const auto output = static_cast<int64_t>(windows.first.size());
  for (int64_t h = 0; h < input; ++h) {
    int64_t first = 0, last = output;
    while (first < output && windows.last[first] <= h) ++first;
    while (last > first && windows.first[last - 1] > h) --last;
    ranges.first.push_back(first);
    ranges.last.push_back(last);
  }
  return ranges;
}

/// Sums over ranges of different sizes along `dim`: slices as long as the longest range by
/// one gather, and what they have too much masked.
Value SumRanges(Value x, int64_t dim, const Ranges& ranges) {
  const auto count = static_cast<int64_t>(ranges.first.size());
  int64_t longest = 0;
  for (int64_t r = 0; r < count; ++r) {
    longest = std::max(longest, ranges.last[r] - ranges.first[r]);
  }
  Dims starts;
  std::vector<std::byte> inside;
  for (int64_t r = 0; r < count; ++r) {
    starts.push_back(std::min(ranges.first[r], x.dim(dim) - longest));
    for (int64_t i = starts[r]; i < starts[r] + longest; ++i) {
      inside.push_back(std::byte{i >= ranges.first[r] && i < ranges.last[r]});
    }
  }
  stablehlo::GatherDimensionNumbers numbers{.start_index_map = {dim}, .index_vector_dim = 1};
  for (int64_t i = 0; i <= x.rank(); ++i) {
    if (i != dim) numbers.offset_dims.push_back(i);
  }
  Value slices =
      Gather(x, ConstantS64(x.builder(), starts), numbers, WithSize(x.dims(), dim, longest), true);
  Value mask = ConstantFromBytes(x.builder(), {ElementType::kPred, {count, longest}}, inside);
  Value masked = Select(BroadcastInDim(mask, slices.dims(), {dim, dim + 1}), slices,
                        stablehlo::ZerosLike(slices));
  return Reduce(masked, {dim + 1}, ReduceOp::kAdd);
}

/// Both directions: sums over windows, or of the windows over each input element.
Value AdaptivePool(LoweringContext& cx, Value x, size_t pooled, bool backward) {
  Value y = Convert(x, ComputeType(x.element()));
  const Dims dims = cx.output_dims();
  for (size_t i = dims.size() - pooled; i < dims.size(); ++i) {
    const auto dim = static_cast<int64_t>(i);
    const int64_t input = backward ? dims[i] : x.dim(dim), output = backward ? x.dim(dim) : dims[i];
    const Ranges windows = AdaptiveWindows(input, output);
    Dims sizes(output);
    for (int64_t o = 0; o < output; ++o) sizes[o] = windows.last[o] - windows.first[o];
    const bool even = output > 0 && input % output == 0;
    const Window tile{dim, input, output, even ? input / output : 1, even ? input / output : 1, 0};
    if (backward) {
      y = Divide(y, Table(y, sizes, y.element(), dim, y.dims()));
      y = even ? SpreadWindows(y, tile) : SumRanges(y, dim, Inverse(windows, input));
    } else {
      y = even ? SumWindows(y, tile) : SumRanges(y, dim, windows);
      y = Divide(y, Table(y, sizes, y.element(), dim, y.dims()));
    }
  }
  return ToOutput(cx, y);
}

}  // namespace

Value _adaptive_avg_pool2d(LoweringContext& cx, Value self, c10::IntArrayRef) {
  return AdaptivePool(cx, self, 2, false);
}

Value _adaptive_avg_pool2d_backward(LoweringContext& cx, Value grad_output, Value /*self*/) {
  return AdaptivePool(cx, grad_output, 2, true);
}

Value avg_pool2d(LoweringContext& cx, Value self, c10::IntArrayRef kernel_size,
                 c10::IntArrayRef stride, c10::IntArrayRef padding, bool /*ceil_mode*/,
                 bool count_include_pad, std::optional<int64_t> divisor_override) {
  return AveragePool(cx, self,
                     Windows(self.dims(), cx.output_dims(), 2, kernel_size, stride, padding, 1),
                     count_include_pad, divisor_override);
}

Value avg_pool2d_backward(LoweringContext& cx, Value grad_output, Value self,
                          c10::IntArrayRef kernel_size, c10::IntArrayRef stride,
                          c10::IntArrayRef padding, bool /*ceil_mode*/, bool count_include_pad,
                          std::optional<int64_t> divisor_override) {
  return AveragePoolBackward(
      cx, grad_output, Windows(self.dims(), grad_output.dims(), 2, kernel_size, stride, padding, 1),
      count_include_pad, divisor_override);
}

std::vector<Value> max_pool2d_with_indices(LoweringContext& cx, Value self,
                                           c10::IntArrayRef kernel_size, c10::IntArrayRef stride,
                                           c10::IntArrayRef padding, c10::IntArrayRef dilation,
                                           bool /*ceil_mode*/) {
  return MaxPool(cx, self,
                 Windows(self.dims(), cx.output_dims(), 2, kernel_size, stride, padding, dilation));
}

Value max_pool2d_with_indices_backward(LoweringContext& cx, Value grad_output, Value self,
                                       c10::IntArrayRef kernel_size, c10::IntArrayRef stride,
                                       c10::IntArrayRef padding, c10::IntArrayRef dilation,
                                       bool /*ceil_mode*/, Value indices) {
  return MaxPoolBackward(
      cx, grad_output, indices,
      Windows(self.dims(), grad_output.dims(), 2, kernel_size, stride, padding, dilation));
}

Value _adaptive_avg_pool3d(LoweringContext& cx, Value self, c10::IntArrayRef) {
  return AdaptivePool(cx, self, 3, false);
}

Value _adaptive_avg_pool3d_backward(LoweringContext& cx, Value grad_output, Value /*self*/) {
  return AdaptivePool(cx, grad_output, 3, true);
}

Value avg_pool3d(LoweringContext& cx, Value self, c10::IntArrayRef kernel_size,
                 c10::IntArrayRef stride, c10::IntArrayRef padding, bool /*ceil_mode*/,
                 bool count_include_pad, std::optional<int64_t> divisor_override) {
  return AveragePool(cx, self,
                     Windows(self.dims(), cx.output_dims(), 3, kernel_size, stride, padding, 1),
                     count_include_pad, divisor_override);
}

Value avg_pool3d_backward(LoweringContext& cx, Value grad_output, Value self,
                          c10::IntArrayRef kernel_size, c10::IntArrayRef stride,
                          c10::IntArrayRef padding, bool /*ceil_mode*/, bool count_include_pad,
                          std::optional<int64_t> divisor_override) {
  return AveragePoolBackward(
      cx, grad_output, Windows(self.dims(), grad_output.dims(), 3, kernel_size, stride, padding, 1),
      count_include_pad, divisor_override);
}

std::vector<Value> max_pool3d_with_indices(LoweringContext& cx, Value self,
                                           c10::IntArrayRef kernel_size, c10::IntArrayRef stride,
                                           c10::IntArrayRef padding, c10::IntArrayRef dilation,
                                           bool /*ceil_mode*/) {
  return MaxPool(cx, self,
                 Windows(self.dims(), cx.output_dims(), 3, kernel_size, stride, padding, dilation));
}

Value max_pool3d_with_indices_backward(LoweringContext& cx, Value grad_output, Value self,
                                       c10::IntArrayRef kernel_size, c10::IntArrayRef stride,
                                       c10::IntArrayRef padding, c10::IntArrayRef dilation,
                                       bool /*ceil_mode*/, Value indices) {
  return MaxPoolBackward(
      cx, grad_output, indices,
      Windows(self.dims(), grad_output.dims(), 3, kernel_size, stride, padding, dilation));
}

}  // namespace torch_xla::lowering::aten
