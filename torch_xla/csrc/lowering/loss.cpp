// Softmax and the losses with their gradients. Half types are computed in float.
#include <algorithm>

#include "XLALowerings.h"
#include "lowering/elementwise.h"
#include "stablehlo/arithmetic.h"

namespace torch_xla::lowering::aten {
namespace {

/// at::Reduction's numbers.
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

/// The elementwise loss as the argument `reduction` wants it.
Value Reduced(LoweringContext& cx, Value loss, int64_t reduction) {
  if (reduction == kNone) return ToOutput(cx, loss);
  Value sum = ReduceAll(loss);
  return ToOutput(cx, reduction == kMean ? sum / loss.type().num_elements() : sum);
}

/// The gradient of each element of the loss that `reduction` made of `input`'s.
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

/// The elements of `x` that `target` names in the class dimension. Classes out of range
/// (an ignore_index may be) give any element.
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

std::vector<Value> NllForward(LoweringContext& cx, Value self, Value target,
                              std::optional<Value> weight, int64_t reduction,
                              int64_t ignore_index) {
  Value ignored = Equal(target, ignore_index);
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

/// Elementwise, without a scatter: it fuses with the softmax's gradient.
Value NllBackward(LoweringContext& cx, Value grad_output, Value self, Value target,
                  std::optional<Value> weight, int64_t reduction, int64_t ignore_index,
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
  hit = And(hit, NotEqual(classes, ignore_index));
  return ToOutput(cx, Select(hit, BroadcastTo(-grad, self.dims()), 0));
}

}  // namespace

Value _log_softmax(LoweringContext& cx, Value self, int64_t dim, bool /*half_to_float*/) {
  const Dims dims = OneDim(dim, self);
  Value x = Wide(cx, self);
  x = x - ReduceKept(x, dims, ReduceOp::kMax);
  return ToOutput(cx, x - Log(ReduceKept(Exponential(x), dims, ReduceOp::kAdd)));
}

Value _log_softmax_backward_data(LoweringContext& cx, Value grad_output, Value output, int64_t dim,
                                 c10::ScalarType /*input_dtype*/) {
  Value grad = Wide(cx, grad_output), y = Wide(cx, output);
  Value sum = ReduceKept(grad, OneDim(dim, grad), ReduceOp::kAdd);
  return ToOutput(cx, grad - Exponential(y) * sum);
}

Value _softmax(LoweringContext& cx, Value self, int64_t dim, bool /*half_to_float*/) {
  const Dims dims = OneDim(dim, self);
  Value x = Wide(cx, self);
  Value terms = Exponential(x - ReduceKept(x, dims, ReduceOp::kMax));
  return ToOutput(cx, terms / ReduceKept(terms, dims, ReduceOp::kAdd));
}

Value _softmax_backward_data(LoweringContext& cx, Value grad_output, Value output, int64_t dim,
                             c10::ScalarType /*input_dtype*/) {
  Value grad = Wide(cx, grad_output), y = Wide(cx, output);
  Value sum = ReduceKept(grad * y, OneDim(dim, y), ReduceOp::kAdd);
  return ToOutput(cx, (grad - sum) * y);
}

Value binary_cross_entropy(LoweringContext& cx, Value self, Value target,
                           std::optional<Value> weight, int64_t reduction) {
  Value x = Wide(cx, self), t = Wide(cx, target);
  // PyTorch bounds the logarithms, so that a certain error has a finite loss.
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

Value huber_loss(LoweringContext& cx, Value self, Value target, int64_t reduction, double delta) {
  Value z = Abs(Wide(cx, self) - Wide(cx, target));
  return Reduced(cx, Select(z <= delta, 0.5 * z * z, delta * (z - 0.5 * delta)), reduction);
}

Value huber_loss_backward(LoweringContext& cx, Value grad_output, Value self, Value target,
                          int64_t reduction, double delta) {
  auto [x, t] = ToCompute(cx, self, target);
  Value grad = Unreduced(cx, grad_output, self, reduction), z = x - t;
  Value outside = Select(z >= delta, delta * grad, z * grad);
  return ToOutput(cx, Select(z <= -delta, -delta * grad, outside));
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

Value nll_loss2d_backward(LoweringContext& cx, Value grad_output, Value self, Value target,
                          std::optional<Value> weight, int64_t reduction, int64_t ignore_index,
                          Value total_weight) {
  return NllBackward(cx, grad_output, self, target, weight, reduction, ignore_index, total_weight);
}

std::vector<Value> nll_loss2d_forward(LoweringContext& cx, Value self, Value target,
                                      std::optional<Value> weight, int64_t reduction,
                                      int64_t ignore_index) {
  return NllForward(cx, self, target, weight, reduction, ignore_index);
}

Value nll_loss_backward(LoweringContext& cx, Value grad_output, Value self, Value target,
                        std::optional<Value> weight, int64_t reduction, int64_t ignore_index,
                        Value total_weight) {
  return NllBackward(cx, grad_output, self, target, weight, reduction, ignore_index, total_weight);
}

std::vector<Value> nll_loss_forward(LoweringContext& cx, Value self, Value target,
                                    std::optional<Value> weight, int64_t reduction,
                                    int64_t ignore_index) {
  return NllForward(cx, self, target, weight, reduction, ignore_index);
}

Value smooth_l1_loss(LoweringContext& cx, Value self, Value target, int64_t reduction,
                     double beta) {
  Value z = Abs(Wide(cx, self) - Wide(cx, target));
  return Reduced(cx, Select(z < beta, 0.5 * z * z / beta, z - 0.5 * beta), reduction);
}

Value smooth_l1_loss_backward(LoweringContext& cx, Value grad_output, Value self, Value target,
                              int64_t reduction, double beta) {
  auto [x, t] = ToCompute(cx, self, target);
  Value grad = Unreduced(cx, grad_output, self, reduction), z = x - t;
  return ToOutput(cx, Select(z <= -beta, -grad, Select(z >= beta, grad, z * grad / beta)));
}

}  // namespace torch_xla::lowering::aten
