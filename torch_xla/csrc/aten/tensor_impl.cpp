#include "aten/tensor_impl.h"

#include <c10/core/AutogradState.h>

#include "XLAOps.h"
#include "aten/layout.h"
#include "debug/metrics.h"
#include "exec/executor.h"
#include "tensor/device.h"
#include "tensor/node_factory.h"

namespace torch_xla::aten {
namespace {

debug::Counter& created = *new debug::Counter("CreateXlaTensor");
debug::Counter& destroyed = *new debug::Counter("DestroyXlaTensor");

/// Makes the backward passes of a thread that uses xla tensors run on that thread.
///
/// Autograd gives each device other than the CPU its own thread, so that kernels can be launched
/// concurrently. Tracing launches nothing, and waking that thread costs more than the whole
/// backward pass of a small model.
void KeepBackwardOnThread() {
  [[gnu::tls_model("initial-exec")]] thread_local bool done = false;
  if (C10_LIKELY(done)) return;
  done = true;
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
}

}  // namespace

XLATensorImpl::XLATensorImpl(tensor::StoragePtr storage, tensor::ViewPtr view,
                             caffe2::TypeMeta dtype, c10::IntArrayRef sizes)
    : c10::TensorImpl(c10::DispatchKeySet(c10::DispatchKey::XLA), dtype,
                      tensor::TorchDevice(storage->device())),
      root_(std::move(storage)),
      view_(std::move(view)) {
  created.Add();
  set_storage_access_should_throw();
  KeepBackwardOnThread();
  ShowAsContiguous(sizes);
}

XLATensorImpl::~XLATensorImpl() {
  destroyed.Add();
  delete part_.load(std::memory_order_relaxed);
  delete shown_.load(std::memory_order_relaxed);
}

void XLATensorImpl::DropMade() {
  delete part_.exchange(nullptr);
  delete shown_.exchange(nullptr);
}

void XLATensorImpl::ShowAsContiguous(c10::IntArrayRef sizes) {
  set_sizes_contiguous(sizes);
  const tensor::ViewStep* step = view_ ? &view_->last() : nullptr;
  storage_offset_ = step && !step->bitcast ? step->offset : 0;
  if (!view_ || view_->steps.size() == 1) return;
  const auto size = static_cast<int64_t>(dtype().itemsize());
  const std::optional<Layout> layout = LayoutOf(view_.get(), root_->shape()->dtype, sizes);
  if (layout && layout->begin % size == 0) storage_offset_ = layout->begin / size;
}

void XLATensorImpl::BecomeNormalTensor(c10::DispatchKeySet keys) {
  key_set_ = keys;
  set_version_counter(c10::VariableVersion(0));
}

const tensor::ViewPtr& XLATensorImpl::Part() const {
  tensor::ViewPtr* part = part_.load(std::memory_order_acquire);
  if (part) return *part;
  auto made = std::make_unique<tensor::ViewPtr>(tensor::RestrideView(
      nullptr, {sizes().begin(), sizes().end()}, tensor::ContiguousStrides(sizes()), 0));
  if (!part_.compare_exchange_strong(part, made.get(), std::memory_order_acq_rel)) return *part;
  return *made.release();
}

ir::Value XLATensorImpl::Resolve(ir::Value value) const {
  if (is_neg()) value = {tensor::MakeOpNode(&ir::ops::neg, {std::move(value)}, {}), 0};
  if (is_conj()) value = {tensor::MakeOpNode(&ir::ops::_conj_physical, {std::move(value)}, {}), 0};
  return value;
}

ir::Value XLATensorImpl::Read() const {
  exec::CutStepIfDue(root_->device());
  return Resolve(tensor::ReadView(*root_, view()));
}

void XLATensorImpl::Write(ir::Value value, bool same_for_all) {
  if (view() && !same_for_all && tensor::OverlapsItself(*view())) {
    delete shown_.exchange(nullptr);  // it holds the root, too, but represents no other tensor
    TORCH_CHECK(
        root_.use_count() == 1,
        "unsupported operation: more than one element of the written-to tensor refers to a "
        "single memory location. Please clone() the tensor before performing the operation.");
    // No other tensor uses the memory: this is a gradient that autograd kept as it was (the
    // gradient of a sum). Autograd would have copied it if it had seen the strides.
    Reset(c10::make_intrusive<tensor::Storage>(Resolve(std::move(value)), root_->device()), nullptr,
          tensor::Ints(sizes().begin(), sizes().end()));
    return;
  }
  tensor::WriteView(*root_, view(), Resolve(std::move(value)));
}

void XLATensorImpl::Reset(tensor::StoragePtr storage, tensor::ViewPtr view,
                          c10::IntArrayRef sizes) {
  root_ = std::move(storage);
  view_ = std::move(view);
  DropMade();
  ShowAsContiguous(sizes);
}

template <typename Version>
c10::intrusive_ptr<c10::TensorImpl> XLATensorImpl::Copy(Version&& version_counter,
                                                        bool allow_tensor_metadata_change) const {
  auto copy = c10::make_intrusive<XLATensorImpl>(root_, view_, dtype(), sizes());
  copy_tensor_metadata(this, copy.get(), std::forward<Version>(version_counter),
                       allow_tensor_metadata_change);
  return copy;
}

c10::intrusive_ptr<c10::TensorImpl> XLATensorImpl::shallow_copy_and_detach(
    const c10::VariableVersion& version_counter, bool allow_tensor_metadata_change) const {
  return Copy(version_counter, allow_tensor_metadata_change);
}

c10::intrusive_ptr<c10::TensorImpl> XLATensorImpl::shallow_copy_and_detach(
    c10::VariableVersion&& version_counter, bool allow_tensor_metadata_change) const {
  return Copy(std::move(version_counter), allow_tensor_metadata_change);
}

void XLATensorImpl::shallow_copy_from(const c10::intrusive_ptr<c10::TensorImpl>& impl) {
  auto* other = static_cast<XLATensorImpl*>(impl.get());
  copy_tensor_metadata(other, this, version_counter(), allow_tensor_metadata_change());
  root_ = other->root_;
  view_ = other->view_;
  DropMade();
}

XLATensorImpl* GetImpl(const at::Tensor& tensor, const char* what) {
  TORCH_CHECK(tensor.defined(), what, ": expected an xla tensor, got None");
  TORCH_CHECK(IsXla(tensor), what, ": expected an xla tensor, got a tensor on ", tensor.device(),
              tensor.device().is_xla() ? " that holds others, as a DTensor does: to_local()" : "");
  return static_cast<XLATensorImpl*>(tensor.unsafeGetTensorImpl());
}

}  // namespace torch_xla::aten
