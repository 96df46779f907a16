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

struct BufferOperands {
  const XLA_FFI_Args* buffers;
  std::span<const int64_t> wrapped;
  int64_t next = 0;

  at::Tensor Tensor() {
    at::Tensor tensor = cpu::FfiTensor(buffers->args[next]);
    for (int64_t index : wrapped) {
      if (index == next) tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
    }
    ++next;
    return tensor;
  }
  c10::Scalar Scalar() { return cpu::FfiTensor(buffers->args[next++]).item(); }
};

void TakeResult(const at::Tensor& result, const XLA_FFI_Rets& rets, int64_t& next) {
  if (!result.defined()) return;
  TORCH_INTERNAL_ASSERT(next < rets.size, "the CPU kernel gave more than ", rets.size, " results");
  at::Tensor out = cpu::FfiTensor(rets.rets[next]);
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
  lazy::ArgumentDecoder decoder(BufferOperands{&frame.args, attributes.List("wrapped")}, words);
  torch::jit::Stack stack;
  for (int64_t kind : attributes.List("kinds")) {
    stack.push_back(decoder.Argument(static_cast<ir::ArgKind>(kind)));
  }
  handle.callBoxed(stack);
  int64_t next = 0;
  for (const c10::IValue& result : stack) {
    if (result.isTensorList()) {
      for (const at::Tensor& tensor : result.toTensorVector()) {
        TakeResult(tensor, frame.rets, next);
      }
    } else {
      TakeResult(result.toTensor(), frame.rets, next);
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
  lazy::OnClientCreated([](runtime::Client& client) {
    if (cpu::RegisterCpuHandler(client, lowering::kCpuKernelTarget, &cpu::Handler<Handle>)) {
      lowering::EnableCpuKernels(client.platform());
    }  // else there is the fallback
  });
  return true;
}();

}  // namespace

bool UseCpuKernels() {
  static const bool use = lowering::HasCpuKernels(lazy::Platform());
  return use;
}

}  // namespace torch_xla::aten
