// Records a `_foreach_` call as one node for the whole list. Generated kernels name the
// arguments in the order of the schema; a call that is not uniform (see Uniform) goes to
// PyTorch's own loop over the tensors instead.
#pragma once

#include <ATen/core/Tensor.h>

#include "aten/bridge.h"

namespace torch_xla::aten {

class ForeachBuilder {
 public:
  explicit ForeachBuilder(const ir::OpSpec& op) : op_(op), words_(attributes_) {}

  /// The first list says what the results look like.
  void TensorList(at::TensorList list);
  /// One tensor for all elements.
  void Tensor(const at::Tensor& tensor);
  void Scalar(const at::Scalar& value);
  void ScalarList(at::ArrayRef<at::Scalar> list);

  /// Whether each result has the floating-point dtype and the sizes of its element of the
  /// first list, and everything is on one device: then no shape need be inferred.
  bool Uniform() const { return uniform_ && !shapes_.empty(); }
  /// Uniform, and no element is written before another one reads it.
  bool UniformInPlace() const;

  std::vector<at::Tensor> List();
  /// The results overwrite the tensors of the first list.
  void InPlace();

 private:
  ir::NodePtr Node();

  const ir::OpSpec& op_;
  bool uniform_ = true;
  int device_ = -1;
  at::TensorList first_;
  std::vector<ir::ShapeRef> shapes_;  // of the first list
  /// Other operands' storages and the index of the element that reads them.
  std::vector<std::pair<const lazy::Storage*, size_t>> reads_;
  ir::Node::Operands operands_;
  ir::Words attributes_;
  ir::AttributeWriter words_;
};

}  // namespace torch_xla::aten
