// What a handler of a custom call is given, in PyTorch's terms.
#pragma once

#include <ATen/core/Tensor.h>

#include <cfenv>
#include <span>
#include <string_view>
#include <vector>

#include "cpu/calls.h"
#include "runtime/ffi_abi.h"

namespace torch_xla::cpu {

/// A buffer of the program (an XLA_FFI_Buffer) as a CPU tensor, in place.
at::Tensor FfiTensor(void* buffer);
/// Where its elements are.
template <typename T>
T* FfiData(void* buffer) {
  return static_cast<T*>(static_cast<runtime::pjrt::XLA_FFI_Buffer*>(buffer)->data);
}

/// Whether its elements are of float; handlers of two types are made for float and another.
inline bool IsFfiFloat(void* buffer) {
  return static_cast<runtime::pjrt::XLA_FFI_Buffer*>(buffer)->dtype ==
         runtime::pjrt::XLA_FFI_DataType_F32;
}

/// The attributes of a custom call; asking for a text that is not there is an internal error.
class FfiAttributes {
 public:
  explicit FfiAttributes(const runtime::pjrt::XLA_FFI_Attrs& attrs) : attrs_(attrs) {}

  std::string_view Text(std::string_view name) const;
  /// 64-bit integers; empty where there is no such attribute.
  std::span<const int64_t> List(std::string_view name) const;

 private:
  const void* Find(std::string_view name, runtime::pjrt::XLA_FFI_AttrType type) const;

  const runtime::pjrt::XLA_FFI_Attrs& attrs_;
};

/// The words of a call, and the struct that they are (calls.h).
inline std::span<const int64_t> WordsOf(const runtime::pjrt::XLA_FFI_CallFrame& frame) {
  return FfiAttributes(frame.attrs).List(kWords);
}
template <typename T>
T CallOf(const runtime::pjrt::XLA_FFI_CallFrame& frame) {
  return FromWords<T>(WordsOf(frame));
}

/// The attribute that says the dimensions of the operands, each after its rank, where elementwise
/// ops made some of them in others (stablehlo/joined_dims.h).
inline constexpr std::string_view kOperandDims = "operand_dims";

/// While it lives, the operands of a call have those dimensions.
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

}  // namespace torch_xla::cpu
