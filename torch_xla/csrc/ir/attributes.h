// The attributes of a node as a row of 64-bit words, written and read in the order of the
// operation's arguments. There are no tags: the OpSpec tells the meaning of each word.
//
//   int, bool, double, dtype   one word
//   optional of those          a word 0 or 1, then the value if 1
//   list                       its length, then a word each
//   string                     its length in bytes, then 8 bytes a word
//   constant scalar            its dtype, then two words (real, imaginary)
//   optional tensor or scalar  a word 0 or 1; list: its length (then 0 or 1 each if optional)
#pragma once

#include <c10/core/Scalar.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <bit>
#include <cstring>
#include <string>
#include <string_view>

namespace torch_xla::ir {

/// Some words are numbers for which a program need not be compiled again: the node's hash leaves
/// them out, and the executor decides whether they are constants or parameters
/// (exec/constant_policy.h). Words after the 32nd are none.
struct Words : c10::SmallVector<uint64_t, 8> {
  using SmallVector::SmallVector;
  uint32_t numbers = 0;  // bit set of the words that are numbers
  uint32_t floats = 0;   // bit set of the numbers that are doubles; the others are int64
};

/// A bool or an integer as 64 bits. c10::Scalar keeps a number of 2**63 or more as UInt64; such a
/// number wraps.
inline int64_t IntegerBits(const c10::Scalar& value) {
  if (value.isBoolean()) return value.toBool();
  return value.type() == c10::ScalarType::UInt64 ? static_cast<int64_t>(value.toUInt64())
                                                 : value.toLong();
}

class AttributeWriter {
 public:
  explicit AttributeWriter(Words& words) : words_(words) {}

  void Int(int64_t value) { words_.push_back(static_cast<uint64_t>(value)); }
  void Double(double value) { words_.push_back(std::bit_cast<uint64_t>(value)); }
  /// The same, marked as a number.
  void IntNumber(int64_t value) {
    Mark(false);
    Int(value);
  }
  void DoubleNumber(double value) {
    Mark(true);
    Double(value);
  }
  void IntList(c10::IntArrayRef values) {
    Int(static_cast<int64_t>(values.size()));
    for (int64_t value : values) Int(value);
  }
  void DoubleList(c10::ArrayRef<double> values) {
    Int(static_cast<int64_t>(values.size()));
    for (double value : values) Double(value);
  }
  template <typename Bools>
  void BoolList(const Bools& values) {
    Int(static_cast<int64_t>(values.size()));
    for (bool value : values) Int(value);
  }
  void String(std::string_view text) {
    Int(static_cast<int64_t>(text.size()));
    for (size_t i = 0; i < text.size(); i += 8) {
      uint64_t word = 0;
      std::memcpy(&word, text.data() + i, std::min<size_t>(8, text.size() - i));
      words_.push_back(word);
    }
  }
  void Scalar(const c10::Scalar& value) { Scalar(value, false); }
  /// The same; the value is marked as a number, the dtype is not.
  void ScalarNumber(const c10::Scalar& value) { Scalar(value, true); }

 private:
  void Scalar(const c10::Scalar& value, bool is_number) {
    Int(static_cast<int64_t>(value.type()));
    if (is_number) Mark(value.isFloatingPoint() || value.isComplex());
    if (value.isComplex()) {
      auto number = value.toComplexDouble();
      Double(number.real());
      if (is_number) Mark(true);
      Double(number.imag());
    } else {
      if (value.isFloatingPoint()) {
        Double(value.toDouble());
      } else {
        Int(IntegerBits(value));
      }
      Int(0);
    }
  }

  /// Marks the next word as a number.
  void Mark(bool is_float) {
    if (words_.size() >= 32) return;
    words_.numbers |= 1u << words_.size();
    if (is_float) words_.floats |= 1u << words_.size();
  }

  Words& words_;
};

class AttributeReader {
 public:
  explicit AttributeReader(const Words& words) : words_(words) {}

  /// The index of the next word.
  size_t position() const { return next_; }
  int64_t Int() { return static_cast<int64_t>(words_[next_++]); }
  bool Bool() { return Int() != 0; }
  double Double() { return std::bit_cast<double>(words_[next_++]); }
  c10::IntArrayRef IntList() {
    auto size = static_cast<size_t>(Int());
    auto* data = reinterpret_cast<const int64_t*>(words_.data() + next_);
    next_ += size;
    return {data, size};
  }
  c10::ArrayRef<double> DoubleList() {
    auto size = static_cast<size_t>(Int());
    auto* data = reinterpret_cast<const double*>(words_.data() + next_);
    next_ += size;
    return {data, size};
  }
  std::string_view String() {
    auto size = static_cast<size_t>(Int());
    std::string_view text(reinterpret_cast<const char*>(words_.data() + next_), size);
    next_ += (size + 7) / 8;
    return text;
  }
  c10::Scalar Scalar() {
    auto type = static_cast<c10::ScalarType>(Int());
    if (c10::isComplexType(type)) {
      double real = Double(), imag = Double();
      return c10::complex<double>(real, imag);
    }
    c10::Scalar value;
    if (c10::isFloatingType(type)) {
      value = Double();
    } else if (type == c10::ScalarType::Bool) {
      value = Bool();
    } else if (type == c10::ScalarType::UInt64) {
      value = static_cast<uint64_t>(Int());
    } else {
      value = Int();
    }
    ++next_;
    return value;
  }

 private:
  const Words& words_;
  size_t next_ = 0;
};

}  // namespace torch_xla::ir
