#include "cpu/ffi_tensor.h"

#include <ATen/ops/from_blob.h>

namespace torch_xla::cpu {

using namespace runtime::pjrt;

namespace {

c10::ScalarType DtypeOf(XLA_FFI_DataType type) {
  switch (type) {
#define ELEMENT(name, abi, mlir, bytes, dtype) \
  case XLA_FFI_DataType_##abi:                 \
    return c10::ScalarType::dtype;
#include "runtime/element_types.inc"
    default:
      TORCH_INTERNAL_ASSERT(false, "a custom call was given a buffer of type ", type);
  }
}

}  // namespace

at::Tensor FfiTensor(void* buffer) {
  auto* b = static_cast<XLA_FFI_Buffer*>(buffer);
  return at::from_blob(b->data, {b->dims, static_cast<size_t>(b->rank)},
                       at::TensorOptions().dtype(DtypeOf(b->dtype)));
}

std::string_view FfiAttributes::Text(std::string_view name) const {
  const void* found = Find(name, XLA_FFI_AttrType_STRING);
  TORCH_INTERNAL_ASSERT(found, "a custom call without ", name);
  auto* text = static_cast<const XLA_FFI_ByteSpan*>(found);
  return {text->ptr, text->len};
}

std::span<const int64_t> FfiAttributes::List(std::string_view name) const {
  auto* list = static_cast<const XLA_FFI_Array*>(Find(name, XLA_FFI_AttrType_ARRAY));
  if (!list) return {};
  return {static_cast<const int64_t*>(list->data), list->size};
}

const void* FfiAttributes::Find(std::string_view name, XLA_FFI_AttrType type) const {
  for (int64_t i = 0; i < attrs_.size; ++i) {
    const XLA_FFI_ByteSpan& found = *attrs_.names[i];
    if (std::string_view(found.ptr, found.len) == name && attrs_.types[i] == type) {
      return attrs_.attrs[i];
    }
  }
  return nullptr;
}

OperandDims::OperandDims(XLA_FFI_CallFrame& frame) : frame_(frame), before_(frame.args.args) {
  const std::span<const int64_t> all = FfiAttributes(frame.attrs).List(kOperandDims);
  if (all.empty()) return;
  buffers_.reserve(frame.args.size);
  const int64_t* next = all.data();
  for (int64_t i = 0; i < frame.args.size; ++i) {
    buffers_.push_back(*static_cast<XLA_FFI_Buffer*>(before_[i]));
    buffers_.back().rank = *next;
    buffers_.back().dims = const_cast<int64_t*>(next + 1);  // C's type; handlers only read
    next += 1 + *next;
    operands_.push_back(&buffers_.back());
  }
  frame.args.args = operands_.data();
}

}  // namespace torch_xla::cpu
