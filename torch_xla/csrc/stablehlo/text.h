// The text of attributes and errors, for the files of this folder.
#pragma once

#include <concepts>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stablehlo/builder.h"

namespace torch_xla::stablehlo {

/// Appends strings, numbers and bools to `out`.
void AppendInt(std::string& out, int64_t value);
inline void AppendOne(std::string& out, std::string_view text) { out += text; }
template <std::integral T>
void AppendOne(std::string& out, T value) {
  if constexpr (std::same_as<T, bool>) {
    out += value ? "true" : "false";
  } else {
    AppendInt(out, static_cast<int64_t>(value));
  }
}
template <typename... Parts>
std::string Cat(const Parts&... parts) {
  std::string out;
  (AppendOne(out, parts), ...);
  return out;
}

/// [1, 2]
std::string List(std::span<const int64_t> values);
/// array<i64: 1, 2>
std::string I64Array(std::span<const int64_t> values);
/// array<i1: true, false>
std::string BoolArray(const std::vector<bool>& values);
/// dense<…> : tensor<NxMxi64> with one row per list; short rows are filled with `fill`.
std::string I64Matrix(const std::vector<std::vector<int64_t>>& rows, int64_t columns, int64_t fill);
/// A quoted and escaped MLIR string.
std::string Quoted(std::string_view text);
/// "tensor<2xf32>, tensor<i1>"
std::string TypeNames(std::span<const Value> values);
std::string TypeNames(std::span<const Type> types);
std::vector<Type> TypesOf(std::span<const Value> values);

/// Throws Error: "stablehlo.add: expected <expected>, got <operand types>".
[[noreturn]] void Fail(std::string_view op, std::string_view expected,
                       std::span<const Value> operands);
[[noreturn]] void Fail(std::string_view op, std::string_view expected,
                       std::initializer_list<Value> operands);

/// Fails unless every value is a valid tensor of the same builder; returns that builder.
Builder& CheckTensors(std::string_view op, std::span<const Value> operands);
Builder& CheckTensors(std::string_view op, std::initializer_list<Value> operands);
/// Fails unless `dimensions` are distinct and in [0, rank).
void CheckDistinct(std::string_view op, std::string_view what, const Dims& dimensions, int64_t rank,
                   std::span<const Value> operands);
/// Whether `values` equal `expected` in number and type.
bool SameTypes(std::span<const Type> values, std::span<const Type> expected);

/// A rank-0 type.
inline Type ScalarType(ElementType element) { return Type(element, {}); }
/// kF32 for kC64, kF64 for kC128, else the type itself.
ElementType RealOf(ElementType element);
/// The operation that combines two values, for example "stablehlo.add".
std::string_view CombinerName(int reduce_op);

}  // namespace torch_xla::stablehlo
