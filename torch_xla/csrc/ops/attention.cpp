// Attention. On the CPU it is the flash kernel wherever PyTorch would take that, on a GPU cuDNN's,
// and else the composition of other operators. Tensor subclasses (DTensor) get the operator that
// PyTorch has for GPUs. Arguments that the CPU refuses are refused here, too.
#include <ATen/CompositeImplicitAutogradFunctions.h>
#include <ATen/Context.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/where.h>

#include <limits>
#include <optional>

#include "XLALowerings.h"
#include "XLANativeFunctions.h"
#include "aten/bridge.h"
#include "aten/cpu_kernel.h"
#include "cpu/calls.h"
#include "cpu/choices.h"
#include "lowering/elementwise.h"
#include "lowering/kernel_choice.h"
#include "lowering/library_call.h"
#include "lowering/row_major.h"
#include "ops/attention_cudnn.h"
#include "ops/dot.h"
#include "ops/matmul.h"
#include "stablehlo/arithmetic.h"
#include "tensor/device.h"

namespace torch_xla {
namespace {

/// A CPU tensor with the sizes of `tensor`, which takes the memory of one element.
at::Tensor StandIn(const at::Tensor& tensor) {
  return at::empty({}, tensor.options().device(at::kCPU)).expand_symint(tensor.sym_sizes());
}

/// The CPU reads a mask's last two dimensions when it chooses its kernel, so a mask with fewer
/// fails there, but only if the choice gets that far. So ask for the CPU's own choice, except for
/// arguments that the CPU refuses or answers earlier.
void CheckMask(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
               const at::Tensor& mask, double dropout, bool causal, std::optional<double> scale,
               bool grouped) {
  const bool fits = mask.scalar_type() == at::kBool || mask.scalar_type() == at::kFloat ||
                    mask.scalar_type() == query.scalar_type();
  if (mask.dim() >= 2 || mask.requires_grad() || !fits ||
      query.scalar_type() != key.scalar_type() || query.scalar_type() != value.scalar_type() ||
      query.sym_numel() == 0 || value.sym_numel() == 0) {
    return;
  }
  at::_fused_sdp_choice(StandIn(query), StandIn(key), StandIn(value), StandIn(mask), dropout,
                        causal, scale, grouped);
}

/// Whether a tensor is of this device, or traced for it, without a transform of torch.func.
/// Transforms need the operators that the composition consists of.
bool IsPlain(const at::Tensor& tensor) {
  constexpr c10::DispatchKeySet kTransforms(
      {c10::DispatchKey::FuncTorchGradWrapper, c10::DispatchKey::FuncTorchBatched});
  return tensor.device().is_xla() && !tensor.key_set().has_any(kTransforms) &&
         !tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides() &&
         !tensor._fw_grad(/*level=*/0).defined();
}

bool FitsMask(const at::Tensor& mask, const at::Tensor& query, const at::Tensor& key) {
  if (!IsPlain(mask) || mask.requires_grad() || (mask.dim() != 2 && mask.dim() != 4) ||
      (mask.scalar_type() != at::kBool && mask.scalar_type() != query.scalar_type())) {
    return false;
  }
  auto is = [](int64_t size, int64_t all) { return size == 1 || size == all; };
  return mask.size(-1) == key.size(2) && is(mask.size(-2), query.size(2)) &&
         (mask.dim() == 2 || (is(mask.size(0), query.size(0)) && is(mask.size(1), query.size(1))));
}

/// Whether a flash kernel takes these arguments, as on the CPU.
bool TakesFlash(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                const std::optional<at::Tensor>& mask, double dropout, bool causal) {
  const bool on_cpu = aten::UseCpuKernels();
  if (!(on_cpu || lowering::HasCudnnAttention()) || !at::globalContext().userEnabledFlashSDP() ||
      dropout != 0) {
    return false;
  }
  const at::ScalarType dtype = query.scalar_type();
  if (on_cpu && dtype != at::kFloat && dtype != at::kBFloat16) return false;
  for (const at::Tensor& tensor : {query, key, value}) {
    if (!IsPlain(tensor) || tensor.dim() != 4 || tensor.scalar_type() != dtype ||
        tensor.device() != query.device() || tensor.numel() == 0 ||
        tensor.size(0) != query.size(0) || tensor.size(1) != query.size(1) ||
        tensor.size(3) != query.size(3)) {
      return false;
    }
  }
  if (key.size(2) != value.size(2)) return false;
  const bool has_mask = mask && mask->defined();
  if (has_mask && (causal || !FitsMask(*mask, query, key))) return false;
  if (!on_cpu) {
    const auto element = lowering::PhysicalType(dtype, tensor::Platform());
    return lowering::FitsCudnnAttention({element, query.size(2), key.size(2), query.size(3)},
                                        causal);
  }
  if (has_mask && mask->size(-2) != query.size(2)) return false;
  // For short sequences the flash kernel's gradient is no faster than the gradient of the
  // composition, which keeps the weights.
  const bool needs_grad = at::GradMode::is_enabled() &&
                          (query.requires_grad() || key.requires_grad() || value.requires_grad());
  return !needs_grad || key.size(2) >= cpu::choices::kLongKeys;
}

/// Whether a tensor is a subclass that wraps tensors of the device (DTensor). Traced tensors have
/// no memory on the device, so they are none.
bool IsWrapper(const at::Tensor& tensor) {
  return tensor.key_set().has(c10::DispatchKey::Python) && IsPlain(tensor) &&
         tensor.unsafeGetTensorImpl()->unsafe_storage().device().is_xla();
}

/// Whether to call the operator that PyTorch has for GPUs: it is the only one that DTensor has
/// placements for, and that context parallelism makes a ring of.
bool TakesWrapped(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                  bool has_mask, double dropout) {
  if (!at::globalContext().userEnabledFlashSDP() || has_mask || dropout != 0) return false;
  for (const at::Tensor& tensor : {query, key, value}) {
    if (!IsWrapper(tensor) || tensor.dim() != 4 || !at::isFloatingType(tensor.scalar_type()) ||
        tensor.scalar_type() != query.scalar_type() || tensor.numel() == 0 ||
        tensor.size(0) != query.size(0) || tensor.size(1) != query.size(1) ||
        tensor.size(3) != query.size(3)) {
      return false;
    }
  }
  return key.size(2) == value.size(2);
}

/// The number of query heads for each head of keys and values; 1 if it is not a whole number.
int64_t GroupSize(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
  constexpr int64_t kHeads = 1;
  if (query.dim() != 4 || key.dim() != 4 || value.dim() != 4) return 1;
  const int64_t heads = key.size(kHeads);
  const bool divides = heads > 0 && heads == value.size(kHeads) && query.size(kHeads) % heads == 0;
  return divides ? query.size(kHeads) / heads : 1;
}

}  // namespace

at::Tensor autograd::scaled_dot_product_attention(const at::Tensor& query, const at::Tensor& key,
                                                  const at::Tensor& value,
                                                  const std::optional<at::Tensor>& attn_mask,
                                                  double dropout_p, bool is_causal,
                                                  std::optional<double> scale, bool enable_gqa) {
  const bool has_mask = attn_mask && attn_mask->defined();
  const int64_t group = enable_gqa ? GroupSize(query, key, value) : 1;
  if (group > 1) {
    // As the composition does; the flash kernels need a key head for each query head.
    return at::scaled_dot_product_attention(query, key.repeat_interleave(group, 1),
                                            value.repeat_interleave(group, 1), attn_mask, dropout_p,
                                            is_causal, scale);
  }
  if (TakesWrapped(query, key, value, has_mask, dropout_p)) {
    return std::get<0>(at::_scaled_dot_product_flash_attention(
        query, key, value, /*dropout_p=*/0, is_causal, /*return_debug_mask=*/false, scale));
  }
  if (TakesFlash(query, key, value, attn_mask, dropout_p, is_causal)) {
    std::optional<at::Tensor> mask = attn_mask;
    if (has_mask && attn_mask->scalar_type() == at::kBool) {
      mask =
          at::where(*attn_mask, at::scalar_tensor(0, query.options()),
                    at::scalar_tensor(-std::numeric_limits<double>::infinity(), query.options()));
    }
    return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(
        query, key, value, /*dropout_p=*/0, is_causal, mask, scale));
  }
  if (has_mask) {
    CheckMask(query, key, value, *attn_mask, dropout_p, is_causal, scale, enable_gqa);
  }
  return at::compositeimplicitautograd::scaled_dot_product_attention(
      query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt, at::Tensor,
           at::Tensor, at::Tensor>
XLANativeFunctions::_scaled_dot_product_flash_attention(const at::Tensor& query,
                                                        const at::Tensor& key,
                                                        const at::Tensor& value, double dropout_p,
                                                        bool is_causal, bool return_debug_mask,
                                                        std::optional<double> scale) {
  TORCH_CHECK(dropout_p == 0 && !return_debug_mask,
              "_scaled_dot_product_flash_attention: xla has neither its dropout nor its mask");
  auto [output, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
      query, key, value, dropout_p, is_causal, /*attn_mask=*/{}, scale);
  // Results that only dropout needs. DTensor requires a number where it names no placement.
  const at::Tensor none = at::empty({0}, query.options()), number = at::empty({}, query.options());
  return {output, logsumexp, {}, {}, query.size(2), key.size(2), none, number, none};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor>
XLANativeFunctions::_scaled_dot_product_flash_attention_backward(
    const at::Tensor& grad_out, const at::Tensor& query, const at::Tensor& key,
    const at::Tensor& value, const at::Tensor& out, const at::Tensor& logsumexp, const at::Tensor&,
    const at::Tensor&, int64_t, int64_t, double dropout_p, bool is_causal, const at::Tensor&,
    const at::Tensor&, std::optional<double> scale) {
  return at::_scaled_dot_product_flash_attention_for_cpu_backward(
      grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, /*attn_mask=*/{}, scale);
}

namespace lowering {
namespace {

std::vector<Value> MakeAttention(const char* target, const std::vector<Value>& operands,
                                 const AttentionCall& call,
                                 const std::vector<stablehlo::Type>& results, size_t others) {
  // A mask is small, or is read in its own layout; the logsumexp has three dimensions.
  auto layout = [](size_t rank, bool is_mask) {
    return rank == 4 && !is_mask ? HeadsInside() : RowMajor(static_cast<int64_t>(rank));
  };
  stablehlo::CustomCallOptions options;
  options.backend_config = WordsText(cpu::ToWords(
      cpu::AttentionCall{call.is_causal, call.scale.has_value(), call.scale.value_or(0)}));
  for (size_t i = 0; i < operands.size(); ++i)
    options.operand_layouts.push_back(layout(operands[i].rank(), i == others));
  for (const auto& type : results) options.result_layouts.push_back(layout(type.rank(), false));
  return stablehlo::CustomCall(operands[0].builder(), target, operands, results, options);
}

/// (query, key, value, optional mask) -> output, logsumexp. Arrays are [N, heads, length, width],
/// the logsumexp is [N, heads, length].
std::vector<Value> CallAttention(const std::vector<Value>& operands, const AttentionCall& call,
                                 const std::vector<stablehlo::Type>& results) {
  return MakeAttention(cpu::kAttentionTarget, operands, call, results, 3);
}

/// (gradient of the output, query, key, value, output, logsumexp, optional mask) -> gradients of
/// query, key and value.
std::vector<Value> CallAttentionBackward(const std::vector<Value>& operands,
                                         const AttentionCall& call,
                                         const std::vector<stablehlo::Type>& results) {
  return MakeAttention(cpu::kAttentionBackwardTarget, operands, call, results, 6);
}

}  // namespace
}  // namespace lowering

namespace lowering::aten {
namespace {

using stablehlo::Convert;

Kernel Choose(const LoweringContext& cx, std::string_view operation, Value query,
              std::vector<Kernel> possible) {
  return ChooseKernel(cx, operation,
                      {runtime::MlirName(query.element()),
                       query.dim(2) <= cpu::choices::kFewQueries ? "few" : "many"},
                      possible);
}

Kernel ChooseFlash(const LoweringContext& cx, Value query, Value key, bool is_causal) {
  std::vector<Kernel> possible{Kernel::kStableHlo, Kernel::kLibrary};
  const AttentionShape shape{query.element(), query.dim(2), key.dim(2), query.dim(3)};
  const bool partitioned = query.builder().partitions() > 1;
  if ((partitioned ? PartitionsCudnnAttention() : LibraryCalls::Allowed()) &&
      FitsCudnnAttention(shape, is_causal)) {
    possible.push_back(Kernel::kCudnn);
  }
  return Choose(cx, "attention", query, possible);
}

/// Whether products of a few queries read keys and values in a cache's layout, which a call of the
/// flash kernel would have to copy into another one.
bool CallsFewRows(const LoweringContext& cx, Value query) {
  return HasFewRows(query.element()) &&
         Choose(cx, "attention.products", query, {Kernel::kStableHlo, Kernel::kLibrary}) ==
             Kernel::kLibrary;
}

/// The matrix product for each batch and head.
Value Products(const LoweringContext& cx, Value a, Value b, int64_t a_dim, int64_t b_dim) {
  return Dot(cx.platform(), a, b,
             {.lhs_batch = {0, 1},
              .rhs_batch = {0, 1},
              .lhs_contracting = {a_dim},
              .rhs_contracting = {b_dim}},
             PrecisionOn(cx.platform()), ComputeType(a.element()));
}

double ScaleOf(Value query, std::optional<double> scale) {
  return scale ? *scale : 1 / std::sqrt(static_cast<double>(query.dim(3)));
}

/// The argument of the softmax: [N, heads, queries, keys].
Value Scores(Value products, Value query, bool is_causal, std::optional<Value> mask,
             std::optional<double> scale) {
  Value scores = products * ScaleOf(query, scale);
  if (mask) scores = scores + Convert(*mask, scores.element());
  if (!is_causal) return scores;
  const stablehlo::Type places(ElementType::kS32, scores.dims());
  Value later = Iota(scores.builder(), places, 2) < Iota(scores.builder(), places, 3);
  return Select(later, -std::numeric_limits<double>::infinity(), scores);
}

/// The softmax. A row that may attend to nothing has a logsumexp of -inf, and gets weights of 0.
Value Weights(Value scores, Value logsumexp) {
  Value sums = Select(Equal(logsumexp, -std::numeric_limits<double>::infinity()), 0, logsumexp);
  return Exponential(scores - KeepDims(sums, scores.dims(), {3}));
}

}  // namespace

std::vector<Value> FlashAttention(LoweringContext& cx, Value query, Value key, Value value,
                                  double /*dropout_p*/, bool is_causal,
                                  std::optional<Value> attn_mask, std::optional<double> scale) {
  const Kernel kernel = ChooseFlash(cx, query, key, is_causal);
  std::vector<Value> operands{query, key, value};
  if (attn_mask) operands.push_back(*attn_mask);
  if (kernel == Kernel::kCudnn) {
    std::vector<Value> results = CallCudnnAttention(operands, {is_causal, scale});
    return {results[0], Convert(results[1], cx.output_element(1))};
  }
  if (kernel == Kernel::kLibrary) {
    return CallAttention(operands, {is_causal, scale}, {cx.output_type(0), cx.output_type(1)});
  }
  const bool few = CallsFewRows(cx, query);
  Value products = few ? CallFewRows(query, key) : Products(cx, query, key, 3, 3);
  Value scores = Scores(products, query, is_causal, attn_mask, scale);
  Value maximum = Reduce(scores, {3}, ReduceOp::kMax);
  Value weights = Weights(scores, maximum);
  Value sum = Reduce(weights, {3}, ReduceOp::kAdd);
  Value logsumexp = Log(sum) + maximum;
  weights = weights / KeepDims(Select(Equal(sum, 0), 1, sum), weights.dims(), {3});
  weights = Convert(weights, query.element());
  Value output =
      few ? CallFewRows(weights, value, /*by_columns=*/true) : Products(cx, weights, value, 3, 2);
  return {ToOutput(cx, output), Convert(logsumexp, cx.output_element(1))};
}

std::vector<Value> FlashAttentionBackward(LoweringContext& cx, Value grad_out, Value query,
                                          Value key, Value value, Value out, Value logsumexp,
                                          double /*dropout_p*/, bool is_causal,
                                          std::optional<Value> attn_mask,
                                          std::optional<double> scale) {
  const Kernel kernel = ChooseFlash(cx, query, key, is_causal);
  std::vector<Value> operands{grad_out, query, key, value, out, logsumexp};
  if (attn_mask) operands.push_back(*attn_mask);
  if (kernel == Kernel::kCudnn) return CallCudnnAttentionBackward(operands, {is_causal, scale});
  if (kernel == Kernel::kLibrary) {
    return CallAttentionBackward(operands, {is_causal, scale},
                                 {cx.output_type(0), cx.output_type(1), cx.output_type(2)});
  }
  const ElementType element = query.element(), wide = ComputeType(element);
  Value weights =
      Weights(Scores(Products(cx, query, key, 3, 3), query, is_causal, attn_mask, scale),
              Convert(logsumexp, wide));
  Value of_weights = Products(cx, grad_out, value, 3, 3);
  Value row = Reduce(Convert(grad_out, wide) * Convert(out, wide), {3}, ReduceOp::kAdd);
  Value of_scores = weights * (of_weights - KeepDims(row, weights.dims(), {3}));
  of_scores = Convert(of_scores * ScaleOf(query, scale), element);
  return ToOutputElements(cx,
                          {Products(cx, of_scores, key, 3, 2), Products(cx, of_scores, query, 2, 2),
                           Products(cx, Convert(weights, element), grad_out, 2, 2)});
}

}  // namespace lowering::aten
}  // namespace torch_xla
