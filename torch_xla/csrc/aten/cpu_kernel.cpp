#include "aten/cpu_kernel.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <span>

#include "cpu/ffi_handler.h"
#include "cpu/ffi_tensor.h"
#include "lowering/cpu_kernel.h"
#include "lowering/may_call.h"
#include "rules/argument_decoder.h"
#include "tensor/device.h"

namespace torch_xla::aten {
namespace {

using namespace runtime::pjrt;

/// A buffer of the call without its padding (KernelCall::parts).
at::Tensor PartOf(const XLA_FFI_Args& operands, std::span<const int64_t> parts, int64_t index,
                  void* buffer) {
  at::Tensor tensor = cpu::FfiTensor(buffer);
  for (; !parts.empty(); parts = parts.subspan(3)) {
    if (parts[0] != index) continue;
    tensor = tensor.narrow(parts[1], 0, *cpu::FfiData<const int64_t>(operands.args[parts[2]]));
  }
  return tensor;
}

struct BufferOperands {
  const XLA_FFI_Args* buffers;
  std::span<const int64_t> wrapped, parts;
  int64_t next = 0;

  at::Tensor Tensor() {
    // The kernels of some operators round otherwise if elements lie apart.
    at::Tensor tensor = PartOf(*buffers, parts, next, buffers->args[next]).contiguous();
    for (int64_t index : wrapped) {
      if (index == next) tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
    }
    ++next;
    return tensor;
  }
  c10::Scalar Scalar() { return cpu::FfiTensor(buffers->args[next++]).item(); }
};

void TakeResult(const at::Tensor& result, const XLA_FFI_CallFrame& frame,
                std::span<const int64_t> parts, int64_t& next) {
  if (!result.defined()) return;
  const XLA_FFI_Rets& rets = frame.rets;
  TORCH_INTERNAL_ASSERT(next < rets.size, "the CPU kernel gave more than ", rets.size, " results");
  at::Tensor out = PartOf(frame.args, parts, ~next, rets.rets[next]);
  TORCH_INTERNAL_ASSERT(result.scalar_type() == out.scalar_type() && result.sizes() == out.sizes(),
                        "result ", next, " of the CPU kernel is ", result.scalar_type(),
                        result.sizes(), ", its Meta kernel gave ", out.scalar_type(), out.sizes());
  out.copy_(result);
  ++next;
}

void Call(const XLA_FFI_CallFrame& frame) {
  cpu::FfiAttributes attributes(frame.attrs);
  const std::string op(attributes.Text("op")), overload(attributes.Text("overload"));
  auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(op.c_str(), overload.c_str());
  std::span<const int64_t> encoded = attributes.List("words");
  const ir::Words words(encoded.begin(), encoded.end());
  const std::span<const int64_t> parts = attributes.List("parts");
  rules::ArgumentDecoder decoder(BufferOperands{&frame.args, attributes.List("wrapped"), parts},
                                 words);
  torch::jit::Stack stack;
  for (int64_t kind : attributes.List("kinds")) {
    stack.push_back(decoder.Argument(static_cast<ir::ArgKind>(kind)));
  }
  handle.callBoxed(stack);
  int64_t next = 0;
  for (const c10::IValue& result : stack) {
    if (result.isTensorList()) {
      for (const at::Tensor& tensor : result.toTensorVector()) {
        TakeResult(tensor, frame, parts, next);
      }
    } else {
      TakeResult(result.toTensor(), frame, parts, next);
    }
  }
  TORCH_INTERNAL_ASSERT(next == frame.rets.size, "the CPU kernel of ", op, " gave ", next,
                        " results, its Meta kernel ", frame.rets.size);
}

void Handle(const XLA_FFI_CallFrame& frame) {
  cpu::DefaultFloatEnvironment environment;
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  Call(frame);
}

// The handler needs a node's kinds of arguments, so cpu/table.h does not have it.
[[maybe_unused]] const bool registered = [] {
  tensor::OnClientCreated([](runtime::Client& client) {
    if (cpu::RegisterCpuHandler(client, lowering::kCpuKernelTarget, &cpu::Handler<Handle>)) {
      lowering::EnableCpuKernels(client.platform());
    }  // else there is the fallback
  });
  return true;
}();

}  // namespace

bool UseCpuKernels() {
  static const bool use = lowering::HasCpuKernels(tensor::Platform());
  return use;
}

}  // namespace torch_xla::aten
