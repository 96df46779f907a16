// Decodes a node's operands and attributes in the order of its schema. Generated
// code calls one method per argument, named as the ArgKind.
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
  c10::Scalar ConstantScalar() { return words_.Scalar(); }
  std::optional<c10::Scalar> OptionalConstantScalar() {
    return Optional([&] { return ConstantScalar(); });
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
  double Double() { return words_.Double(); }
  std::optional<double> OptionalDouble() {
    return Optional([&] { return Double(); });
  }
  /// `count` arguments of the schema as one list.
  std::vector<std::optional<double>> OptionalDoubles(size_t count) {
    std::vector<std::optional<double>> values(count);
    for (auto& value : values) value = OptionalDouble();
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
