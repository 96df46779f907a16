// Convolution, its transpose and their gradients.
//
// Three functions do it all: Forward, InputGradient and WeightGradient of a convolution from a
// larger map to a smaller one. A transposed convolution is the InputGradient of a convolution, and
// its gradients are the other two functions.
//
// Each function has several forms, and lowering/kernel_table.inc has the form for a platform and a
// shape. cuDNN and TPUs want a stablehlo.convolution, where they have one of the element type
// (dot.h). XLA:CPU computes many convolutions by naive loops, so there the forms are
// - a sum of elementwise products, one per kernel element, for depthwise kernels;
// - a call of a library (cpu/convolution_call.h);
// - if programs may not call libraries: a matrix product over patches (im2col) if that is faster or
//   XLA:CPU would be naive, else a stablehlo.convolution, for which it has fast paths.
// In programs for several devices each has whole maps, but for those that XLA's partitioner
// convolves right in parts (ShardingWriter::splits_maps).
#include <ATen/ops/_convolution.h>
#include <ATen/ops/convolution.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/accumulate.h>

#include <algorithm>

#include "XLALowerings.h"
#include "XLANativeFunctions.h"
#include "XLAOps.h"
#include "aten/node_builder.h"
#include "cpu/choices.h"
#include "cpu/convolution_call.h"
#include "distributed/sharding_lowering.h"
#include "distributed/sharding_writer.h"
#include "lowering/elementwise.h"
#include "lowering/kernel_choice.h"
#include "lowering/library_call.h"
#include "lowering/precision.h"
#include "ops/dot.h"
#include "ops/interpolation.h"
#include "ops/matmul.h"
#include "runtime/platform.h"

namespace torch_xla::lowering::aten {
namespace {

using stablehlo::Add;
using stablehlo::BroadcastInDim;
using stablehlo::Convert;
using stablehlo::ConvolutionDimensionNumbers;
using stablehlo::Multiply;
using stablehlo::Padding;
using stablehlo::ReduceOp;
using stablehlo::Reshape;

Dims Spatial(const Dims& dims) { return {dims.begin() + 2, dims.end()}; }

int64_t Product(const Dims& sizes) { return c10::multiply_integers(sizes); }

Dims Join(Dims first, const Dims& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

/// The extent of `size` elements that are `step` apart.
int64_t Span(int64_t size, int64_t step) { return (size - 1) * step + 1; }

Value SwapLeading(Value x) {
  Dims order = DimsBetween(0, x.rank());
  std::swap(order[0], order[1]);
  return Transpose(x, order);
}

Value Zero(Value like) { return stablehlo::ScalarLike(like, 0); }

/// Calls `visit` with each position in a kernel of these sizes.
template <typename Visit>
void ForEachTap(const Dims& kernel, Visit visit) {
  Dims tap(kernel.size(), 0);
  for (int64_t n = Product(kernel); n > 0; --n) {
    visit(tap);
    for (size_t i = kernel.size(); i-- > 0 && ++tap[i] == kernel[i];) tap[i] = 0;
  }
}

/// A convolution from a larger map, the input, to a smaller one, the output. Arrays are
/// x [N, C, input…], w [O, C / groups, kernel…] and dy [N, O, output…].
class Geometry {
 public:
  /// `element` is the element type of the arrays; the functions may be given wider arrays.
  Geometry(const LoweringContext& cx, ElementType element, Dims input, Dims output, Dims kernel,
           c10::IntArrayRef stride, c10::IntArrayRef padding, c10::IntArrayRef dilation,
           int64_t groups)
      : cx_(cx),
        element_(element),
        rank_(input.size()),
        input_(std::move(input)),
        output_(std::move(output)),
        kernel_(std::move(kernel)),
        stride_(PerDimension(stride, rank_)),
        padding_(PerDimension(padding, rank_)),
        dilation_(PerDimension(dilation, rank_)),
        groups_(groups),
        platform_(cx.platform()),
        cpu_(runtime::IsHost(platform_)) {
    for (size_t i = 0; i < rank_; ++i) {
      constexpr int64_t kMost = int64_t{1} << 40;
      TORCH_CHECK(padding_[i] >= 0, "negative padding is not supported");
      TORCH_CHECK(padding_[i] <= kMost, "padding ", padding_[i], " is too large");
      const int64_t size = input_[i] + 2 * padding_[i];
      stride_[i] = CheckedStep(stride_[i], output_[i], size, "stride");
      dilation_[i] = CheckedStep(dilation_[i], kernel_[i], size, "dilation");
      window_.push_back(Span(kernel_[i], dilation_[i]));
    }
  }

  /// An operand or a result, whose map is not split where the partitioner would convolve it wrong.
  Value WholeMap(Value x) const;
  /// `bias` is [O].
  Value Forward(Value x, Value w, std::optional<Value> bias = std::nullopt) const;
  Value InputGradient(Value dy, Value w) const;
  Value WeightGradient(Value x, Value dy) const;

  Value Patches(Value x) const;
  Value SumPatches(Value taps) const;

 private:
  bool IsPlain() const;
  Kernel Choose(cpu::ConvolutionPart part, ElementType element, int64_t batch, int64_t inputs,
                int64_t outputs, const Dims& lhs, const Dims& rhs, int64_t zeros = 1) const;
  Value ForwardBy(Kernel kernel, Value x, Value w, const Dims& result) const;
  Value Library(cpu::ConvolutionPart part, Value lhs, Value rhs, Dims result,
                std::optional<Value> bias = std::nullopt) const;
  Value Convolve(Value x, Value kernel, ConvolutionDimensionNumbers numbers,
                 stablehlo::ConvolutionOptions options) const;
  Value Padded(Value x) const;
  Value Tap(Value padded, const Dims& tap) const;
  Value Untap(Value y, const Dims& tap) const;
  Value TapWeight(Value w, const Dims& tap, const Dims& dims) const;
  Value GroupWeights(Value w) const;
  Value GroupChannels(Value dy) const;

  const LoweringContext& cx_;
  ElementType element_;
  size_t rank_;
  Dims input_, output_, kernel_, stride_, padding_, dilation_;
  Dims window_;  // the kernel's extent with dilation
  int64_t groups_;
  std::string platform_;
  bool cpu_;
};

// ---- Pieces of the patch and elementwise forms; A and B stand for any two dimensions -----

/// `x` [A, B, input…], padded or cropped to the extent of all windows.
Value Geometry::Padded(Value x) const {
  Dims low(2, 0), high(2, 0);
  for (size_t i = 0; i < rank_; ++i) {
    low.push_back(padding_[i]);
    high.push_back(Span(output_[i], stride_[i]) - 1 + window_[i] - input_[i] - padding_[i]);
  }
  return Pad(x, Zero(x), low, high);
}

/// The elements of the input that the kernel element `tap` multiplies: [A, B, output…].
Value Geometry::Tap(Value padded, const Dims& tap) const {
  Dims start(2, 0), limit = {padded.dim(0), padded.dim(1)}, stride(2, 1);
  for (size_t i = 0; i < rank_; ++i) {
    start.push_back(tap[i] * dilation_[i]);
    limit.push_back(start.back() + Span(output_[i], stride_[i]));
    stride.push_back(stride_[i]);
  }
  return Slice(padded, start, limit, stride);
}

/// The transpose of Tap(Padded(x)): puts [A, B, output…] at its places in [A, B, input…].
Value Geometry::Untap(Value y, const Dims& tap) const {
  Dims low(2, 0), high(2, 0), interior(2, 0);
  for (size_t i = 0; i < rank_; ++i) {
    low.push_back(tap[i] * dilation_[i] - padding_[i]);
    high.push_back(input_[i] - Span(output_[i], stride_[i]) - low.back());
    interior.push_back(stride_[i] - 1);
  }
  return Pad(y, Zero(y), low, high, interior);
}

/// One element per channel of a depthwise kernel, broadcast to [N, C, …].
Value Geometry::TapWeight(Value w, const Dims& tap, const Dims& dims) const {
  Dims limit = Join({w.dim(0), 1}, tap);
  for (size_t i = 0; i < rank_; ++i) ++limit[i + 2];
  return BroadcastInDim(Reshape(Slice(w, Join({0, 0}, tap), limit), {w.dim(0)}), dims, {1});
}

/// im2col: [groups, C / groups * kernel, N, output…].
Value Geometry::Patches(Value x) const {
  const int64_t batch = x.dim(0), channels = x.dim(1);
  Value padded = Padded(SwapLeading(x));
  std::vector<Value> taps;
  ForEachTap(kernel_, [&](const Dims& tap) {
    taps.push_back(Reshape(Tap(padded, tap), Join({channels, 1, batch}, output_)));
  });
  return Reshape(Concatenate(taps, 1),
                 Join({groups_, channels / groups_ * Product(kernel_), batch}, output_));
}

/// The transpose of Patches: adds [C, kernel, N, output…] to its places in [C, N, input…].
Value Geometry::SumPatches(Value taps) const {
  Value sum;
  Dims start(taps.rank(), 0), limit = taps.dims(), dims = {taps.dim(0), taps.dim(2)};
  dims = Join(dims, output_);
  ForEachTap(kernel_, [&](const Dims& tap) {
    limit[1] = start[1] + 1;
    Value term = Untap(Reshape(Slice(taps, start, limit), dims), tap);
    sum = sum.valid() ? Add(sum, term) : term;
    ++start[1];
  });
  return sum;
}

/// [groups, O / groups, C / groups * kernel].
Value Geometry::GroupWeights(Value w) const {
  return Reshape(w, {groups_, w.dim(0) / groups_, w.dim(1) * Product(kernel_)});
}

/// [N, O, output…] as [N, groups, O / groups, output…].
Value Geometry::GroupChannels(Value dy) const {
  return Reshape(dy, Join({dy.dim(0), groups_, dy.dim(1) / groups_}, output_));
}

// ---- Choice of form ---------------------------------------------------------------------

/// Whether the output has the size that a convolution gives it. The input of a transposed
/// convolution with much output padding would be larger.
bool Geometry::IsPlain() const {
  constexpr int64_t kMostPadding = 1 << 30;  // oneDNN computes with 32 bits
  for (size_t i = 0; i < rank_; ++i) {
    const int64_t room = input_[i] + 2 * padding_[i] - window_[i];
    if (padding_[i] > kMostPadding || room < 0 || room / stride_[i] + 1 != output_[i]) return false;
  }
  return true;
}

/// `lhs` and `rhs` are the spatial sizes of the operands that a stablehlo.convolution would have,
/// `rhs` with its dilation; `zeros` is the factor by which dilation with zeros would enlarge `lhs`.
Kernel Geometry::Choose(cpu::ConvolutionPart part, ElementType element, int64_t batch,
                        int64_t inputs, int64_t outputs, const Dims& lhs, const Dims& rhs,
                        int64_t zeros) const {
  using namespace cpu::choices;
  if (LacksConvolution(platform_, element)) return Kernel::kProduct;
  const int64_t rows = batch * Product(output_), taps = Product(kernel_);
  // XLA's simplifier swaps the operands if the kernel is larger than the input, and no fast path
  // takes the result.
  const bool swapped = Product(rhs) > Product(lhs);
  // The fast paths transpose the weights, which costs more than patches of few rows.
  const bool few_rows = taps == 1 || rows <= outputs / groups_;
  const bool depthwise =
      groups_ > 1 && groups_ == inputs && groups_ == outputs && taps <= kUnrolledTaps;
  constexpr std::string_view kOperations[] = {"convolution.forward", "convolution.input_gradient",
                                              "convolution.weight_gradient"};
  constexpr std::string_view kRanks[] = {"1d", "2d", "3d"};
  std::vector<Kernel> possible = {Kernel::kStableHlo, Kernel::kProduct};
  if (depthwise) possible.push_back(Kernel::kElementwise);
  if (element == ElementType::kF32 && IsPlain()) possible.push_back(Kernel::kLibrary);
  return ChooseKernel(cx_, kOperations[static_cast<size_t>(part)],
                      {runtime::MlirName(element), kRanks[std::min<size_t>(rank_, 3) - 1],
                       groups_ == 1                     ? "one"
                       : depthwise                      ? "depthwise"
                       : inputs / groups_ > kSmallGroup ? "grouped"
                                                        : "small",
                       taps == 1 ? "1x1" : "kxk",
                       rows * inputs * taps > kLargePatches        ? "large"
                       : swapped                                   ? "swapped"
                       : few_rows                                  ? "few"
                       : zeros > (groups_ == 1 ? kSpreadZeros : 1) ? "spread"
                                                                   : "plain"},
                      possible);
}

Value Geometry::Library(cpu::ConvolutionPart part, Value lhs, Value rhs, Dims result,
                        std::optional<Value> bias) const {
  const ElementType given = lhs.element();
  const ElementType element = MultipliesNatively(element_) ? element_ : given;
  if (bias) bias = Convert(*bias, element);
  std::vector<Value> operands{Convert(lhs, element), Convert(rhs, element)};
  if (bias) operands.push_back(*bias);
  const cpu::ConvolutionCall call{part, groups_, stride_, padding_, dilation_};
  return Convert(CallLibrary(cpu::kConvolutionTarget, operands, {{element, std::move(result)}},
                             call.Encode())[0],
                 given);
}

Value Geometry::Convolve(Value x, Value kernel, ConvolutionDimensionNumbers numbers,
                         stablehlo::ConvolutionOptions options) const {
  Dims low(x.rank(), 0), high(x.rank(), 0), start(x.rank(), 0);
  bool crops = false;
  for (size_t i = 0; i < rank_; ++i) {
    auto& [before, after] = options.padding[i];
    if (!options.lhs_dilation.empty() && options.lhs_dilation[i] > 1) {
      // XLA's partitioner ends the process where the first elements are cropped: see Pad().
      const int64_t step = options.lhs_dilation[i], dim = numbers.input_spatial[i];
      if (before < 0) start[dim] = std::min(x.dim(dim) - 1, (step - 1 - before) / step);
      before += start[dim] * step;
      continue;
    }
    if (!cpu_) continue;
    // The fast paths do not take negative padding.
    low[numbers.input_spatial[i]] = std::min<int64_t>(before, 0);
    high[numbers.input_spatial[i]] = std::min<int64_t>(after, 0);
    crops |= before < 0 || after < 0;
    before = std::max<int64_t>(before, 0);
    after = std::max<int64_t>(after, 0);
  }
  if (crops) x = Pad(x, Zero(x), low, high);
  x = Slice(x, start, x.dims());
  if (!CurrentPrecision(platform_).rounds_convolutions) {
    options.precision = stablehlo::Precision::kHighest;
  }
  return Convolution(x, kernel, numbers, options);
}

Value Geometry::WholeMap(Value x) const {
  auto even = [&](int64_t size) { return size % x.builder().partitions() == 0; };
  const bool split = distributed::ShardingWriter::Current().splits_maps() &&
                     std::ranges::all_of(input_, even) && std::ranges::all_of(output_, even);
  return split ? x : Whole(x, DimsBetween(0, 2));
}

// ---- The three functions ----------------------------------------------------------------

Value Geometry::Forward(Value x, Value w, std::optional<Value> bias) const {
  const int64_t batch = x.dim(0), outputs = w.dim(0);
  const Dims result = Join({batch, outputs}, output_);
  const Kernel kernel = Choose(cpu::ConvolutionPart::kForward, x.element(), batch, x.dim(1),
                               outputs, input_, window_);
  if (kernel == Kernel::kLibrary)
    return Library(cpu::ConvolutionPart::kForward, x, w, result, bias);
  Value y = ForwardBy(kernel, x, w, result);
  return bias ? Add(y, BroadcastInDim(Convert(*bias, y.element()), result, {1})) : y;
}

Value Geometry::ForwardBy(Kernel kernel, Value x, Value w, const Dims& result) const {
  if (kernel == Kernel::kElementwise) {
    Value padded = Padded(x), sum;
    ForEachTap(kernel_, [&](const Dims& tap) {
      Value term = Multiply(Tap(padded, tap), TapWeight(w, tap, result));
      sum = sum.valid() ? Add(sum, term) : term;
    });
    return sum;
  }
  if (kernel == Kernel::kProduct) {
    Value y =
        Dot(platform_, GroupWeights(w), Patches(x),
            {.lhs_batch = {0}, .rhs_batch = {0}, .lhs_contracting = {2}, .rhs_contracting = {1}});
    return SwapLeading(Reshape(y, Join({result[1], result[0]}, output_)));
  }
  Padding padding;
  for (size_t i = 0; i < rank_; ++i) {
    // The given padding, or less if a transposed convolution had output padding.
    const int64_t most =
        Span(output_[i], stride_[i]) - 1 + window_[i] - input_[i] - padding_[i] + stride_[i] - 1;
    padding.push_back({padding_[i], std::min(padding_[i], most)});
  }
  return Convolve(x, w, ConvolutionDimensionNumbers::Nchw(static_cast<int64_t>(rank_)),
                  {.strides = stride_,
                   .padding = padding,
                   .rhs_dilation = dilation_,
                   .feature_group_count = groups_});
}

Value Geometry::InputGradient(Value dy, Value w) const {
  const int64_t batch = dy.dim(0), outputs = w.dim(0), inputs = w.dim(1) * groups_;
  const Kernel form = Choose(cpu::ConvolutionPart::kInputGradient, dy.element(), batch, inputs,
                             outputs, output_, window_, Product(stride_));
  if (form == Kernel::kLibrary) {
    return Library(cpu::ConvolutionPart::kInputGradient, dy, w, Join({batch, inputs}, input_));
  }
  if (form == Kernel::kElementwise) {
    Value sum;
    ForEachTap(kernel_, [&](const Dims& tap) {
      Value term = Untap(Multiply(dy, TapWeight(w, tap, dy.dims())), tap);
      sum = sum.valid() ? Add(sum, term) : term;
    });
    return sum;
  }
  if (form == Kernel::kProduct) {
    Value taps =
        Dot(platform_, GroupWeights(w), GroupChannels(dy),
            {.lhs_batch = {0}, .rhs_batch = {1}, .lhs_contracting = {1}, .rhs_contracting = {2}});
    return SwapLeading(SumPatches(Reshape(taps, Join({inputs, Product(kernel_), batch}, output_))));
  }
  auto numbers = ConvolutionDimensionNumbers::Nchw(static_cast<int64_t>(rank_));
  Padding padding;
  for (size_t i = 0; i < rank_; ++i) {
    const int64_t low = window_[i] - 1 - padding_[i];
    padding.push_back({low, input_[i] - Span(output_[i], stride_[i]) - low + window_[i] - 1});
  }
  Value kernel = Reverse(w, numbers.kernel_spatial);
  if (groups_ == 1) {
    std::swap(numbers.kernel_input_feature, numbers.kernel_output_feature);
  } else {
    kernel = Reshape(kernel, Join({groups_, outputs / groups_, w.dim(1)}, kernel_));
    Dims order = DimsBetween(0, kernel.rank());
    std::swap(order[1], order[2]);
    kernel = Reshape(Transpose(kernel, order), Join({inputs, outputs / groups_}, kernel_));
  }
  return Convolve(dy, kernel, numbers,
                  {.padding = padding,
                   .lhs_dilation = stride_,
                   .rhs_dilation = dilation_,
                   .feature_group_count = groups_});
}

Value Geometry::WeightGradient(Value x, Value dy) const {
  const int64_t batch = x.dim(0), inputs = x.dim(1), outputs = dy.dim(1);
  const Dims result = Join({outputs, inputs / groups_}, kernel_);
  const Dims batch_and_map = DimsBetween(0, dy.rank(), {1});  // all but dy's features
  Dims spread;  // dy as a kernel, dilated by the stride
  for (size_t i = 0; i < rank_; ++i) spread.push_back(Span(output_[i], stride_[i]));
  const Kernel kernel = Choose(cpu::ConvolutionPart::kWeightGradient, x.element(), batch, inputs,
                               outputs, input_, spread);
  if (kernel == Kernel::kLibrary)
    return Library(cpu::ConvolutionPart::kWeightGradient, x, dy, result);
  if (kernel == Kernel::kElementwise) {
    Value padded = Padded(x);
    std::vector<Value> taps;
    ForEachTap(kernel_, [&](const Dims& tap) {
      Value sum = Reduce(Multiply(Tap(padded, tap), dy), batch_and_map, ReduceOp::kAdd);
      taps.push_back(Reshape(sum, {outputs, 1}));
    });
    return Reshape(Concatenate(taps, 1), result);
  }
  if (kernel == Kernel::kProduct) {
    Value grad = GroupChannels(dy), patches = Patches(x);
    stablehlo::DotDimensionNumbers numbers{.lhs_batch = {1}, .rhs_batch = {0}};
    numbers.lhs_contracting = DimsBetween(0, grad.rank(), {1, 2});
    numbers.rhs_contracting = DimsBetween(2, patches.rank());
    Value taps = Dot(platform_, grad, patches, numbers);
    return Reshape(taps, result);
  }
  auto numbers = ConvolutionDimensionNumbers::Nchw(static_cast<int64_t>(rank_));
  std::swap(numbers.kernel_input_feature, numbers.kernel_output_feature);
  std::swap(numbers.output_batch, numbers.output_feature);
  std::swap(numbers.input_batch, numbers.input_feature);
  stablehlo::ConvolutionOptions options{.strides = dilation_, .rhs_dilation = stride_};
  for (size_t i = 0; i < rank_; ++i) {
    options.padding.push_back({padding_[i], window_[i] - 1 + spread[i] - input_[i] - padding_[i]});
  }
  if (groups_ == 1 || !cpu_) {
    options.batch_group_count = groups_;
  } else {
    // XLA:CPU is far slower with batch groups than with the same groups as feature groups.
    x = Reshape(x, Join({batch, groups_, inputs / groups_}, input_));
    Dims order = DimsBetween(0, x.rank());
    std::swap(order[0], order[2]);
    x = Reshape(Transpose(x, order), Join({inputs / groups_, groups_ * batch}, input_));
    std::swap(numbers.input_batch, numbers.input_feature);
    options.feature_group_count = groups_;
  }
  return Convolve(x, dy, numbers, options);
}

/// XLA:CPU computes half types in float in any case; cuDNN itself accumulates in float.
ElementType ConvolutionElement(const LoweringContext& cx, Value x) {
  return runtime::IsHost(cx.platform()) ? ComputeType(x.element()) : x.element();
}

bool IsEmpty(Value x) { return Product(x.dims()) == 0; }

/// `x` with a batch dimension of size 1 if it has only `rank` dimensions.
Value WithBatch(Value x, int64_t rank) {
  return x.rank() > rank ? x : Reshape(x, Join({1}, x.dims()));
}

void CheckOutputPadding(bool transposed, const Dims& output_padding, const Dims& stride,
                        const Dims& dilation) {
  for (size_t i = 0; i < output_padding.size(); ++i) {
    TORCH_CHECK(output_padding[i] >= 0, "negative output_padding is not supported");
    TORCH_CHECK(!transposed || output_padding[i] < std::max(stride[i], dilation[i]),
                "output padding must be smaller than either stride or dilation, but got ",
                output_padding[i], " for a stride of ", stride[i], " and a dilation of ",
                dilation[i]);
  }
}

/// How many windows fit in each dimension.
Dims PatchCounts(const Dims& input, c10::IntArrayRef kernel, c10::IntArrayRef dilation,
                 c10::IntArrayRef padding, c10::IntArrayRef stride) {
  const size_t rank = input.size();
  const Dims kernels = PerDimension(kernel, rank), dilations = PerDimension(dilation, rank),
             paddings = PerDimension(padding, rank), strides = PerDimension(stride, rank);
  Dims counts;
  for (size_t i = 0; i < rank; ++i) {
    TORCH_CHECK(strides[i] > 0, "stride should be greater than zero, but got ", strides[i]);
    counts.push_back((input[i] + 2 * paddings[i] - Span(kernels[i], dilations[i])) / strides[i] +
                     1);
  }
  return counts;
}

}  // namespace

Value convolution(LoweringContext& cx, Value input, Value weight, std::optional<Value> bias,
                  c10::IntArrayRef stride, c10::IntArrayRef padding, c10::IntArrayRef dilation,
                  bool transposed, c10::IntArrayRef output_padding, int64_t groups) {
  CheckOutputPadding(transposed, PerDimension(output_padding, input.rank() - 2),
                     PerDimension(stride, input.rank() - 2),
                     PerDimension(dilation, input.rank() - 2));
  TORCH_CHECK(groups > 0, "non-positive groups is not supported");
  TORCH_CHECK(input.element() == weight.element(), "Input type (", input.type().ToString(),
              ") and weight type (", weight.type().ToString(), ") should be the same");
  TORCH_CHECK(weight.dim(0) >= groups, "Given groups=", groups, ", expected weight to be at least ",
              groups, " at dimension 0, but got ", weight.type().ToString());
  const ElementType element = ConvolutionElement(cx, input);
  const Dims dims = cx.output_dims(), from = Spatial(input.dims()), to = Spatial(dims);
  Geometry geometry(cx, input.element(), transposed ? to : from, transposed ? from : to,
                    Spatial(weight.dims()), stride, padding, dilation, groups);
  Value x = geometry.WholeMap(Convert(input, element));
  Value w = geometry.WholeMap(Convert(weight, element)), y;
  if (IsEmpty(x) || IsEmpty(w) || Product(dims) == 0) {
    y = Constant(cx.builder(), 0, {element, dims});
  } else {
    if (!transposed) return geometry.WholeMap(ToOutput(cx, geometry.Forward(x, w, bias)));
    y = geometry.WholeMap(geometry.InputGradient(x, w));
  }
  if (bias) y = Add(y, BroadcastInDim(Convert(*bias, element), dims, {1}));
  return ToOutput(cx, y);
}

std::vector<Value> convolution_backward(LoweringContext& cx, Value grad_output, Value input,
                                        Value weight,
                                        std::optional<c10::IntArrayRef> /*bias_sizes*/,
                                        c10::IntArrayRef stride, c10::IntArrayRef padding,
                                        c10::IntArrayRef dilation, bool transposed,
                                        c10::IntArrayRef /*output_padding*/, int64_t groups,
                                        const std::vector<bool>& /*output_mask*/) {
  const ElementType element = ConvolutionElement(cx, input);
  const Dims from = Spatial(input.dims()), to = Spatial(grad_output.dims());
  Geometry geometry(cx, input.element(), transposed ? to : from, transposed ? from : to,
                    Spatial(weight.dims()), stride, padding, dilation, groups);
  Value x = geometry.WholeMap(Convert(input, element));
  Value w = geometry.WholeMap(Convert(weight, element));
  Value dy = geometry.WholeMap(Convert(grad_output, element));
  const bool empty = IsEmpty(x) || IsEmpty(w) || IsEmpty(dy);
  std::vector<Value> gradients(3);
  auto set = [&](size_t i, auto gradient) {
    if (!cx.node().shape(i)) return;  // masked out
    gradients[i] = empty ? Constant(cx.builder(), 0, cx.output_type(i))
                         : geometry.WholeMap(Convert(gradient(), cx.output_element(i)));
  };
  set(0, [&] { return transposed ? geometry.Forward(dy, w) : geometry.InputGradient(dy, w); });
  set(1,
      [&] { return transposed ? geometry.WeightGradient(dy, x) : geometry.WeightGradient(x, dy); });
  if (cx.node().shape(2)) {
    Value sum =
        Reduce(Convert(dy, ComputeType(element)), DimsBetween(0, dy.rank(), {1}), ReduceOp::kAdd);
    gradients[2] = Convert(sum, cx.output_element(2));
  }
  return gradients;
}

Value im2col(LoweringContext& cx, Value self, c10::IntArrayRef kernel_size,
             c10::IntArrayRef dilation, c10::IntArrayRef padding, c10::IntArrayRef stride) {
  if (cx.output_type().num_elements() == 0) return Constant(cx.builder(), 0, cx.output_type());
  Value x = WithBatch(self, 3);
  const Dims input = Spatial(x.dims());
  Geometry geometry(cx, self.element(), input,
                    PatchCounts(input, kernel_size, dilation, padding, stride),
                    PerDimension(kernel_size, 2), stride, padding, dilation, 1);
  Value patches = geometry.Patches(x);
  patches = Reshape(patches, {patches.dim(1), x.dim(0), cx.output_type().dims.back()});
  return Reshape(Transpose(patches, {1, 0, 2}), cx.output_dims());
}

Value col2im(LoweringContext& cx, Value self, c10::IntArrayRef output_size,
             c10::IntArrayRef kernel_size, c10::IntArrayRef dilation, c10::IntArrayRef padding,
             c10::IntArrayRef stride) {
  if (IsEmpty(self)) return Constant(cx.builder(), 0, cx.output_type());
  const Dims kernel = PerDimension(kernel_size, 2), size = PerDimension(output_size, 2);
  const Dims counts = PatchCounts(size, kernel_size, dilation, padding, stride);
  Geometry geometry(cx, self.element(), size, counts, kernel, stride, padding, dilation, 1);
  Value x = WithBatch(Convert(self, ComputeType(self.element())), 2);
  x = Transpose(x, {1, 0, 2});
  x = Reshape(x, Join({x.dim(0) / Product(kernel), Product(kernel), x.dim(1)}, counts));
  return Reshape(ToOutputElement(cx, SwapLeading(geometry.SumPatches(x))), cx.output_dims());
}

}  // namespace torch_xla::lowering::aten

namespace torch_xla {

at::Tensor XLANativeFunctions::convolution(const at::Tensor& input, const at::Tensor& weight,
                                           const std::optional<at::Tensor>& bias,
                                           at::IntArrayRef stride, at::IntArrayRef padding,
                                           at::IntArrayRef dilation, bool transposed,
                                           at::IntArrayRef output_padding, int64_t groups) {
  // Elsewhere this operator calls `_convolution`, and torch.jit.trace expects to record that.
  if (c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::Tracer)) [[unlikely]] {
    return at::_convolution(input, weight, bias, stride, padding, dilation, transposed,
                            output_padding, groups, false, false, false, false);
  }
  ir::ops::convolution.counter->Add();
  aten::NodeBuilder builder(ir::ops::convolution);
  builder.Add(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups);
  return builder.Single();
}

at::Tensor XLANativeFunctions::_convolution(const at::Tensor& input, const at::Tensor& weight,
                                            const std::optional<at::Tensor>& bias,
                                            at::IntArrayRef stride, at::IntArrayRef padding,
                                            at::IntArrayRef dilation, bool transposed,
                                            at::IntArrayRef output_padding, int64_t groups,
                                            bool /*benchmark*/, bool /*deterministic*/,
                                            bool /*cudnn_enabled*/, bool /*allow_tf32*/) {
  return at::convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding,
                         groups);
}

}  // namespace torch_xla
