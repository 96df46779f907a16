// The at::TensorImpl of the xla device: a look (a view, or all) at a storage.
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
  /// A tensor over the whole storage (`view` null) or over a view of it; it is contiguous
  /// to the user whatever the view.
  XLATensorImpl(lazy::StoragePtr storage, lazy::ViewPtr view, caffe2::TypeMeta dtype,
                c10::IntArrayRef sizes);
  ~XLATensorImpl() override;

  const lazy::StoragePtr& root() const { return root_; }
  const lazy::View* view() const { return view_ptr().get(); }
  /// Null: the whole storage.
  const lazy::ViewPtr& view_ptr() const {
    if (view_ || c10::IntArrayRef(root_->shape()->dims) == sizes()) return view_;
    return Part();
  }

  /// Whether its content is its storage's, as it stands there.
  bool is_whole() const { return !view() && !is_conj() && !is_neg(); }

  /// The current content.
  ir::Value Read() const;
  /// Overwrites it (and so what every view of it sees). Where several elements are one in
  /// memory (expand) only a value that is the same for all of them may be written.
  void Write(ir::Value value, bool same_for_all = false);
  /// Looks at something else from now on (set_, resize_).
  void Reset(lazy::StoragePtr storage, lazy::ViewPtr view, c10::IntArrayRef sizes);

  /// Under InferenceMode new tensors are inference tensors, but a view of a normal tensor is
  /// a normal tensor with the keys of that.
  void BecomeNormalTensor(c10::DispatchKeySet keys);

  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(
      const c10::VariableVersion& version_counter,
      bool allow_tensor_metadata_change) const override;
  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(
      c10::VariableVersion&& version_counter, bool allow_tensor_metadata_change) const override;
  void shallow_copy_from(const c10::intrusive_ptr<c10::TensorImpl>& impl) override;

  /// What tells whether tensors share memory (DDP's buckets ask): see TorchStorage.
  const c10::Storage& storage() const override;

 private:
  /// The sizes, strides and storage offset that the user sees: a contiguous block that begins where
  /// the elements do.
  void ShowAsContiguous(c10::IntArrayRef sizes);
  const char* tensorimpl_type_name() const override { return "XLATensorImpl"; }
  template <typename Version>
  c10::intrusive_ptr<c10::TensorImpl> Copy(Version&& version_counter,
                                           bool allow_tensor_metadata_change) const;

  /// Forgets what was made of the root and the view before.
  void DropMade();
  /// A storage that another tensor has resized has another shape, but its elements are in
  /// their places: this is a view of them. Several threads may read the tensor at once.
  const lazy::ViewPtr& Part() const;
  /// The value or its complex conjugate, negation: what PyTorch's lazy bits say.
  ir::Value Resolve(ir::Value value) const;

  lazy::StoragePtr root_;
  lazy::ViewPtr view_;
  // Made when first needed.
  mutable std::atomic<lazy::ViewPtr*> part_{nullptr};
  mutable std::atomic<c10::Storage*> shown_{nullptr};
};

/// FakeTensor's tensors on the meta device have the dispatch keys of the device that they stand
/// for, and are none.
inline bool IsXla(const at::Tensor& tensor) {
  return tensor.defined() && typeid(*tensor.unsafeGetTensorImpl()) == typeid(XLATensorImpl);
}

/// The impl of an xla tensor; anything else is an error that names `what`.
XLATensorImpl* GetImpl(const at::Tensor& tensor, const char* what = "tensor");

}  // namespace torch_xla::aten
