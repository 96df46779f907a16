#include "aten/cpu_kernel.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/from_blob.h>

#include <cfenv>
#include <span>

#include "lazy/argument_decoder.h"
#include "lazy/device.h"
#include "lazy/errors.h"
#include "lowering/cpu_kernel.h"
#include "runtime/ffi_handler.h"

namespace torch_xla::aten {
namespace {

using namespace runtime::pjrt;

c10::ScalarType DtypeOf(XLA_FFI_DataType type) {
  using c10::ScalarType;
  switch (type) {
    case XLA_FFI_DataType_PRED:
      return ScalarType::Bool;
    case XLA_FFI_DataType_S8:
      return ScalarType::Char;
    case XLA_FFI_DataType_S16:
      return ScalarType::Short;
    case XLA_FFI_DataType_S32:
      return ScalarType::Int;
    case XLA_FFI_DataType_S64:
      return ScalarType::Long;
    case XLA_FFI_DataType_U8:
      return ScalarType::Byte;
    case XLA_FFI_DataType_U16:
      return ScalarType::UInt16;
    case XLA_FFI_DataType_U32:
      return ScalarType::UInt32;
    case XLA_FFI_DataType_U64:
      return ScalarType::UInt64;
    case XLA_FFI_DataType_F16:
      return ScalarType::Half;
    case XLA_FFI_DataType_F32:
      return ScalarType::Float;
    case XLA_FFI_DataType_F64:
      return ScalarType::Double;
    case XLA_FFI_DataType_C64:
      return ScalarType::ComplexFloat;
    case XLA_FFI_DataType_C128:
      return ScalarType::ComplexDouble;
    case XLA_FFI_DataType_BF16:
      return ScalarType::BFloat16;
    case XLA_FFI_DataType_F8E5M2:
      return ScalarType::Float8_e5m2;
    case XLA_FFI_DataType_F8E4M3FN:
      return ScalarType::Float8_e4m3fn;
    case XLA_FFI_DataType_F8E5M2FNUZ:
      return ScalarType::Float8_e5m2fnuz;
    case XLA_FFI_DataType_F8E4M3FNUZ:
      return ScalarType::Float8_e4m3fnuz;
    case XLA_FFI_DataType_F8E8M0FNU:
      return ScalarType::Float8_e8m0fnu;
    case XLA_FFI_DataType_TOKEN:
      break;
  }
  TORCH_INTERNAL_ASSERT(false, "a CPU kernel was given a buffer of type ", type);
}

/// A buffer of the program as a CPU tensor, in place.
at::Tensor TensorOf(void* buffer) {
  auto* b = static_cast<XLA_FFI_Buffer*>(buffer);
  return at::from_blob(b->data, {b->dims, static_cast<size_t>(b->rank)},
                       at::TensorOptions().dtype(DtypeOf(b->dtype)));
}

/// XLA runs programs with denormals flushed to zero, PyTorch does not.
class DefaultFloatEnvironment {
 public:
  DefaultFloatEnvironment() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatEnvironment() { std::fesetenv(&saved_); }

 private:
  std::fenv_t saved_;
};

/// The attributes that lowering/cpu_kernel.cpp writes.
class CallAttributes {
 public:
  explicit CallAttributes(const XLA_FFI_Attrs& attrs) : attrs_(attrs) {}

  std::string Text(std::string_view name) const {
    const void* found = Find(name, XLA_FFI_AttrType_STRING);
    TORCH_INTERNAL_ASSERT(found, "a call of a CPU kernel without ", name);
    auto* text = static_cast<const XLA_FFI_ByteSpan*>(found);
    return {text->ptr, text->len};
  }
  std::span<const int64_t> List(std::string_view name) const {
    auto* list = static_cast<const XLA_FFI_Array*>(Find(name, XLA_FFI_AttrType_ARRAY));
    if (!list) return {};
    return {static_cast<const int64_t*>(list->data), list->size};
  }

 private:
  const void* Find(std::string_view name, XLA_FFI_AttrType type) const {
    for (int64_t i = 0; i < attrs_.size; ++i) {
      const XLA_FFI_ByteSpan& found = *attrs_.names[i];
      if (std::string_view(found.ptr, found.len) == name && attrs_.types[i] == type) {
        return attrs_.attrs[i];
      }
    }
    return nullptr;
  }

  const XLA_FFI_Attrs& attrs_;
};

struct BufferOperands {
  const XLA_FFI_Args* buffers;
  std::span<const int64_t> wrapped;
  int64_t next = 0;

  at::Tensor Tensor() {
    at::Tensor tensor = TensorOf(buffers->args[next]);
    for (int64_t index : wrapped) {
      if (index == next) tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
    }
    ++next;
    return tensor;
  }
  c10::Scalar Scalar() { return TensorOf(buffers->args[next++]).item(); }
};

void TakeResult(const at::Tensor& result, const XLA_FFI_Rets& rets, int64_t& next) {
  if (!result.defined()) return;
  TORCH_INTERNAL_ASSERT(next < rets.size, "the CPU kernel gave more than ", rets.size, " results");
  at::Tensor out = TensorOf(rets.rets[next]);
  TORCH_INTERNAL_ASSERT(result.scalar_type() == out.scalar_type() && result.sizes() == out.sizes(),
                        "result ", next, " of the CPU kernel is ", result.scalar_type(),
                        result.sizes(), ", its Meta kernel gave ", out.scalar_type(), out.sizes());
  out.copy_(result);
  ++next;
}

void Call(const XLA_FFI_CallFrame& frame) {
  CallAttributes attributes(frame.attrs);
  const std::string op = attributes.Text("op"), overload = attributes.Text("overload");
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

/// Called on XLA's threads.
XLA_FFI_Error* Handler(XLA_FFI_CallFrame* frame) {
  if (!runtime::EntersExecution(frame)) return nullptr;
  DefaultFloatEnvironment environment;
  try {
    at::AutoDispatchBelowADInplaceOrView no_autograd;
    Call(*frame);
    return nullptr;
  } catch (const std::exception& error) {
    return runtime::FfiError(frame, PJRT_Error_Code_INVALID_ARGUMENT, lazy::ErrorText(error));
  }
}

[[maybe_unused]] const bool registered = [] {
  lazy::OnClientCreated([](runtime::Client& client) {
    if (client.platform() != "CPU") return;
    try {
      client.RegisterCustomCall(lowering::kCpuKernelTarget, reinterpret_cast<void*>(&Handler));
    } catch (const runtime::Error&) {
      return;  // a plugin without custom calls has the fallback
    }
    lowering::EnableCpuKernels(client.platform());
  });
  return true;
}();

}  // namespace

bool UseCpuKernels() {
  static const bool use = lowering::HasCpuKernels(lazy::Platform());
  return use;
}

}  // namespace torch_xla::aten
