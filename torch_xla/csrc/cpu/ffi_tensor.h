// The buffers and attributes of a custom call in PyTorch's terms.
#pragma once

#include <ATen/core/Tensor.h>

#include <cfenv>
#include <span>
#include <string_view>
#include <vector>

#include "cpu/calls.h"
#include "runtime/ffi_abi.h"

namespace torch_xla::cpu {

/// A CPU tensor that shares the memory of a buffer (an XLA_FFI_Buffer) of the program.
at::Tensor FfiTensor(void* buffer);
/// The address of the buffer's elements.
template <typename T>
T* FfiData(void* buffer) {
  return static_cast<T*>(static_cast<runtime::pjrt::XLA_FFI_Buffer*>(buffer)->data);
}

/// Whether the buffer's elements are float; a handler of two types has float and another one.
inline bool IsFfiFloat(void* buffer) {
  return static_cast<runtime::pjrt::XLA_FFI_Buffer*>(buffer)->dtype ==
         runtime::pjrt::XLA_FFI_DataType_F32;
}

/// The attributes of a custom call.
class FfiAttributes {
 public:
  explicit FfiAttributes(const runtime::pjrt::XLA_FFI_Attrs& attrs) : attrs_(attrs) {}

  std::string_view Text(std::string_view name) const;  // must exist
  /// A list of 64-bit integers; empty if there is no such attribute.
  std::span<const int64_t> List(std::string_view name) const;

 private:
  const void* Find(std::string_view name, runtime::pjrt::XLA_FFI_AttrType type) const;

  const runtime::pjrt::XLA_FFI_Attrs& attrs_;
};

/// The words of a call, and the struct that they encode (calls.h).
inline std::span<const int64_t> WordsOf(const runtime::pjrt::XLA_FFI_CallFrame& frame) {
  return FfiAttributes(frame.attrs).List(kWords);
}
template <typename T>
T CallOf(const runtime::pjrt::XLA_FFI_CallFrame& frame) {
  return FromWords<T>(WordsOf(frame));
}

/// The attribute with the rank and dimensions of each operand. A call has it if the program joined
/// dimensions of some operand to compute it (stablehlo/joined_dims.h).
inline constexpr std::string_view kOperandDims = "operand_dims";

/// While an object of this class lives, the operands of the call have those dimensions.
class OperandDims {
 public:
  explicit OperandDims(runtime::pjrt::XLA_FFI_CallFrame& frame);
  OperandDims(const OperandDims&) = delete;
  OperandDims& operator=(const OperandDims&) = delete;
  ~OperandDims() { frame_.args.args = before_; }

 private:
  runtime::pjrt::XLA_FFI_CallFrame& frame_;
  void** const before_;
  std::vector<runtime::pjrt::XLA_FFI_Buffer> buffers_;
  std::vector<void*> operands_;
};

/// Sets PyTorch's floating-point mode. XLA runs programs with denormals flushed to zero.
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

}  // namespace torch_xla::cpu
