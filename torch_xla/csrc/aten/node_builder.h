// Records a call of an operator as a node. Generated kernels, and hand-written kernels that only
// prepare their arguments, pass the arguments in the order of the schema and then say where the
// result goes.
//
// This is the hot path of tracing: it uses no strings, no look-ups and no locks.
#pragma once

#include <ATen/core/IListRef.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>

#include <forward_list>
#include <tuple>

#include "aten/assign.h"
#include "aten/bridge.h"
#include "ir/attributes.h"

namespace torch_xla::aten {

class NodeBuilder {
 public:
  explicit NodeBuilder(const ir::OpSpec& op) : op_(op), words_(attributes_) {}

  /// Adds arguments by their types: tensors that may be absent, integers, lists of them, bools and
  /// doubles. For other kinds of arguments there are functions with their names.
  template <typename... Args>
  void Add(const Args&... args) {
    (One(args), ...);
  }
  void Tensor(const at::Tensor& tensor) {
    if (IsXla(tensor)) {
      auto* impl = static_cast<XLATensorImpl*>(tensor.unsafeGetTensorImpl());
      const int device = impl->root()->device();
      if (device_ < 0) device_ = device;
      if (device == device_) {
        if (impl->root().get() == written_) Share(*impl);
        operands_.push_back({impl->Read()});
        ++arg_;
        return;
      }
    }
    Foreign(tensor);
  }
  void OptionalTensor(const std::optional<at::Tensor>& tensor) {
    bool present = tensor && tensor->defined();
    words_.Int(present);
    if (present) {
      Tensor(*tensor);
    } else {
      ++arg_;
    }
  }
  template <typename List>
  void TensorList(const List& list) {
    words_.Int(static_cast<int64_t>(list.size()));
    for (const at::Tensor& tensor : list) {
      Tensor(tensor);
      --arg_;
    }
    ++arg_;
  }
  void OptionalTensorList(const c10::List<std::optional<at::Tensor>>& list) {
    words_.Int(static_cast<int64_t>(list.size()));
    for (const std::optional<at::Tensor>& tensor : list) {
      OptionalTensor(tensor);
      --arg_;
    }
    ++arg_;
  }
  void Scalar(const at::Scalar& value) {
    operands_.push_back(tensor::MakeScalar(value));
    ++arg_;
  }
  void OptionalScalar(const std::optional<at::Scalar>& value) {
    words_.Int(value.has_value());
    if (value) {
      Scalar(*value);
    } else {
      ++arg_;
    }
  }
  void ScalarList(at::ArrayRef<at::Scalar> list) {
    words_.Int(static_cast<int64_t>(list.size()));
    for (const at::Scalar& value : list) operands_.push_back(tensor::MakeScalar(value));
    ++arg_;
  }
  void ConstantScalar(const at::Scalar& value) {
    Word([&] { words_.ScalarNumber(value); });
  }
  void OptionalConstantScalar(const std::optional<at::Scalar>& value) {
    Optional(value, [&](const at::Scalar& v) { words_.ScalarNumber(v); });
  }
  void Int(int64_t value) {
    Word([&] { words_.Int(value); });
  }
  void OptionalInt(std::optional<int64_t> value) {
    Optional(value, [&](int64_t v) { words_.Int(v); });
  }
  void IntList(at::IntArrayRef values) {
    Word([&] { words_.IntList(values); });
  }
  void OptionalIntList(const at::OptionalIntArrayRef& values) {
    Optional(values, [&](at::IntArrayRef v) { words_.IntList(v); });
  }
  void Bool(bool value) { Int(value); }
  void OptionalBool(std::optional<bool> value) {
    Optional(value, [&](bool v) { words_.Int(v); });
  }
  template <typename Bools>
  void BoolList(const Bools& values) {
    Word([&] { words_.BoolList(values); });
  }
  /// Adds an integer for which another value needs no compilation.
  void IntNumber(int64_t value) {
    Word([&] { words_.IntNumber(value); });
  }
  /// The same for each integer of a list.
  void IntListNumber(at::IntArrayRef values) {
    Int(static_cast<int64_t>(values.size()));
    for (int64_t value : values) IntNumber(value);
  }
  void Double(double value) {
    Word([&] { words_.DoubleNumber(value); });
  }
  void OptionalDouble(std::optional<double> value) {
    Optional(value, [&](double v) { words_.DoubleNumber(v); });
  }
  /// Adds a double that is a constant of the program.
  void FixedDouble(double value) {
    Word([&] { words_.Double(value); });
  }
  void OptionalFixedDouble(std::optional<double> value) {
    Optional(value, [&](double v) { words_.Double(v); });
  }
  void FixedScalar(const at::Scalar& value) {
    Word([&] { words_.Scalar(value); });
  }
  void DoubleList(at::ArrayRef<double> values) {
    Word([&] { words_.DoubleList(values); });
  }
  void OptionalDoubleList(const std::optional<at::ArrayRef<double>>& values) {
    Optional(values, [&](at::ArrayRef<double> v) { words_.DoubleList(v); });
  }
  void Dtype(at::ScalarType value) { Int(static_cast<int64_t>(value)); }
  void OptionalDtype(std::optional<at::ScalarType> value) {
    Optional(value, [&](at::ScalarType v) { words_.Int(static_cast<int64_t>(v)); });
  }
  void String(std::string_view text) {
    Word([&] { words_.String(text); });
  }
  void OptionalString(std::optional<std::string_view> text) {
    Optional(text, [&](std::string_view v) { words_.String(v); });
  }

  /// Must be called before the arguments of an in-place or out= op. Tells which memory the op
  /// writes; `self` is given for an in-place op, whose first argument is the written tensor itself.
  void Writes(const at::Tensor& written, const at::Tensor* self = nullptr) {
    if (!IsXla(written)) return;
    written_ = GetImpl(written)->root().get();
    if (self) self_ = written.unsafeGetTensorImpl();
  }
  /// Gives the result the dtype and the sizes of this tensor, so that no Meta kernel is called.
  void Like(const at::Tensor& tensor) {
    like_ = ir::GetShape(tensor.scalar_type(), tensor.sizes());
  }
  /// Returns the result as a new tensor.
  at::Tensor Single() { return MakeTensor({Node(), 0}, device_); }
  /// Returns N results as new tensors; a result that the op leaves out is undefined.
  template <size_t N>
  auto Tuple() {
    ir::NodePtr node = Node();
    return [&]<size_t... I>(std::index_sequence<I...>) {
      return std::make_tuple(Result(node, I)...);
    }(std::make_index_sequence<N>());
  }
  std::vector<at::Tensor> List();
  /// The same with results of these shapes, so that no Meta kernel is called.
  std::vector<at::Tensor> List(const ir::OutputShapes& shapes);
  /// Overwrites a tensor with the result.
  void InPlace(const at::Tensor& self) {
    if (!shared_.empty()) CheckOverlap(self, nullptr);
    AssignInPlace(self, {Node(), 0}, op_.name);
  }
  /// Overwrites tensors of any shape, and of the dtypes that the out= overload accepts, with the
  /// results.
  void Out(std::initializer_list<const at::Tensor*> outs, const char* out_overload);

 private:
  void One(const at::Tensor& tensor) { Tensor(tensor); }
  void One(const std::optional<at::Tensor>& tensor) { OptionalTensor(tensor); }
  void One(at::IntArrayRef values) { IntList(values); }
  void One(int64_t value) { Int(value); }
  void One(bool value) { Bool(value); }
  void One(double value) { Double(value); }
  template <typename F>
  void Word(F write) {
    write();
    ++arg_;
  }
  template <typename T, typename F>
  void Optional(const T& value, F write) {
    words_.Int(value.has_value());
    if (value.has_value()) write(*value);
    ++arg_;
  }
  /// Adds a tensor that is not on the device: it becomes a number, or an error is thrown.
  void Foreign(const at::Tensor& tensor);
  /// Notes that an operand shares memory with the written tensor.
  void Share(const XLATensorImpl& operand) {
    if (&operand == self_) {
      self_ = nullptr;
    } else {
      shared_.emplace_front(operands_.size(), &operand);
    }
  }
  /// Throws the error of the CPU's kernel if that refuses to write memory that it reads.
  void CheckOverlap(const at::Tensor& written, const char* out_overload);
  ir::NodePtr Node();
  std::vector<at::Tensor> Results(const ir::NodePtr& node) const;
  at::Tensor Result(const ir::NodePtr& node, size_t index) const {
    if (!node->shape(index)) return {};
    return MakeTensor({node, static_cast<uint32_t>(index)}, device_);
  }

  const ir::OpSpec& op_;
  int device_ = -1;
  ir::ShapeRef like_ = nullptr;
  const tensor::Storage* written_ = nullptr;
  const c10::TensorImpl* self_ = nullptr;
  std::forward_list<std::pair<size_t, const XLATensorImpl*>> shared_;
  int arg_ = 0;  // index of the next argument, for messages
  ir::Node::Operands operands_;
  ir::Words attributes_;
  ir::AttributeWriter words_;
};

}  // namespace torch_xla::aten
