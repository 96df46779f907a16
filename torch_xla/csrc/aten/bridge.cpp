#include "aten/bridge.h"

#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/empty.h>

#include <atomic>

#include "aten/after_read.h"
#include "aten/index_check.h"
#include "distributed/collective_node.h"
#include "exec/executor.h"
#include "exec/may_cut.h"
#include "exec/transfer.h"
#include "tensor/device.h"
#include "tensor/errors.h"
#include "tensor/origin.h"

namespace torch_xla::aten {

at::Tensor MakeTensor(ir::Value value, int device) {
  ir::ShapeRef shape = value.shape();
  return at::detail::make_tensor<XLATensorImpl>(
      c10::make_intrusive<tensor::Storage>(std::move(value), device), nullptr,
      c10::scalarTypeToTypeMeta(shape->dtype), shape->dims);
}

at::Tensor MakeFilled(const c10::Scalar& value, c10::ScalarType dtype, c10::IntArrayRef sizes,
                      int device) {
  ir::ShapeRef shape = ir::GetShape(dtype, sizes);
  return MakeTensor(tensor::MakeLeaf(c10::make_intrusive<tensor::DeviceData>(shape, device, value)),
                    device);
}

at::Tensor MakeView(const XLATensorImpl& base, tensor::ViewPtr view, caffe2::TypeMeta dtype,
                    c10::IntArrayRef sizes) {
  const bool is_normal = base.key_set().has(c10::DispatchKey::ADInplaceOrView);
  // A view of an inference tensor is one, too, wherever it is made.
  std::optional<c10::InferenceMode> as_base;
  if (!is_normal && !c10::InferenceMode::is_enabled()) as_base.emplace();
  auto tensor = at::detail::make_tensor<XLATensorImpl>(base.root(), std::move(view), dtype, sizes);
  if (is_normal && c10::InferenceMode::is_enabled()) {
    GetImpl(tensor)->BecomeNormalTensor(base.key_set());
  }
  if (base.is_conj()) tensor.unsafeGetTensorImpl()->_set_conj(true);
  if (base.is_neg()) tensor.unsafeGetTensorImpl()->_set_neg(true);
  return tensor;
}

ir::Value OperandValue(const at::Tensor& tensor, int device, const char* op, const char* arg) {
  TORCH_CHECK(tensor.defined(), op, ": argument `", arg, "` is not a defined tensor");
  if (IsXla(tensor)) {
    auto* impl = static_cast<XLATensorImpl*>(tensor.unsafeGetTensorImpl());
    TORCH_CHECK(impl->root()->device() == device, op,
                ": expected all tensors to be on the same device, but argument `", arg, "` is on ",
                tensor.device(), " and others are on ", tensor::TorchDevice(device));
    return impl->Read();
  }
  TORCH_CHECK(tensor.device().is_cpu() && tensor.dim() == 0, op,
              ": expected all tensors to be on the same device, but found at least two devices, ",
              tensor::TorchDevice(device), " and ", tensor.device(), "! (argument `", arg,
              "` is not an xla tensor: ", tensor.toString(), tensor.sizes(),
              "; move it with .to('xla'))");
  return tensor::MakeScalar(at::_local_scalar_dense(tensor), tensor.scalar_type(),
                            tensor.unsafeGetTensorImpl()->is_wrapped_number());
}

ir::Value Evaluate(const at::Tensor& tensor) {
  XLATensorImpl* impl = GetImpl(tensor);
  return impl->is_whole() ? exec::Evaluate(impl->root())
                          : exec::Evaluate(impl->Read(), impl->root()->device());
}

namespace {

/// Whether the tensor contains all elements of its storage in order, possibly as another dtype.
bool IsAllInOrder(const XLATensorImpl& impl) {
  const tensor::View* view = impl.view();
  if (!view || impl.is_conj() || impl.is_neg()) return false;
  int64_t numel = impl.root()->shape()->numel;
  for (const tensor::ViewStep& step : view->steps) {
    const int64_t seen = c10::multiply_integers(step.sizes);
    const bool all = step.offset == 0 && seen == numel && tensor::IsDense(step.sizes, step.strides);
    if (!step.bitcast && !all) return false;
    numel = seen;
  }
  return true;
}

/// `cpu` holds memory for the elements of `tensor`. Returns the same memory with the shape and
/// dtype of the tensor's storage, if both have the same bytes: then no program must be compiled to
/// read them. Else returns an undefined tensor.
at::Tensor ForStorage(const at::Tensor& tensor, const at::Tensor& cpu) {
  const XLATensorImpl& impl = *GetImpl(tensor);
  if (!IsAllInOrder(impl) || cpu.scalar_type() != tensor.scalar_type() || !cpu.is_contiguous() ||
      cpu.storage_offset() != 0 || reinterpret_cast<uintptr_t>(cpu.data_ptr()) % 16 != 0) {
    return {};
  }
  const ir::ShapeRef shape = impl.root()->shape();
  return cpu.view({-1}).view(shape->dtype).view(shape->dims);
}

std::atomic<void (*)()> after_read{nullptr};

void Copy(const at::Tensor& tensor, const at::Tensor& cpu) {
  if (indices_are_checked.load(std::memory_order_relaxed)) {
    ThrowIndexError(GetImpl(tensor)->root()->device());
  }
  // Held until the copy is done: a sync of another thread does not donate data that has an owner.
  const at::Tensor all = ForStorage(tensor, cpu);
  const ir::Value leaf = all.defined() ? exec::Evaluate(GetImpl(tensor)->root()) : Evaluate(tensor);
  tensor::DeviceData& data = *tensor::LeafData(leaf);
  try {
    exec::ToHost(data, all.defined() ? all : cpu);
  } catch (...) {
    // The error of the execution says more: it has the line, and what the execution needs.
    const std::exception_ptr failure = exec::TakeFailure(data);
    tensor::ThrowToUser(failure ? failure : std::current_exception());
  }
}

/// Runs the traced calls of host functions, in one program with the value that is read, and waits
/// for the calls of the programs that were launched before: another program may make the value.
void RunCallsOfHost(tensor::Storage& read) {
  const int device = read.device();
  if (distributed::CollectivePending(device)) {
    exec::SyncStorages(
        {distributed::CollectiveToken(device), tensor::StoragePtr::reclaim_copy(&read)},
        /*wait=*/true);
  } else if (const at::Tensor token = CollectiveTokenTensor(device, /*make=*/false);
             token.defined()) {
    Copy(token, at::empty(token.sizes(), at::TensorOptions().dtype(token.scalar_type())));
  }
}

}  // namespace

void SetAfterRead(void (*raise)()) { after_read.store(raise, std::memory_order_relaxed); }

void CopyToCpu(const at::Tensor& tensor, const at::Tensor& cpu) {
  if (exec::MayCut()) {
    const auto raise = after_read.load(std::memory_order_relaxed);
    if (raise) RunCallsOfHost(*GetImpl(tensor)->root());
    Copy(tensor, cpu);
    if (raise) raise();
    return;
  }
  try {
    Copy(tensor, cpu);
  } catch (const c10::Error& error) {
    // While a function is traced there is nothing to read. Add the reader, which the error does not
    // name.
    TORCH_CHECK(false, error.what_without_backtrace(),
                " (read by: ", tensor::CurrentOrigin().ToString(), ")");
  }
}

at::Tensor ToCpu(const at::Tensor& tensor) {
  at::Tensor cpu = at::empty(tensor.sizes(), at::TensorOptions().dtype(tensor.scalar_type()));
  CopyToCpu(tensor, cpu);
  return cpu;
}

at::Tensor FromCpu(const at::Tensor& cpu, int device) {
  return MakeTensor(tensor::MakeLeaf(exec::ToDevice(cpu, device)), device);
}

at::Tensor CollectiveTokenTensor(int device, bool make) {
  tensor::StoragePtr token = distributed::CollectiveToken(device, make);
  if (!token) return {};
  const ir::ShapeRef shape = token->shape();
  return at::detail::make_tensor<XLATensorImpl>(
      std::move(token), nullptr, c10::scalarTypeToTypeMeta(shape->dtype),
      tensor::Ints(shape->dims.begin(), shape->dims.end()));
}

}  // namespace torch_xla::aten
