// Average and max pooling over the last 2 or 3 dimensions; any dimensions before these are left
// alone. Sums and maxima are taken along one dimension after the other: k0 + k1 terms, not k0 * k1.
// Gradients are dense: each input element sums over the windows that may cover it.
// StableHLO's select_and_scatter is far slower on XLA:CPU.
#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>

#include "XLALowerings.h"
#include "cpu/calls.h"
#include "cpu/choices.h"
#include "lowering/elementwise.h"
#include "lowering/kernel_choice.h"
#include "lowering/library_call.h"
#include "ops/indexing.h"
#include "ops/interpolation.h"
#include "ops/reduction.h"
#include "stablehlo/arithmetic.h"

namespace torch_xla::lowering {
namespace {

/// The number of elements in the dimensions from `from` up to `to`.
int64_t Product(const Dims& dims, int64_t from, int64_t to) {
  int64_t product = 1;
  for (int64_t i = from; i < to; ++i) product *= dims[i];
  return product;
}

/// The gradient for an input of dimensions `dims`, whose last `pooled` dimensions are a plane.
/// `indices` has the place in the plane of each element of `grad_output`. Nothing if no call is
/// made.
std::optional<Value> CallMaxPoolBackward(const LoweringContext& cx, Value grad_output,
                                         Value indices, const Dims& dims, int64_t pooled) {
  const ElementType element = grad_output.element();
  const auto rank = static_cast<int64_t>(dims.size());
  const int64_t planes = Product(dims, 0, rank - pooled);
  const int64_t inputs = Product(dims, rank - pooled, rank);
  if ((element != ElementType::kF32 && element != ElementType::kF64) ||
      inputs > std::numeric_limits<int32_t>::max() || !ChoosesLibrary(cx, "max_pool.gradient")) {
    return std::nullopt;
  }
  const int64_t outputs = Product(grad_output.dims(), rank - pooled, rank);
  // The forward pass had indices of 32 bits.
  indices = stablehlo::Convert(indices, ElementType::kS32);
  return CallLibrary(cpu::kMaxPoolBackwardTarget, {grad_output, indices}, {{element, dims}},
                     cpu::MaxPoolBackwardCall{planes, inputs, outputs})[0];
}

}  // namespace
}  // namespace torch_xla::lowering

namespace torch_xla::lowering::aten {
namespace {

using stablehlo::Add;
using stablehlo::BroadcastInDim;
using stablehlo::Convert;
using stablehlo::Multiply;
using stablehlo::ReduceOp;
using stablehlo::Reshape;
using stablehlo::Select;

/// Indices within one plane fit in 32 bits, which halves the memory traffic.
constexpr ElementType kIndex = ElementType::kS32;

// ---- One dimension ----------------------------------------------------------------------

/// The windows along one dimension.
struct Window {
  int64_t dim;  // of the array
  int64_t input, output;
  int64_t kernel, stride, padding, dilation = 1;

  int64_t extent() const { return (kernel - 1) * dilation + 1; }
  /// Whether the windows neither overlap nor leave gaps.
  bool Tiles() const {
    return padding == 0 && kernel == stride && dilation == 1 && input == output * kernel;
  }
};

/// One number per index along dimension `dim`, broadcast to `dims`.
Value Table(Value like, const Dims& numbers, ElementType element, int64_t dim, const Dims& dims) {
  Value table = ConstantS64(like.builder(), numbers);
  return BroadcastInDim(Convert(table, element), dims, {dim});
}

Value PadAlong(Value x, int64_t dim, Value value, int64_t low, int64_t high) {
  const Dims none(x.rank(), 0);
  return low == 0 && high == 0 ? x
                               : Pad(x, value, WithSize(none, dim, low), WithSize(none, dim, high));
}

/// `x` padded with `value`, or cropped, to the extent of all windows.
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

Value SumWindows(Value x, const Window& w) {
  if (w.Tiles()) return Reduce(SplitDimension(x, w.dim, w.kernel), {w.dim + 1}, ReduceOp::kAdd);
  stablehlo::Window window{.dimensions = WithSize(Dims(x.rank(), 1), w.dim, w.kernel),
                           .strides = WithSize(Dims(x.rank(), 1), w.dim, w.stride),
                           .padding = stablehlo::Padding(x.rank(), {0, 0})};
  const int64_t covered = (w.output - 1) * w.stride + w.kernel;
  window.padding[w.dim] = {w.padding, std::max<int64_t>(covered - w.input - w.padding, 0)};
  return ReduceWindow(x, window, ReduceOp::kAdd);
}

/// The transpose of SumWindows: each input element gets the sum over the windows it is in.
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

/// Makes the windows from the dimensions of input and output and from PyTorch's parameters.
std::vector<Window> Windows(int64_t pooled, const Dims& input, const Dims& output,
                            c10::IntArrayRef kernel, c10::IntArrayRef stride,
                            c10::IntArrayRef padding, c10::IntArrayRef dilation) {
  const Dims kernels = PerDimension(kernel, pooled), paddings = PerDimension(padding, pooled),
             dilations = PerDimension(dilation, pooled),
             strides = stride.empty() ? kernels : PerDimension(stride, pooled);
  std::vector<Window> windows;
  for (int64_t i = 0; i < pooled; ++i) {
    const auto dim = static_cast<int64_t>(input.size()) - pooled + i;
    for (int64_t number : {kernels[i], strides[i], paddings[i], dilations[i]}) {
      TORCH_CHECK(number <= std::numeric_limits<int32_t>::max(),
                  "value cannot be converted to type int without overflow: ", number);
    }
    const int64_t size = input[dim] + 2 * paddings[i] + kernels[i];  // ceil_mode may reach further
    windows.push_back({dim, input[dim], output[dim], kernels[i],
                       CheckedStep(strides[i], output[dim], size, "stride"), paddings[i],
                       CheckedStep(dilations[i], kernels[i], size, "dilation")});
  }
  return windows;
}

/// The index of each element in its plane, the last `pooled` dimensions.
Value PlaneIndex(stablehlo::Builder& builder, const Dims& dims, int64_t pooled) {
  const Dims plane(dims.end() - pooled, dims.end());
  int64_t size = 1;
  for (int64_t n : plane) size *= n;
  return stablehlo::BroadcastTo(Reshape(stablehlo::Iota(builder, {kIndex, {size}}, 0), plane),
                                dims);
}

// ---- Max pooling ------------------------------------------------------------------------

/// The maxima and their flat indices in the pooled dimensions.
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
      const int64_t step = w->dilation * pitch;
      if (place < 0) place += (-place + step - 1) / step * step;
    }
    Value values = PadWindows(best, *w, lowest), indices = PadWindows(index, *w, zero);
    // A window of only -inf reports -inf at its first element.
    best = stablehlo::BroadcastTo(lowest, dims);
    index = stablehlo::BroadcastTo(zero, dims);
    for (const auto& [dim, first] : firsts) index = Add(index, Table(x, first, kIndex, dim, dims));
    for (int64_t tap = 0; tap < w->kernel; ++tap) {
      Value value = Tap(values, *w, tap);
      Value place = Add(Tap(indices, *w, tap), Table(x, places(tap), kIndex, w->dim, dims));
      // NaN wins; of several NaNs the last one wins.
      Value better =
          Or(Compare(value, best, Direction::kGt), Compare(value, value, Direction::kNe));
      best = Select(better, value, best);
      index = Select(better, place, index);
    }
  }
  return {best, Convert(index, cx.output_element(1))};
}

/// Adds each gradient at its index, by a scatter into the flattened planes.
Value ScatterMaxPoolBackward(LoweringContext& cx, int64_t pooled, Value grad_output,
                             Value indices) {
  const Dims dims = cx.output_dims();
  Value grad = Convert(grad_output, ComputeType(grad_output.element()));
  if (grad.type().num_elements() == 0) return Constant(cx.builder(), 0, cx.output_type());
  int64_t plane = 1;
  for (int64_t i = 1; i <= pooled; ++i) plane *= dims[dims.size() - i];
  const int64_t planes = cx.output_type().num_elements() / plane;
  const Dims flat = {planes, grad.type().num_elements() / planes};
  Value start = stablehlo::Iota(cx.builder(), {ElementType::kS64, flat}, 0) * plane;
  Value places = Reshape(Convert(indices, ElementType::kS64), flat);
  // An index out of its plane must be out of all planes.
  places = Select(And(places >= 0, places < plane), places + start, planes * plane);
  Value zeros = Constant(cx.builder(), 0, {grad.element(), {planes * plane}});
  const Dims all = {flat[0] * flat[1]};
  return ToOutput(
      cx, Reshape(Put(zeros, 0, Reshape(places, all), Reshape(grad, all), ReduceOp::kAdd), dims));
}

Value MaxPoolBackward(LoweringContext& cx, Value grad_output, Value indices,
                      const std::vector<Window>& windows) {
  const Dims dims = cx.output_dims();
  Value grad = Convert(grad_output, ComputeType(grad_output.element()));
  if (grad.type().num_elements() == 0) return Constant(cx.builder(), 0, cx.output_type());
  // Input element h lies in the window that starts last at or before it, number (h + padding)
  // / stride, and in at most (extent - 1) / stride windows before that one.
  Dims counts;
  int64_t terms = 1;
  for (const Window& w : windows) {
    counts.push_back((w.extent() - 1) / w.stride + 1);
    terms *= counts.back();
  }
  const auto pooled = static_cast<int64_t>(windows.size());
  if (terms > cpu::choices::kWindowsOfInput)
    return ScatterMaxPoolBackward(cx, pooled, grad_output, indices);
  Value self = PlaneIndex(cx.builder(), dims, pooled);
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

/// The divisor of each window's sum, as an array of `dims`.
Value Divisor(Value like, const std::vector<Window>& windows, bool count_include_pad,
              std::optional<int64_t> divisor_override, const Dims& dims) {
  if (divisor_override) {
    return Constant(like.builder(), *divisor_override, {like.element(), dims});
  }
  Value divisor = Constant(like.builder(), 1, {like.element(), dims});
  for (const Window& w : windows) {
    Dims sizes(w.output);
    for (int64_t o = 0; o < w.output; ++o) {
      // The divisor counts padding, but not elements that ceil_mode adds beyond the padding.
      const int64_t from = o * w.stride - w.padding;
      const int64_t to = std::min(from + w.kernel, w.input + w.padding);
      sizes[o] = count_include_pad ? to - from : std::min(to, w.input) - std::max<int64_t>(from, 0);
    }
    divisor = Multiply(divisor, Table(like, sizes, like.element(), w.dim, dims));
  }
  return divisor;
}

// ---- Adaptive and fractional pooling ----------------------------------------------------

/// PyTorch's adaptive windows: output o covers [o * in / out, ceil((o + 1) * in / out)).
MapRows AdaptiveWindows(int64_t input, int64_t output) {
  CheckRows(output);
  MapRows windows(output);
  for (int64_t o = 0; o < output; ++o) {
    const int64_t last = ((o + 1) * input + output - 1) / output;
    for (int64_t i = o * input / output; i < last; ++i) windows[o].push_back({i});
  }
  return windows;
}

/// Sums over windows; with `backward` for each input element over the windows it is in.
Value AdaptivePool(LoweringContext& cx, int64_t pooled, Value x, bool backward) {
  if (cx.output_type().num_elements() == 0) return Constant(cx.builder(), 0, cx.output_type());
  Value y = Convert(x, ComputeType(x.element()));
  const Dims dims = cx.output_dims();
  for (int64_t dim = x.rank() - pooled; dim < x.rank(); ++dim) {
    const int64_t input = backward ? dims[dim] : x.dim(dim);
    const int64_t output = backward ? x.dim(dim) : dims[dim];
    const MapRows windows = AdaptiveWindows(input, output);
    Dims sizes;
    for (const auto& window : windows) sizes.push_back(static_cast<int64_t>(window.size()));
    auto divide = [&] { y = Divide(y, Table(y, sizes, y.element(), dim, y.dims())); };
    if (backward) divide();
    y = MapDimension(y, dim, backward ? Transposed(windows, input) : windows);
    if (!backward) divide();
  }
  return ToOutput(cx, y);
}

/// Splits dimension `dim` of an array in two: its windows, and the elements of each window. An
/// element may be in a window twice.
using Cut = std::function<Value(Value x, int64_t dim)>;

/// The maxima and their flat indices, as MaxPool, for any windows.
std::vector<Value> MaxPool(LoweringContext& cx, int64_t pooled, Value x, const Cut& cut) {
  if (cx.output_type().num_elements() == 0) {
    return {Constant(cx.builder(), 0, cx.output_type()),
            Constant(cx.builder(), 0, cx.output_type(1))};
  }
  Value best = x, index = PlaneIndex(x.builder(), x.dims(), pooled);
  for (int64_t dim = x.rank() - 1; dim >= x.rank() - pooled; --dim) {
    Value values = cut(best, dim), places = cut(index, dim);
    best = Extreme(cx, values, {dim + 1}, ReduceOp::kMax);
    const Dims axes = DimsBetween(0, x.rank() + 1, {dim + 1});
    Value hit = Equal(values, BroadcastInDim(best, values.dims(), axes));
    constexpr int64_t kNone = std::numeric_limits<int32_t>::max();
    Value first = Reduce(Select(hit, places, kNone), {dim + 1}, ReduceOp::kMin);
    Value last_nan = Reduce(Select(IsNan(values), places, -1), {dim + 1}, ReduceOp::kMax);
    index = Select(last_nan >= 0, last_nan, first);
  }
  return {best, Convert(index, cx.output_element(1))};
}

/// The windows of fractional pooling (B. Graham, "Fractional Max-Pooling", 2014) start at
/// floor((o + u) * step) - floor(u * step), the last one at the end; u is drawn per plane.
Cut FractionalWindows(LoweringContext& cx, int64_t pooled, Value self, c10::IntArrayRef kernel_size,
                      Value samples) {
  const Dims kernels = PerDimension(kernel_size, pooled), dims = cx.output_dims();
  return [=](Value x, int64_t dim) {
    const int64_t spatial = dim - (self.rank() - pooled), kernel = kernels[spatial];
    const int64_t outputs = dims[dim], range = self.dim(dim) - kernel;
    TORCH_CHECK(kernel > 0 && range >= 0, "fractional_max_pool: expected a kernel size from 1 to ",
                self.dim(dim), ", but got ", kernel);
    // ATen numbers the samples backwards in two dimensions, forwards in three.
    const int64_t which = pooled == 2 ? 1 - spatial : spatial;
    Dims planes(self.dims().begin(), self.dims().end() - pooled);
    // A single image without a batch uses the first of all samples that were drawn.
    const int64_t images = self.rank() - pooled == 1 ? 1 : samples.dim(0);
    Value u = Slice(samples, {0, 0, which}, {images, samples.dim(1), which + 1});
    Dims table = planes;
    table.insert(table.end(), {outputs, kernel});
    const auto lead = static_cast<int64_t>(planes.size());
    Dims axes(lead);
    std::iota(axes.begin(), axes.end(), 0);
    u = BroadcastInDim(Reshape(u, planes), table, axes);
    auto count = [&](int64_t axis) { return stablehlo::Iota(x.builder(), {kIndex, table}, axis); };
    Value o = count(lead), start = o;
    if (outputs > 1) {
      Value step = Divide(FullLike(u, range), FullLike(u, outputs - 1));
      start = Convert((Convert(o, u.element()) + u) * step, kIndex) - Convert(u * step, kIndex);
    }
    start = Select(Equal(o, outputs - 1), FullLike(o, range), start);
    // [planes…, outputs * kernel], broadcast to the present size of the other dimensions.
    Dims flat = planes;
    flat.push_back(outputs * kernel);
    axes.push_back(dim);
    Value index = BroadcastInDim(Reshape(start + count(lead + 1), flat),
                                 WithSize(x.dims(), dim, flat.back()), axes);
    return SplitDimension(TakeAlong(x, dim, index), dim, kernel);
  };
}

}  // namespace

Value AdaptiveAveragePool(LoweringContext& cx, int64_t pooled, Value self, c10::IntArrayRef) {
  return AdaptivePool(cx, pooled, self, /*backward=*/false);
}

Value AdaptiveAveragePoolBackward(LoweringContext& cx, int64_t pooled, Value grad_output,
                                  Value /*self*/) {
  return AdaptivePool(cx, pooled, grad_output, /*backward=*/true);
}

std::vector<Value> AdaptiveMaxPool(LoweringContext& cx, int64_t pooled, Value self,
                                   c10::IntArrayRef) {
  const Dims dims = cx.output_dims();
  return MaxPool(cx, pooled, self, [&](Value x, int64_t dim) {
    if (x.dim(dim) % dims[dim] == 0) return SplitDimension(x, dim, x.dim(dim) / dims[dim]);
    const MapRows windows = AdaptiveWindows(x.dim(dim), dims[dim]);
    size_t longest = 0;
    for (const auto& window : windows) longest = std::max(longest, window.size());
    Dims places;
    for (const auto& window : windows) {
      for (size_t i = 0; i < longest; ++i) {
        places.push_back(window[std::min(i, window.size() - 1)].index);
      }
    }
    return SplitDimension(Take(x, dim, ConstantS64(x.builder(), places)), dim,
                          static_cast<int64_t>(longest));
  });
}

Value AdaptiveMaxPoolBackward(LoweringContext& cx, int64_t pooled, Value grad_output,
                              Value /*self*/, Value indices) {
  return ScatterMaxPoolBackward(cx, pooled, grad_output, indices);
}

std::vector<Value> FractionalMaxPool(LoweringContext& cx, int64_t pooled, Value self,
                                     c10::IntArrayRef kernel_size, c10::IntArrayRef,
                                     Value random_samples) {
  return MaxPool(cx, pooled, self,
                 FractionalWindows(cx, pooled, self, kernel_size, random_samples));
}

Value FractionalMaxPoolBackward(LoweringContext& cx, int64_t pooled, Value grad_output,
                                Value /*self*/, c10::IntArrayRef, c10::IntArrayRef, Value indices) {
  return ScatterMaxPoolBackward(cx, pooled, grad_output, indices);
}

Value AveragePool(LoweringContext& cx, int64_t pooled, Value self, c10::IntArrayRef kernel_size,
                  c10::IntArrayRef stride, c10::IntArrayRef padding, bool /*ceil_mode*/,
                  bool count_include_pad, std::optional<int64_t> divisor_override) {
  const auto windows =
      Windows(pooled, self.dims(), cx.output_dims(), kernel_size, stride, padding, 1);
  Value sum = Convert(self, ComputeType(self.element()));
  for (auto w = windows.rbegin(); w != windows.rend(); ++w) sum = SumWindows(sum, *w);
  return ToOutput(
      cx, Divide(sum, Divisor(sum, windows, count_include_pad, divisor_override, sum.dims())));
}

Value AveragePoolBackward(LoweringContext& cx, int64_t pooled, Value grad_output, Value self,
                          c10::IntArrayRef kernel_size, c10::IntArrayRef stride,
                          c10::IntArrayRef padding, bool /*ceil_mode*/, bool count_include_pad,
                          std::optional<int64_t> divisor_override) {
  const auto windows =
      Windows(pooled, self.dims(), grad_output.dims(), kernel_size, stride, padding, 1);
  Value grad = Convert(grad_output, ComputeType(grad_output.element()));
  grad = Divide(grad, Divisor(grad, windows, count_include_pad, divisor_override, grad.dims()));
  for (const Window& w : windows) grad = SpreadWindows(grad, w);
  return ToOutput(cx, grad);
}

std::vector<Value> MaxPoolWithIndices(LoweringContext& cx, int64_t pooled, Value self,
                                      c10::IntArrayRef kernel_size, c10::IntArrayRef stride,
                                      c10::IntArrayRef padding, c10::IntArrayRef dilation,
                                      bool /*ceil_mode*/) {
  return MaxPool(
      cx, self,
      Windows(pooled, self.dims(), cx.output_dims(), kernel_size, stride, padding, dilation));
}

Value MaxPoolWithIndicesBackward(LoweringContext& cx, int64_t pooled, Value grad_output, Value self,
                                 c10::IntArrayRef kernel_size, c10::IntArrayRef stride,
                                 c10::IntArrayRef padding, c10::IntArrayRef dilation,
                                 bool /*ceil_mode*/, Value indices) {
  if (const auto called = CallMaxPoolBackward(cx, grad_output, indices, self.dims(), pooled)) {
    return *called;
  }
  return MaxPoolBackward(
      cx, grad_output, indices,
      Windows(pooled, self.dims(), grad_output.dims(), kernel_size, stride, padding, dilation));
}

}  // namespace torch_xla::lowering::aten
