// The at::TensorImpl of the xla device: a storage, or a view of it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <atomic>
#include <typeinfo>

#include "tensor/storage.h"
#include "tensor/view.h"

namespace torch_xla::aten {

class XLATensorImpl final : public c10::TensorImpl {
 public:
  /// A tensor over the whole storage (`view` null) or over a view of it. The user sees it as
  /// contiguous in either case.
  XLATensorImpl(tensor::StoragePtr storage, tensor::ViewPtr view, caffe2::TypeMeta dtype,
                c10::IntArrayRef sizes);
  ~XLATensorImpl() override;

  const tensor::StoragePtr& root() const { return root_; }
  const tensor::View* view() const { return view_ptr().get(); }
  /// Null means the whole storage.
  const tensor::ViewPtr& view_ptr() const {
    if (view_ || c10::IntArrayRef(root_->shape()->dims) == sizes()) return view_;
    return Part();
  }

  /// Whether its content equals the value of its storage.
  bool is_whole() const { return !view() && !is_conj() && !is_neg(); }

  /// The current content.
  ir::Value Read() const;
  /// Overwrites the content, and so what other views of the storage see. If several elements share
  /// memory (expand), the value must be equal for all of them.
  void Write(ir::Value value, bool same_for_all = false);
  /// Makes this tensor use another storage or view (set_, resize_).
  void Reset(tensor::StoragePtr storage, tensor::ViewPtr view, c10::IntArrayRef sizes);

  /// Under InferenceMode new tensors are inference tensors. A view of a normal tensor must be a
  /// normal tensor with the dispatch keys of that tensor.
  void BecomeNormalTensor(c10::DispatchKeySet keys);

  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(
      const c10::VariableVersion& version_counter,
      bool allow_tensor_metadata_change) const override;
  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(
      c10::VariableVersion&& version_counter, bool allow_tensor_metadata_change) const override;
  void shallow_copy_from(const c10::intrusive_ptr<c10::TensorImpl>& impl) override;

  /// Tells whether tensors share memory (DDP's buckets ask for it); see TorchStorage.
  const c10::Storage& storage() const override;

 private:
  /// Sets the sizes, strides and storage offset that the user sees: a contiguous block that begins
  /// at the first element.
  void ShowAsContiguous(c10::IntArrayRef sizes);
  const char* tensorimpl_type_name() const override { return "XLATensorImpl"; }
  template <typename Version>
  c10::intrusive_ptr<c10::TensorImpl> Copy(Version&& version_counter,
                                           bool allow_tensor_metadata_change) const;

  /// Drops the objects that were made from the previous root and view.
  void DropMade();
  /// A view for a storage that was resized through another tensor: its shape has changed, but its
  /// elements are still in their places. Thread-safe.
  const tensor::ViewPtr& Part() const;
  /// Applies PyTorch's lazy conj and neg bits to the value.
  ir::Value Resolve(ir::Value value) const;

  tensor::StoragePtr root_;
  tensor::ViewPtr view_;
  // Made when first needed.
  mutable std::atomic<tensor::ViewPtr*> part_{nullptr};
  mutable std::atomic<c10::Storage*> shown_{nullptr};
};

/// The tensors of FakeTensor on the meta device have the dispatch keys of the device that they
/// represent, but they are no xla tensors.
inline bool IsXla(const at::Tensor& tensor) {
  return tensor.defined() && typeid(*tensor.unsafeGetTensorImpl()) == typeid(XLATensorImpl);
}

/// The impl of an xla tensor. Throws an error that names `what` for any other tensor.
XLATensorImpl* GetImpl(const at::Tensor& tensor, const char* what = "tensor");

}  // namespace torch_xla::aten
