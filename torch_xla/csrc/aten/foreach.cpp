#include "aten/foreach.h"

#include <algorithm>

#include "ir/attributes.h"

namespace torch_xla::aten {
namespace {

/// Whether an operand does not change the shape and dtype of a result: it has the same shape
/// (shapes are interned), or it is a zero-dim tensor, which promotes nothing within its category.
bool Fits(ir::ShapeRef operand, ir::ShapeRef result) {
  return operand == result || (operand->rank() == 0 && !c10::isComplexType(operand->dtype) &&
                               (result->rank() > 0 || operand->dtype == result->dtype));
}

}  // namespace

void ForeachBuilder::TensorList(at::TensorList list) {
  words_.Int(static_cast<int64_t>(list.size()));
  const bool is_first = first_.empty();
  if (is_first) {
    first_ = list;
    shapes_.reserve(list.size());
  }
  uniform_ &= list.size() == first_.size();
  operands_.reserve(operands_.size() + list.size());
  for (size_t i = 0; uniform_ && i < list.size(); ++i) {
    if (!IsXla(list[i])) {
      uniform_ = false;
      return;
    }
    auto* impl = static_cast<XLATensorImpl*>(list[i].unsafeGetTensorImpl());
    if (device_ < 0) device_ = impl->root()->device();
    ir::Value value = impl->Read();
    if (is_first) {
      shapes_.push_back(value.shape());
      uniform_ &= c10::isFloatingType(value.shape()->dtype);
    } else {
      reads_.emplace_back(impl->root().get(), i);
    }
    uniform_ &= impl->root()->device() == device_ && Fits(value.shape(), shapes_[i]);
    operands_.push_back(std::move(value));
  }
}

void ForeachBuilder::Tensor(const at::Tensor& tensor) {
  uniform_ &= IsXla(tensor) && tensor.dim() == 0;
  if (!uniform_) return;
  auto* impl = static_cast<XLATensorImpl*>(tensor.unsafeGetTensorImpl());
  uniform_ &= impl->root()->device() == device_;
  ir::Value value = impl->Read();
  for (ir::ShapeRef shape : shapes_) uniform_ &= Fits(value.shape(), shape);
  reads_.emplace_back(impl->root().get(), shapes_.size());
  operands_.push_back(std::move(value));
}

void ForeachBuilder::Scalar(const at::Scalar& value) {
  uniform_ &= !value.isComplex();
  operands_.push_back(tensor::MakeScalar(value));
}

void ForeachBuilder::ScalarList(at::ArrayRef<at::Scalar> list) {
  words_.Int(static_cast<int64_t>(list.size()));
  uniform_ &= list.size() == first_.size();
  operands_.reserve(operands_.size() + list.size());
  for (const at::Scalar& value : list) Scalar(value);
}

bool ForeachBuilder::UniformInPlace() const {
  if (!Uniform()) return false;
  using Write = std::pair<const tensor::Storage*, size_t>;
  std::vector<Write> writes;
  writes.reserve(first_.size());
  for (const at::Tensor& tensor : first_) {
    auto* impl = static_cast<XLATensorImpl*>(tensor.unsafeGetTensorImpl());
    writes.emplace_back(impl->root().get(), writes.size());
  }
  std::sort(writes.begin(), writes.end());
  auto same = [](const Write& a, const Write& b) { return a.first == b.first; };
  if (std::adjacent_find(writes.begin(), writes.end(), same) != writes.end()) return false;
  return std::all_of(reads_.begin(), reads_.end(), [&](const auto& read) {
    auto write = std::lower_bound(writes.begin(), writes.end(), Write{read.first, 0});
    return write == writes.end() || write->first != read.first || write->second > read.second;
  });
}

// GCC 12 wrongly reports that the inline elements of a moved SmallVector are uninitialized.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
ir::NodePtr ForeachBuilder::Node() {
  return tensor::MakeOpNode(&op_, std::move(operands_), std::move(attributes_), [&] {
    ir::OutputShapes outputs;
    for (ir::ShapeRef shape : shapes_) outputs.shapes.push_back(shape);
    return outputs;
  });
}
#pragma GCC diagnostic pop

std::vector<at::Tensor> ForeachBuilder::List() {
  ir::NodePtr node = Node();
  std::vector<at::Tensor> results;
  results.reserve(shapes_.size());
  for (uint32_t i = 0; i < shapes_.size(); ++i) results.push_back(MakeTensor({node, i}, device_));
  return results;
}

void ForeachBuilder::InPlace() {
  ir::NodePtr node = Node();
  for (uint32_t i = 0; i < shapes_.size(); ++i) {
    auto* impl = static_cast<XLATensorImpl*>(first_[i].unsafeGetTensorImpl());
    impl->Write({node, i});
    impl->bump_version();  // autograd leaves this to the kernel for lists
  }
}

}  // namespace torch_xla::aten
