// Attention by the CPU's flash kernel, on the device's memory. The kernel does not keep the scores
// of all queries with all keys.
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>

#include <optional>

#include "cpu/aten_calls.h"
#include "cpu/calls.h"
#include "cpu/handlers.h"

namespace torch_xla::cpu {
namespace {

using namespace runtime::pjrt;

at::Tensor FromHeadsInside(void* buffer) {
  const at::Tensor tensor = FfiTensor(buffer);
  const auto sizes = tensor.sizes();
  return tensor.view({sizes[0], sizes[2], sizes[1], sizes[3]}).transpose(1, 2);
}

struct Call {
  explicit Call(const XLA_FFI_CallFrame& frame) : frame(frame) {
    const auto call = CallOf<AttentionCall>(frame);
    is_causal = call.is_causal != 0;
    if (call.has_scale) scale = call.scale;
  }

  at::Tensor Argument(int64_t i) const { return FromHeadsInside(frame.args.args[i]); }
  at::Tensor Result(int64_t i) const { return FromHeadsInside(frame.rets.rets[i]); }
  /// The last argument, if it is more than `others`.
  std::optional<at::Tensor> Mask(int64_t others) const {
    if (frame.args.size == others) return std::nullopt;
    at::Tensor mask = FfiTensor(frame.args.args[others]);
    return mask.dim() == 2 ? mask.unsqueeze(0).unsqueeze(0) : mask;
  }

  /// Calls work(part) on each thread; `part` takes the thread's batches or heads of a tensor.
  template <typename Work>
  void InParts(const at::Tensor& query, const at::Tensor& key, const Work& work) const {
    const int64_t dim = query.size(0) >= FfiThreads(frame) ? 0 : 1, size = query.size(dim);
    const int64_t cost = query.numel() * key.size(2) * choices::kAttention;
    RunAtenParts(frame, FfiParts(frame, cost, size), [&](const AtenPart& part) {
      work([&](const at::Tensor& tensor) {
        return tensor.size(dim) == 1 && size > 1 ? tensor : part(tensor, dim);
      });
    });
  }

  const XLA_FFI_CallFrame& frame;
  bool is_causal;
  std::optional<double> scale;
};

template <typename Part>
std::optional<at::Tensor> PartOf(const std::optional<at::Tensor>& mask, const Part& part) {
  return mask ? std::optional(part(*mask)) : std::nullopt;
}

}  // namespace

void RunAttention(const XLA_FFI_CallFrame& frame) {
  const Call call(frame);
  const at::Tensor query = call.Argument(0), key = call.Argument(1), value = call.Argument(2);
  const at::Tensor output = call.Result(0), logsumexp = FfiTensor(frame.rets.rets[1]);
  const std::optional<at::Tensor> mask = call.Mask(3);
  call.InParts(query, key, [&](const auto& part) {
    const auto [made, sums] = at::_scaled_dot_product_flash_attention_for_cpu(
        part(query), part(key), part(value), /*dropout_p=*/0, call.is_causal, PartOf(mask, part),
        call.scale);
    part(output).copy_(made);
    part(logsumexp).copy_(sums);
  });
}

void RunAttentionBackward(const XLA_FFI_CallFrame& frame) {
  const Call call(frame);
  const at::Tensor grad = call.Argument(0), query = call.Argument(1), key = call.Argument(2);
  const at::Tensor value = call.Argument(3), output = call.Argument(4);
  const at::Tensor logsumexp = FfiTensor(frame.args.args[5]);
  const std::optional<at::Tensor> mask = call.Mask(6);
  call.InParts(query, key, [&](const auto& part) {
    const auto [of_query, of_key, of_value] =
        at::_scaled_dot_product_flash_attention_for_cpu_backward(
            part(grad), part(query), part(key), part(value), part(output), part(logsumexp),
            /*dropout_p=*/0, call.is_causal, PartOf(mask, part), call.scale);
    part(call.Result(0)).copy_(of_query);
    part(call.Result(1)).copy_(of_key);
    part(call.Result(2)).copy_(of_value);
  });
}

}  // namespace torch_xla::cpu
