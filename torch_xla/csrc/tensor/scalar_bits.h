// Conversions of numbers of 2**63 and more, which c10::Scalar keeps as UInt64, to 64 signed bits.
#pragma once

#include <c10/core/Scalar.h>

#include "ir/attributes.h"

namespace torch_xla::lazy {

/// A bool or an integer as 64 bits; a number of 2**63 or more wraps.
inline int64_t IntegerBits(const c10::Scalar& value) {
  if (value.isBoolean()) return value.toBool();
  return value.type() == c10::ScalarType::UInt64 ? static_cast<int64_t>(value.toUInt64())
                                                 : value.toLong();
}

/// Writes any number as the attribute of a leaf.
inline void WriteNumber(const c10::Scalar& value, ir::Words& words) {
  ir::AttributeWriter writer(words);
  if (value.type() != c10::ScalarType::UInt64) {
    writer.Scalar(value);
    return;
  }
  writer.Int(static_cast<int64_t>(value.type()));
  writer.Int(IntegerBits(value));
  writer.Int(0);
}

}  // namespace torch_xla::lazy
