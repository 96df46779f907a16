// Records a `_foreach_` call as a single node for the whole list. Generated kernels pass the
// arguments in the order of the schema. A call that is not uniform (see Uniform) uses PyTorch's own
// loop over the tensors instead.
#pragma once

#include <ATen/core/Tensor.h>

#include "aten/bridge.h"

namespace torch_xla::aten {

class ForeachBuilder {
 public:
  explicit ForeachBuilder(const ir::OpSpec& op) : op_(op), words_(attributes_) {}

  /// The first list determines the shapes of the results.
  void TensorList(at::TensorList list);
  /// Adds one tensor for all elements.
  void Tensor(const at::Tensor& tensor);
  void Scalar(const at::Scalar& value);
  void ScalarList(at::ArrayRef<at::Scalar> list);

  /// Whether each result has the floating-point dtype and the sizes of its element of the first
  /// list, and everything is on one device. Then no shapes must be inferred.
  bool Uniform() const { return uniform_ && !shapes_.empty(); }
  /// Whether the call is uniform, and no element is written before another element reads it.
  bool UniformInPlace() const;

  std::vector<at::Tensor> List();
  /// Overwrites the tensors of the first list with the results.
  void InPlace();

 private:
  ir::NodePtr Node();

  const ir::OpSpec& op_;
  bool uniform_ = true;
  int device_ = -1;
  at::TensorList first_;
  std::vector<ir::ShapeRef> shapes_;  // of the first list
  /// Storages of other operands, with the index of the element that reads them.
  std::vector<std::pair<const tensor::Storage*, size_t>> reads_;
  ir::Node::Operands operands_;
  ir::Words attributes_;
  ir::AttributeWriter words_;
};

}  // namespace torch_xla::aten
