// Connects at::Tensor with the lazy layer.
#pragma once

#include "aten/tensor_impl.h"
#include "tensor/node_factory.h"

namespace torch_xla::aten {

/// The current IR value of an xla tensor.
inline ir::Value GetIrValue(const at::Tensor& tensor) { return GetImpl(tensor)->Read(); }

/// Makes a new tensor with its own storage.
at::Tensor MakeTensor(ir::Value value, int device);
at::Tensor MakeFilled(const c10::Scalar& value, c10::ScalarType dtype, c10::IntArrayRef sizes,
                      int device);
/// Makes a tensor that shares the storage of `base` through `view`.
at::Tensor MakeView(const XLATensorImpl& base, tensor::ViewPtr view, caffe2::TypeMeta dtype,
                    c10::IntArrayRef sizes);

/// The value of an operand on `device`: an xla tensor on that device, or a zero-dim CPU tensor,
/// which becomes a number of the program. Throws for anything else.
ir::Value OperandValue(const at::Tensor& tensor, int device, const char* op, const char* arg);

/// The leaf with the content of an xla tensor. Executes the pending operations that it needs.
ir::Value Evaluate(const at::Tensor& tensor);
/// Copies an xla tensor to a new CPU tensor. Blocks until the content is computed.
at::Tensor ToCpu(const at::Tensor& tensor);
/// Copies into an existing CPU tensor of the same sizes.
void CopyToCpu(const at::Tensor& tensor, const at::Tensor& cpu);
at::Tensor FromCpu(const at::Tensor& cpu, int device);

/// The token of the device's collectives, which is state that no tensor leads to; undefined where
/// there is none and none shall be made.
at::Tensor CollectiveTokenTensor(int device, bool make = false);

}  // namespace torch_xla::aten
