// Softmax and the losses with their gradients. Half types are computed in float.
#include <limits>
#include <optional>

#include "XLALowerings.h"
#include "cpu/calls.h"
#include "cpu/choices.h"
#include "lowering/elementwise.h"
#include "lowering/kernel_choice.h"
#include "lowering/library_call.h"
#include "lowering/patterns.h"
#include "lowering/scalar_argument.h"
#include "ops/indexing.h"
#include "ops/reduction.h"
#include "stablehlo/arithmetic.h"

namespace torch_xla::lowering {
namespace {

bool CallsRows(const LoweringContext& cx, const char* operation, Value x, const Dims& dims) {
  const bool is_half = x.element() == ElementType::kBF16;
  if (!is_half && x.element() != ElementType::kF32) return false;
  if (x.rank() < 2 || dims != Dims{x.rank() - 1}) return false;
  using namespace cpu::choices;
  const int64_t elements = x.type().num_elements();
  return ChoosesLibrary(cx, operation,
                        {is_half ? "bf16" : "f32", x.dim(-1) >= kLongRow ? "long" : "short",
                         elements >= kManyOfRows   ? "many"
                         : elements >= kSomeOfRows ? "some"
                                                   : "few"});
}

/// Whether a call is the fastest way to the row sums of log-softmax over `dims`.
bool CallsRowSums(const LoweringContext& cx, Value x, const Dims& dims) {
  return CallsRows(cx, "log_softmax", x, dims);
}

LogSoftmax CallRowSums(const BiasedRows& rows) {
  std::vector<Value> operands{rows.x};
  if (rows.bias) operands.push_back(*rows.bias);
  Dims sums = rows.x.dims();
  sums.pop_back();
  const stablehlo::Type type(rows.x.element(), sums);
  const auto results = CallLibrary(cpu::kRowSumsTarget, operands, {type, type});
  return {rows, results[0], results[1]};
}

/// The gradient of log-softmax's argument. The gradient of its result is `grad` [rows] at the class
/// of each row, and zero at all other classes.
Value CallCrossEntropyBackward(const LogSoftmax& forward, Value classes, Value grad) {
  const BiasedRows& rows = forward.rows;
  std::vector<Value> operands{rows.x, forward.maximum, forward.log_sum, classes, grad};
  if (rows.bias) operands.push_back(*rows.bias);
  return CallLibrary(cpu::kCrossEntropyBackwardTarget, operands, {rows.x.type()})[0];
}

/// The softmax of `x` over `dims`. With `safe` a row of only -inf becomes zeros.
std::optional<Value> CallSoftmax(const LoweringContext& cx, Value x, const Dims& dims, bool safe) {
  if (!CallsRows(cx, "softmax", x, dims)) return std::nullopt;
  return CallLibrary(cpu::kSoftmaxTarget, {x}, {x.type()}, cpu::SoftmaxCall{safe})[0];
}

/// The gradient of the softmax's argument from the gradient of its result `output`.
std::optional<Value> CallSoftmaxBackward(const LoweringContext& cx, Value grad, Value output,
                                         const Dims& dims) {
  if (grad.element() != output.element() || !CallsRows(cx, "softmax", output, dims)) {
    return std::nullopt;
  }
  return CallLibrary(cpu::kSoftmaxBackwardTarget, {grad, output}, {output.type()})[0];
}

}  // namespace
}  // namespace torch_xla::lowering

namespace torch_xla::lowering::aten {
namespace {

/// at::Reduction's numbers (ATen/core/Reduction.h).
enum Reduction : int64_t { kNone = 0, kMean = 1, kSum = 2 };

/// x in the type that PyTorch computes output 0 in.
Value Wide(LoweringContext& cx, Value x) { return Convert(x, ComputeType(cx.output_element())); }

/// Reduces over the dimensions and keeps them with size 1.
Value ReduceKept(Value x, const Dims& dims, ReduceOp op) {
  return KeepDims(Reduce(x, dims, op), x.dims(), dims);
}

Value ReduceAll(Value x, ReduceOp op = ReduceOp::kAdd) {
  return Reduce(x, ReductionDims(std::nullopt, x.rank()), op);
}

Dims OneDim(int64_t dim, Value x) { return ReductionDims(c10::IntArrayRef(dim), x.rank()); }

/// Reduces an elementwise loss as the argument `reduction` says.
Value Reduced(LoweringContext& cx, Value loss, int64_t reduction) {
  if (reduction == kNone) return ToOutput(cx, loss);
  Value sum = Sum(cx, loss, ReductionDims(std::nullopt, loss.rank()));
  return ToOutput(cx, reduction == kMean ? sum / loss.type().num_elements() : sum);
}

/// The gradient of the elementwise loss of `input` before the reduction.
Value Unreduced(LoweringContext& cx, Value grad_output, Value input, int64_t reduction) {
  Value grad = To(grad_output, ComputeType(cx.output_element()), cx.output_dims());
  return reduction == kMean ? grad / input.type().num_elements() : grad;
}

// ---- Negative log likelihood: classes are dimension 1, or the only one.

int64_t ClassDim(Value self) { return self.rank() > 1 ? 1 : 0; }

/// The class weights with the rank of `self`, or ones.
Value ClassWeights(LoweringContext& cx, Value self, std::optional<Value> weight) {
  Dims dims(self.rank(), 1);
  if (!weight) return Constant(cx.builder(), 1, {ComputeType(cx.output_element()), dims});
  dims[ClassDim(self)] = weight->dim(0);
  return Reshape(Wide(cx, *weight), dims);
}

/// Whether a class is this number. (A class of 8 bits may be too narrow to hold the number.)
Value IsClass(Value classes, const Number& number) {
  Value wide = Convert(classes, ElementType::kS64);
  return Equal(wide, number.Like(wide));
}

/// The elements of `x` that `target` names in the class dimension. A class out of range, which an
/// ignore_index may be, gives an arbitrary element.
Value PickClass(Value x, Value target) {
  if (target.type().num_elements() == 0) {
    return Constant(x.builder(), 0, {x.element(), target.dims()});
  }
  const int64_t class_dim = ClassDim(x);
  stablehlo::GatherDimensionNumbers numbers{.collapsed_slice_dims = {class_dim},
                                            .start_index_map = {class_dim},
                                            .index_vector_dim = target.rank()};
  for (int64_t dim = 0; dim < x.rank(); ++dim) {
    if (dim == class_dim) continue;
    numbers.start_indices_batching_dims.push_back(
        static_cast<int64_t>(numbers.operand_batching_dims.size()));
    numbers.operand_batching_dims.push_back(dim);
  }
  Dims indices = target.dims();
  indices.push_back(1);
  return Gather(x, Reshape(target, indices), numbers, Dims(x.rank(), 1));
}

}  // namespace

std::vector<Value> NllForward(LoweringContext& cx, Value self, Value target,
                              std::optional<Value> weight, int64_t reduction,
                              const Number& ignore_index) {
  Value ignored = IsClass(target, ignore_index);
  Value w = weight ? PickClass(Wide(cx, *weight), target)
                   : Constant(cx.builder(), 1, {ComputeType(cx.output_element()), target.dims()});
  w = Select(ignored, 0, w);
  Value loss = Select(ignored, 0, -(PickClass(Wide(cx, self), target) * w));
  Value total_weight = ReduceAll(w);
  if (reduction == kNone) {
    // PyTorch leaves the total at 0 for a batch and gives it for one sample.
    if (self.rank() > 1) total_weight = FullLike(total_weight, 0);
  } else {
    loss = ReduceAll(loss);
    if (reduction == kMean) loss = loss / total_weight;
  }
  return {ToOutput(cx, loss), Convert(total_weight, cx.output_element(1))};
}

// Elementwise instead of a scatter, so that it fuses with the gradient of the softmax.
Value NllBackward(LoweringContext& cx, Value grad_output, Value self, Value target,
                  std::optional<Value> weight, int64_t reduction, const Number& ignore_index,
                  Value total_weight) {
  const int64_t class_dim = ClassDim(self);
  auto per_sample = [&](Value x) {  // with a class dimension of size 1
    if (x.rank() == 0 && target.rank() > 0) return x;
    Dims dims = self.dims();
    dims[class_dim] = 1;
    return Reshape(x, dims);
  };
  Value grad = Wide(cx, grad_output);
  if (reduction == kMean) grad = grad / Wide(cx, total_weight);
  grad = per_sample(grad) * ClassWeights(cx, self, weight);
  Value classes = Iota(cx.builder(), {target.element(), self.dims()}, class_dim);
  Value hit = Equal(classes, BroadcastTo(per_sample(target), self.dims()));
  hit = And(hit, Not(IsClass(classes, ignore_index)));
  return ToOutput(cx, Select(hit, BroadcastTo(-grad, self.dims()), 0));
}

namespace {

// ---- Margin losses: samples are [N, C], or a single sample [C].

/// `x` as rows. The dimensions of a target follow beside it.
Value AsRows(Value x) { return x.rank() == 2 ? x : Reshape(x, {1, x.type().num_elements()}); }

/// x [N] as a column [N, 1].
Value AsColumn(Value x) { return Reshape(x, {x.type().num_elements(), 1}); }

/// The gradient of the mean over classes, by each pair of classes, as a column.
Value MarginGradient(LoweringContext& cx, Value grad_output, Value x, int64_t reduction) {
  Value grad = Wide(cx, grad_output) / x.dim(1);
  if (reduction == kMean) grad = grad / x.dim(0);
  return grad.rank() == 0 ? Reshape(grad, {1, 1}) : AsColumn(grad);
}

/// x where it is positive, else 0. NaN becomes 0, too, since the CPU asks `x > 0`.
Value Positive(Value x) { return Select(x > 0, x, 0); }

/// Reduces the sums of a margin loss, one per row, as the argument `reduction` says.
Value MarginLoss(LoweringContext& cx, Value sums, int64_t classes, int64_t reduction) {
  Value loss = sums / classes;
  if (reduction == kNone) return Reshape(Convert(loss, cx.output_element()), cx.output_dims());
  return Reduced(cx, loss, reduction);
}

/// For multi_margin_loss: which class is the target, and margin - x[target] + x[class] for every
/// other class (0 for the target).
struct ClassMargins {
  Value is_target, z, weight;
};

ClassMargins MultiMargins(LoweringContext& cx, Value x, Value target, const Number& margin,
                          std::optional<Value> weight) {
  target = Reshape(target, {x.dim(0)});
  Value classes = Iota(cx.builder(), {target.element(), x.dims()}, 1);
  ClassMargins result;
  result.is_target = Equal(classes, BroadcastTo(AsColumn(target), x.dims()));
  Value own = ReduceKept(Select(result.is_target, x, 0), {1}, ReduceOp::kAdd);
  result.z = Select(result.is_target, 0, Positive(x - own + margin.Like(x)));
  if (weight) result.weight = AsColumn(Take(Wide(cx, *weight), 0, target));
  return result;
}

/// For multilabel_margin_loss, by sample, target and class: 1 - x[target] + x[class] if it is
/// positive and the class is not a target, else 0.
struct LabelMargins {
  Value targets;  // [N, C] classes; those after the first -1 are C, out of range
  Value z;        // [N, C, C]: sample, target, class
};

LabelMargins MultiLabelMargins(Value x, Value target, Value is_target) {
  const int64_t rows = x.dim(0), classes = x.dim(1);
  const Dims dims{rows, classes, classes};
  LabelMargins result;
  Value valid = Scan(target, 1, ReduceOp::kMin) >= 0;
  result.targets = Select(valid, target, classes);
  Value own = BroadcastInDim(TakeAlong(x, 1, result.targets), dims, {0, 1});
  Value z = Positive(1 - own + BroadcastInDim(x, dims, {0, 2}));
  Value counts =
      And(BroadcastInDim(valid, dims, {0, 1}), BroadcastInDim(Equal(is_target, 0), dims, {0, 2}));
  result.z = Select(counts, z, 0);
  return result;
}

// ---- Connectionist temporal classification (Graves et al. 2006), in logarithms. The states of
// a sample are its labels with blanks between and around them: [B, L], L = 2 S + 1.

constexpr double kNegInf = -std::numeric_limits<double>::infinity();

/// x [B, L] with its states moved by `by`: result[l] = x[l + by], and `fill` outside.
Value ShiftStates(Value x, int64_t by, stablehlo::Literal fill) {
  return Pad(x, ScalarLike(x, fill), {0, -by}, {0, by});
}

Value LogSumExp3(Value a, Value b, Value c) {
  Value largest = Maximum(Maximum(a, b), c);
  Value shift = Select(Equal(largest, kNegInf), 0, largest);
  return Log(Exponential(a - shift) + Exponential(b - shift) + Exponential(c - shift)) + shift;
}

struct CtcStates {
  Value labels;               // [T, B, L]: the class of each state
  Value log_probs;            // [T, B, L]: of that class
  Value place;                // [B, L]: the index l of a state
  Value skips;                // [B, L]: whether the second state before may enter it
  Value input_lengths, last;  // [B, 1]: the last is a blank
};

CtcStates FindCtcStates(Value log_probs, Value targets, Value input_lengths, Value target_lengths,
                        int64_t blank) {
  const int64_t batch = log_probs.dim(1), count = 2 * targets.dim(1) + 1;
  const Dims dims{log_probs.dim(0), batch, count};
  CtcStates states;
  targets = Convert(targets, ElementType::kS64);
  // Insert a blank before, between and after the labels.
  Value labels = Pad(targets, ScalarLike(targets, blank), {0, 1}, {0, 1}, {0, 1});
  if (targets.dim(1) == 0)
    labels = Constant(targets.builder(), blank, {labels.element(), {batch, count}});
  states.labels = BroadcastInDim(labels, dims, {1, 2});
  states.log_probs = TakeAlong(log_probs, 2, states.labels);
  states.place = Iota(labels.builder(), labels.type(), 1);
  Value is_label = Equal(Remainder(states.place, FullLike(labels, 2)), 1);
  states.skips =
      And(And(is_label, states.place >= 3), NotEqual(labels, ShiftStates(labels, -2, blank)));
  states.input_lengths = Convert(AsColumn(input_lengths), ElementType::kS64);
  states.last = Convert(AsColumn(target_lengths), ElementType::kS64) * 2;
  return states;
}

/// Runs `step` (time, state before) -> state over all times, and returns all states [T, B, L].
template <typename Step>
Value OverTime(Value like, bool backward, const Step& step) {
  const int64_t times = like.dim(0);
  Value begin = Scalar(like, 0, ElementType::kS64);
  Value first = Constant(like.builder(), kNegInf, {like.element(), {like.dim(1), like.dim(2)}});
  auto more = [&](std::span<const Value> v) -> std::vector<Value> { return {v[0] < times}; };
  auto next = [&](std::span<const Value> v) -> std::vector<Value> {
    Value t = backward ? times - 1 - v[0] : v[0];
    Value state = step(t, v[1]);
    return {v[0] + 1, state, SetTime(v[2], state, t)};
  };
  return stablehlo::While({begin, first, FullLike(like, kNegInf)}, more, next)[2];
}

// ---- Softmax

/// The gradient of log-softmax, if the gradient `grad` of its result is zero except at `target`.
std::optional<Value> CrossEntropyBackward(const LoweringContext& cx, Value grad, Value target) {
  const std::optional<LogSoftmax> forward = FindLogSoftmax(cx);
  if (!forward || grad.rank() != 2 || grad.element() != ElementType::kF32 ||
      target.element() != ElementType::kS64) {
    return std::nullopt;
  }
  return CallCrossEntropyBackward(*forward, target, PickClass(grad, target));
}

/// With `safe` a row of only -inf along `dims` becomes zeros.
Value Softmax(LoweringContext& cx, Value self, const Dims& dims, bool safe) {
  // Half types are computed in float, to be rounded only once.
  if (self.element() == cx.output_element()) {
    if (const auto made = CallSoftmax(cx, self, dims, safe)) return *made;
  }
  Value x = Wide(cx, self);
  Value terms = Exponential(x - ReduceKept(x, dims, ReduceOp::kMax));
  Value result = terms / ReduceKept(terms, dims, ReduceOp::kAdd);
  if (safe) {
    Value masked = ReduceKept(Equal(self, FullLike(self, kNegInf)), dims, ReduceOp::kAnd);
    result = Select(BroadcastTo(masked, result.dims()), 0, result);
  }
  return ToOutput(cx, result);
}

}  // namespace

Value _log_softmax(LoweringContext& cx, Value self, int64_t dim, bool /*half_to_float*/) {
  const Dims dims = OneDim(dim, self);
  if (IsEmpty(self)) return ToOutput(cx, self);
  Value x = Wide(cx, self);
  if (CallsRowSums(cx, x, dims)) {
    const LogSoftmax sums = CallRowSums(FindProduct(cx, x));
    KeepLogSoftmax(cx, sums);
    x = x - KeepDims(sums.maximum, x.dims(), dims);
    return ToOutput(cx, x - KeepDims(sums.log_sum, x.dims(), dims));
  }
  x = x - ReduceKept(x, dims, ReduceOp::kMax);
  return ToOutput(cx, x - Log(ReduceKept(Exponential(x), dims, ReduceOp::kAdd)));
}

Value _log_softmax_backward_data(LoweringContext& cx, Value grad_output, Value output, int64_t dim,
                                 c10::ScalarType /*input_dtype*/) {
  const Dims dims = OneDim(dim, output);
  if (IsEmpty(output)) return ToOutput(cx, output);  // of any dtype, unlike the formula
  Value grad = Wide(cx, grad_output), y = Wide(cx, output);
  const std::optional<Value> target = FindOnlyClass(cx, cx.node().operands()[0], dims);
  if (target) {
    if (const auto called = CrossEntropyBackward(cx, grad, *target)) return ToOutput(cx, *called);
  }
  Value sum = target ? KeepDims(PickClass(grad, *target), grad.dims(), dims)
                     : ReduceKept(grad, dims, ReduceOp::kAdd);
  return ToOutput(cx, grad - Exponential(y) * sum);
}

Value _softmax(LoweringContext& cx, Value self, int64_t dim, bool /*half_to_float*/) {
  if (IsEmpty(self)) return ToOutput(cx, self);
  return Softmax(cx, self, OneDim(dim, self), /*safe=*/false);
}

Value _safe_softmax(LoweringContext& cx, Value self, int64_t dim,
                    std::optional<c10::ScalarType> /*dtype*/) {
  if (IsEmpty(self)) return ToOutput(cx, self);
  return Softmax(cx, self, OneDim(dim, self), /*safe=*/true);
}

Value _softmax_backward_data(LoweringContext& cx, Value grad_output, Value output, int64_t dim,
                             c10::ScalarType /*input_dtype*/) {
  const Dims dims = OneDim(dim, output);
  if (IsEmpty(output)) return ToOutput(cx, output);
  if (output.element() == cx.output_element()) {
    if (const auto made = CallSoftmaxBackward(cx, grad_output, output, dims)) return *made;
  }
  Value grad = Wide(cx, grad_output), y = Wide(cx, output);
  Value sum = ReduceKept(grad * y, dims, ReduceOp::kAdd);
  return ToOutput(cx, (grad - sum) * y);
}

Value binary_cross_entropy(LoweringContext& cx, Value self, Value target,
                           std::optional<Value> weight, int64_t reduction) {
  Value x = Wide(cx, self), t = Wide(cx, target);
  // PyTorch bounds the logarithms, so that a wrong but certain prediction has a finite loss.
  Value loss = (t - 1) * Maximum(LogPlusOne(-x), -100) - t * Maximum(Log(x), -100);
  return Reduced(cx, weight ? loss * Wide(cx, *weight) : loss, reduction);
}

Value binary_cross_entropy_backward(LoweringContext& cx, Value grad_output, Value self,
                                    Value target, std::optional<Value> weight, int64_t reduction) {
  auto [x, t] = ToCompute(cx, self, target);
  Value grad = Unreduced(cx, grad_output, self, reduction);
  grad = grad * (x - t) / Maximum((1 - x) * x, 1e-12);
  return ToOutput(cx, weight ? grad * Wide(cx, *weight) : grad);
}

Value huber_loss(LoweringContext& cx, Value self, Value target, int64_t reduction,
                 const Number& delta) {
  Value z = Abs(Wide(cx, self) - Wide(cx, target)), d = delta.Like(z);
  return Reduced(cx, Select(z <= d, 0.5 * z * z, d * (z - 0.5 * d)), reduction);
}

Value huber_loss_backward(LoweringContext& cx, Value grad_output, Value self, Value target,
                          int64_t reduction, const Number& delta) {
  auto [x, t] = ToCompute(cx, self, target);
  Value grad = Unreduced(cx, grad_output, self, reduction), z = x - t;
  Value d = delta.Like(z);
  Value outside = Select(z >= d, d * grad, z * grad);
  return ToOutput(cx, Select(z <= -d, -d * grad, outside));
}

Value mse_loss(LoweringContext& cx, Value self, Value target, int64_t reduction) {
  Value difference = Wide(cx, self) - Wide(cx, target);
  return Reduced(cx, difference * difference, reduction);
}

Value mse_loss_backward(LoweringContext& cx, Value grad_output, Value self, Value target,
                        int64_t reduction) {
  auto [x, t] = ToCompute(cx, self, target);
  return ToOutput(cx, 2 * (x - t) * Unreduced(cx, grad_output, self, reduction));
}

Value smooth_l1_loss(LoweringContext& cx, Value self, Value target, int64_t reduction,
                     const Number& beta) {
  Value z = Abs(Wide(cx, self) - Wide(cx, target)), b = beta.Like(z);
  return Reduced(cx, Select(z < b, 0.5 * z * z / b, z - 0.5 * b), reduction);
}

Value smooth_l1_loss_backward(LoweringContext& cx, Value grad_output, Value self, Value target,
                              int64_t reduction, const Number& beta) {
  auto [x, t] = ToCompute(cx, self, target);
  Value grad = Unreduced(cx, grad_output, self, reduction), z = x - t;
  Value b = beta.Like(z);
  return ToOutput(cx, Select(z <= -b, -grad, Select(z >= b, grad, z * grad / b)));
}

Value multi_margin_loss(LoweringContext& cx, Value self, Value target, const c10::Scalar& p,
                        const Number& margin, std::optional<Value> weight, int64_t reduction) {
  Value x = AsRows(Wide(cx, self));
  const ClassMargins margins = MultiMargins(cx, x, target, margin, weight);
  Value terms = p.toLong() == 1 ? margins.z : margins.z * margins.z;
  if (weight) terms = terms * margins.weight;
  return MarginLoss(cx, Reduce(terms, {1}, ReduceOp::kAdd), x.dim(1), reduction);
}

Value multi_margin_loss_backward(LoweringContext& cx, Value grad_output, Value self, Value target,
                                 const c10::Scalar& p, const Number& margin,
                                 std::optional<Value> weight, int64_t reduction) {
  Value x = AsRows(Wide(cx, self));
  const ClassMargins margins = MultiMargins(cx, x, target, margin, weight);
  Value grad = p.toLong() == 1 ? Convert(margins.z > 0, x.element()) : 2 * margins.z;
  if (weight) grad = grad * margins.weight;
  grad = grad * MarginGradient(cx, grad_output, x, reduction);
  Value own = -ReduceKept(grad, {1}, ReduceOp::kAdd);
  grad = Select(margins.is_target, BroadcastTo(own, x.dims()), grad);
  return Reshape(Convert(grad, cx.output_element()), cx.output_dims());
}

std::vector<Value> multilabel_margin_loss_forward(LoweringContext& cx, Value self, Value target,
                                                  int64_t reduction) {
  Value x = AsRows(Wide(cx, self)), labels = AsRows(target);
  Value valid = Scan(labels, 1, ReduceOp::kMin) >= 0;
  Value is_target = PutAlong(Constant(cx.builder(), 0, x.type()), 1,
                             Select(valid, labels, x.dim(1)), Constant(cx.builder(), 1, x.type()));
  Value z = MultiLabelMargins(x, labels, is_target).z;
  return {MarginLoss(cx, Reduce(z, {1, 2}, ReduceOp::kAdd), x.dim(1), reduction),
          Reshape(Convert(is_target, cx.output_element(1)), cx.output_dims(1))};
}

Value multilabel_margin_loss_backward(LoweringContext& cx, Value grad_output, Value self,
                                      Value target, int64_t reduction, Value is_target) {
  Value x = AsRows(Wide(cx, self));
  const LabelMargins margins = MultiLabelMargins(x, AsRows(target), AsRows(is_target));
  Value active = Convert(margins.z > 0, x.element());
  Value grad = Reduce(active, {1}, ReduceOp::kAdd);
  grad = PutAlong(grad, 1, margins.targets, -Reduce(active, {2}, ReduceOp::kAdd), ReduceOp::kAdd);
  grad = grad * MarginGradient(cx, grad_output, x, reduction);
  return Reshape(Convert(grad, cx.output_element()), cx.output_dims());
}

std::vector<Value> _ctc_loss_Tensor(LoweringContext& cx, Value log_probs, Value targets,
                                    Value input_lengths, Value target_lengths, int64_t blank,
                                    bool) {
  const CtcStates states = FindCtcStates(log_probs, targets, input_lengths, target_lengths, blank);
  // A sample may begin with the blank or with its first label, if it has one.
  Value begins = states.place <= Minimum(states.last, 1);
  Value alpha = OverTime(states.log_probs, /*backward=*/false, [&](Value t, Value before) {
    Value skipped = Select(states.skips, ShiftStates(before, -2, kNegInf), kNegInf);
    Value entered = LogSumExp3(before, ShiftStates(before, -1, kNegInf), skipped);
    entered = Select(Equal(t, 0), Select(begins, FullLike(before, 0), kNegInf), entered);
    return entered + AtTime(states.log_probs, t);
  });
  // It ends in the last blank or the last label.
  const Dims column{1, log_probs.dim(1), 1};
  Value end = Reshape(Maximum(states.input_lengths - 1, 0), column);
  Value at_end = TakeAlong(alpha, 0, BroadcastTo(end, {1, alpha.dim(1), alpha.dim(2)}));
  at_end = Reshape(at_end, {alpha.dim(1), alpha.dim(2)});
  Value is_end = Or(Equal(states.place, BroadcastTo(states.last, at_end.dims())),
                    Equal(states.place, BroadcastTo(states.last - 1, at_end.dims())));
  Value final = Select(is_end, at_end, kNegInf);
  Value largest = ReduceKept(final, {1}, ReduceOp::kMax);
  largest = Select(Equal(largest, kNegInf), 0, largest);
  Value sum = ReduceKept(Exponential(final - largest), {1}, ReduceOp::kAdd);
  Value loss = -(Log(sum) + largest);
  // Without inputs the loss is 0 for no labels, and infinite otherwise.
  Value nothing = Select(Equal(states.last, 0), FullLike(loss, 0), -kNegInf);
  loss = Select(Equal(states.input_lengths, 0), nothing, loss);
  return {Reshape(loss, cx.output_dims()), Transpose(alpha, {1, 0, 2})};
}

Value _ctc_loss_backward_Tensor(LoweringContext& cx, Value grad, Value log_probs, Value targets,
                                Value input_lengths, Value target_lengths, Value neg_log_likelihood,
                                Value log_alpha, int64_t blank, bool zero_infinity) {
  const CtcStates states = FindCtcStates(log_probs, targets, input_lengths, target_lengths, blank);
  Value ends = Or(Equal(states.place, BroadcastTo(states.last, states.place.dims())),
                  Equal(states.place, BroadcastTo(states.last - 1, states.place.dims())));
  // Which states may be followed by the second state after them.
  Value skips = ShiftStates(states.skips, 2, false);
  Value beta = OverTime(states.log_probs, /*backward=*/true, [&](Value t, Value after) {
    Value skipped = Select(skips, ShiftStates(after, 2, kNegInf), kNegInf);
    Value left = LogSumExp3(after, ShiftStates(after, 1, kNegInf), skipped);
    Value is_end = BroadcastTo(Equal(states.input_lengths - 1, BroadcastTo(t, states.last.dims())),
                               after.dims());
    left = Select(is_end, Select(ends, FullLike(after, 0), kNegInf), left);
    return left + AtTime(states.log_probs, t);
  });
  // The probability that each state is passed at a time, given the labels.
  auto per_sample = [&](Value x) { return Reshape(x, {1, x.type().num_elements(), 1}); };
  Value passed = Exponential(Transpose(log_alpha, {1, 0, 2}) + beta - states.log_probs +
                             per_sample(neg_log_likelihood));
  passed = PutAlong(Constant(cx.builder(), 0, log_probs.type()), 2, states.labels, passed,
                    ReduceOp::kAdd);
  Value result = (Exponential(log_probs) - passed) * per_sample(grad);
  Value time = Iota(cx.builder(), {ElementType::kS64, log_probs.dims()}, 0);
  Value counts = time < BroadcastTo(per_sample(states.input_lengths), time.dims());
  if (zero_infinity) {
    Value finite = NotEqual(per_sample(neg_log_likelihood), -kNegInf);
    counts = And(counts, BroadcastTo(finite, counts.dims()));
  }
  return Select(counts, result, 0);
}

}  // namespace torch_xla::lowering::aten
