// Decodes a node's operands and attributes in the order of its schema. Generated code calls one
// method per argument, named after its ArgKind.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "ir/attributes.h"
#include "lowering/context.h"

namespace torch_xla::lowering {

class ArgReader {
 public:
  ArgReader(LoweringContext& cx, const ir::Node& node)
      : cx_(cx), node_(node), words_(node.attributes()) {}

  Value Tensor() { return cx_.Lowered(node_.operands()[next_++]); }
  Value Scalar() { return Tensor(); }
  std::optional<Value> OptionalTensor() {
    return Optional([&] { return Tensor(); });
  }
  std::optional<Value> OptionalScalar() { return OptionalTensor(); }
  std::vector<Value> TensorList() {
    std::vector<Value> values(words_.Int());
    for (Value& value : values) value = Tensor();
    return values;
  }
  std::vector<std::optional<Value>> OptionalTensorList() {
    std::vector<std::optional<Value>> values(words_.Int());
    for (auto& value : values) value = OptionalTensor();
    return values;
  }
  std::vector<Value> ScalarList() { return TensorList(); }
  Number ConstantScalar() {
    const size_t word = words_.position() + 1;
    const c10::Scalar value = words_.Scalar();
    auto parameter = cx_.NumberParameter(word);
    if (!value.isComplex()) return parameter ? Number(*parameter) : Number(value);
    // One part may be a parameter while the other part is constant.
    auto imag = cx_.NumberParameter(word + 1);
    if (!parameter && !imag) return value;
    const c10::complex<double> known = value.toComplexDouble();
    if (!parameter) parameter = stablehlo::FullLike(*imag, known.real());
    if (!imag) imag = stablehlo::FullLike(*parameter, known.imag());
    return Number(stablehlo::Complex(*parameter, *imag));
  }
  std::optional<Number> OptionalConstantScalar() {
    return Optional([&] { return ConstantScalar(); });
  }
  c10::Scalar FixedScalar() { return words_.Scalar(); }
  Number IntNumber() {
    auto parameter = cx_.NumberParameter(words_.position());
    const int64_t value = words_.Int();
    return parameter ? Number(*parameter) : Number(value);
  }
  std::vector<Number> IntListNumber() {
    const auto size = static_cast<size_t>(words_.Int());
    std::vector<Number> numbers;
    numbers.reserve(size);
    while (numbers.size() < size) numbers.push_back(IntNumber());
    return numbers;
  }
  int64_t Int() { return words_.Int(); }
  std::optional<int64_t> OptionalInt() {
    return Optional([&] { return Int(); });
  }
  c10::IntArrayRef IntList() { return words_.IntList(); }
  std::optional<c10::IntArrayRef> OptionalIntList() {
    return Optional([&] { return IntList(); });
  }
  bool Bool() { return words_.Bool(); }
  std::optional<bool> OptionalBool() {
    return Optional([&] { return Bool(); });
  }
  std::vector<bool> BoolList() {
    c10::IntArrayRef values = words_.IntList();
    return std::vector<bool>(values.begin(), values.end());
  }
  Number Double() {
    auto parameter = cx_.NumberParameter(words_.position());
    const double value = words_.Double();
    return parameter ? Number(*parameter) : Number(value);
  }
  std::optional<Number> OptionalDouble() {
    return Optional([&] { return Double(); });
  }
  double FixedDouble() { return words_.Double(); }
  std::optional<double> OptionalFixedDouble() {
    return Optional([&] { return FixedDouble(); });
  }
  /// Reads `count` arguments of the schema as a list.
  std::vector<std::optional<double>> OptionalFixedDoubles(size_t count) {
    std::vector<std::optional<double>> values(count);
    for (auto& value : values) value = OptionalFixedDouble();
    return values;
  }
  c10::ArrayRef<double> DoubleList() { return words_.DoubleList(); }
  std::optional<c10::ArrayRef<double>> OptionalDoubleList() {
    return Optional([&] { return DoubleList(); });
  }
  c10::ScalarType Dtype() { return static_cast<c10::ScalarType>(words_.Int()); }
  std::optional<c10::ScalarType> OptionalDtype() {
    return Optional([&] { return Dtype(); });
  }
  std::string_view String() { return words_.String(); }
  std::optional<std::string_view> OptionalString() {
    return Optional([&] { return String(); });
  }

 private:
  template <typename F>
  auto Optional(F read) -> std::optional<decltype(read())> {
    if (!words_.Bool()) return std::nullopt;
    return read();
  }

  LoweringContext& cx_;
  const ir::Node& node_;
  ir::AttributeReader words_;
  size_t next_ = 0;
};

}  // namespace torch_xla::lowering
