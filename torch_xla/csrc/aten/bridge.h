// Between at::Tensor and the lazy layer.
#pragma once

#include "aten/tensor_impl.h"
#include "tensor/node_factory.h"

namespace torch_xla::aten {

/// The current IR value of an xla tensor.
inline ir::Value GetIrValue(const at::Tensor& tensor) { return GetImpl(tensor)->Read(); }

/// A new tensor with a storage of its own.
at::Tensor MakeTensor(ir::Value value, int device);
at::Tensor MakeFilled(const c10::Scalar& value, c10::ScalarType dtype, c10::IntArrayRef sizes,
                      int device);
/// A tensor that shares the storage of `base` and looks at it through `view`.
at::Tensor MakeView(const XLATensorImpl& base, lazy::ViewPtr view, caffe2::TypeMeta dtype,
                    c10::IntArrayRef sizes);

/// The value of an operand on `device`: an xla tensor there, or a zero-dim CPU tensor,
/// which becomes a number of the program. Anything else is an error.
ir::Value OperandValue(const at::Tensor& tensor, int device, const char* op, const char* arg);

/// The leaf with the content of an xla tensor; what of it is pending is executed.
ir::Value Evaluate(const at::Tensor& tensor);
/// A CPU tensor with the content of an xla tensor. Blocks until it is computed.
at::Tensor ToCpu(const at::Tensor& tensor);
/// The same into an existing CPU tensor of the same sizes.
void CopyToCpu(const at::Tensor& tensor, const at::Tensor& cpu);
at::Tensor FromCpu(const at::Tensor& cpu, int device);

/// The token of the device's collectives, which is state that no tensor leads to; undefined where
/// there is none and none shall be made.
at::Tensor CollectiveTokenTensor(int device, bool make = false);

}  // namespace torch_xla::aten
