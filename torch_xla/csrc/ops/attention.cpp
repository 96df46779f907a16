// Attention is PyTorch's composition of other operators, but for what the CPU refuses.
#include <ATen/core/Tensor.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scaled_dot_product_attention_native.h>
#include <torch/library.h>

#include <optional>

namespace torch_xla {
namespace {

/// A tensor of the CPU that looks like `tensor`, of one element.
at::Tensor StandIn(const at::Tensor& tensor) {
  return at::empty({}, tensor.options().device(at::kCPU)).expand_symint(tensor.sym_sizes());
}

/// The CPU looks at a mask's last two dimensions when it chooses its kernel, and takes one of fewer
/// only where it does not come to that: its own choice says which. Before, it refuses unfit dtypes
/// and returns where there is nothing to attend.
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

at::Tensor Attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const std::optional<at::Tensor>& mask, double dropout, bool causal,
                     std::optional<double> scale, bool grouped) {
  if (mask && mask->defined()) {
    CheckMask(query, key, value, *mask, dropout, causal, scale, grouped);
  }
  return at::native::scaled_dot_product_attention(query, key, value, mask, dropout, causal, scale,
                                                  grouped);
}

// For both: its gradient is that of what it is composed of.
TORCH_LIBRARY_IMPL(aten, XLA, m) { m.impl("scaled_dot_product_attention", TORCH_FN(Attention)); }
TORCH_LIBRARY_IMPL(aten, AutogradXLA, m) {
  m.impl("scaled_dot_product_attention", TORCH_FN(Attention));
}

}  // namespace
}  // namespace torch_xla
