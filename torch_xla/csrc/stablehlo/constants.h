// Constants of any element type, from a number or from raw bytes. Equal splat constants in a region
// are emitted once.
#pragma once

#include <complex>
#include <concepts>
#include <cstddef>
#include <span>
#include <variant>

#include "stablehlo/builder.h"

namespace torch_xla::stablehlo {

/// A number on the host, converted implicitly from any C++ number.
class Literal {
 public:
  Literal(bool v) : value_(v) {}  // NOLINT
  template <std::signed_integral T>
  Literal(T v) : value_(static_cast<int64_t>(v)) {}  // NOLINT
  template <std::unsigned_integral T>
    requires(!std::same_as<T, bool>)
  Literal(T v) : value_(static_cast<uint64_t>(v)) {}  // NOLINT
  template <std::floating_point T>
  Literal(T v) : value_(static_cast<double>(v)) {}  // NOLINT
  template <std::floating_point T>
  Literal(std::complex<T> v) : value_(static_cast<std::complex<double>>(v)) {}  // NOLINT

  /// The text of this number, converted to `type`, in a `dense<>` attribute. Floats are rounded to
  /// nearest even and integers wrap. A float converted to an integer truncates and saturates (NaN
  /// becomes 0), and a complex number converted to a real one loses its imaginary part.
  std::string ToMlir(ElementType type) const;

 private:
  std::variant<bool, int64_t, uint64_t, double, std::complex<double>> value_;
};

/// A constant whose elements are all `value`.
Value Constant(Builder& builder, Literal value, const Type& type);
/// A rank-0 constant.
Value Scalar(Builder& builder, Literal value, ElementType element);
/// A rank-0 constant in the module of `like`.
Value Scalar(Value like, Literal value, ElementType element);
/// A rank-0 constant of the element type of `like`.
Value ScalarLike(Value like, Literal value);
/// A constant of the type of `x`.
Value FullLike(Value x, Literal value);
Value ZerosLike(Value x);
Value OnesLike(Value x);
/// A constant from row-major host bytes (kPred: one byte per element); for small tables.
Value ConstantFromBytes(Builder& builder, const Type& type, std::span<const std::byte> bytes);
/// A rank-1 (or `dims`) kS64 constant.
Value ConstantS64(Builder& builder, std::span<const int64_t> values);

/// The largest and the lowest finite value of an element type, rank 0.
Value MaxFinite(Builder& builder, ElementType element);
Value MinFinite(Builder& builder, ElementType element);
/// The identities of max and min reductions: ∓infinity if the type has it, else the finite extreme;
/// false and true for kPred.
Value LowestOrNegInf(Builder& builder, ElementType element);
Value HighestOrInf(Builder& builder, ElementType element);

}  // namespace torch_xla::stablehlo
