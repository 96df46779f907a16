// Tensors that a function can reach, and what of them decides what is traced.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "aten/tensor_impl.h"

namespace torch_xla::replay {

/// The tensors that a function can reach, which are the given tensors and then their gradients; and
/// their storages in order of first appearance.
struct TensorTable {
  struct Entry {
    aten::XLATensorImpl* impl;
    uint32_t storage;
    int32_t twin;  // an earlier entry that is the same tensor, or -1
    int32_t grad;  // the entry that is its gradient, or -1
  };
  std::vector<Entry> entries;
  std::vector<tensor::Storage*> storages;
  size_t num_given = 0;
  std::string refusal;  // why a tensor cannot be replayed; the table ends at that tensor

  /// The tensors must outlive the table.
  explicit TensorTable(c10::ArrayRef<const at::Tensor*> tensors);

 private:
  /// Numbers pointers in the order in which they come.
  class PointerIndex {
   public:
    void Reserve(size_t count);
    /// The number of a pointer. A new pointer gets `number`, or else the count of pointers so far.
    uint32_t Find(const void* pointer, std::optional<uint32_t> number = std::nullopt);

   private:
    std::vector<std::pair<const void*, uint32_t>> slots_;
    uint32_t count_ = 0;
  };
  void Add(const at::Tensor& tensor);

  PointerIndex storage_index_, tensor_index_;
};

/// Identifies the hooks that run when a tensor receives a gradient; 0: none.
size_t HookStamp(const c10::TensorImpl& impl);
/// Whether the tensor has a tangent of forward-mode autograd.
bool HasTangent(const c10::TensorImpl& impl);

/// Whether two views, null for whole storages, are alike.
bool SameView(const tensor::View* a, const tensor::View* b);
/// Whether a tensor is the result of an operation that autograd records.
bool HasGradFn(const aten::XLATensorImpl& impl);
/// How often a tensor was written to; those of inference mode do not count.
uint32_t VersionOf(c10::TensorImpl& impl);

/// The properties of a tensor and of a storage that decide what is traced.
struct TensorGuard {
  ir::ShapeRef root;
  tensor::ViewPtr view;
  tensor::Ints sizes;
  caffe2::TypeMeta dtype;
  c10::DispatchKeySet keys;
  int device;
  bool requires_grad;
  uint32_t storage;
  int32_t twin, grad;
  size_t hooks;

  explicit TensorGuard(const TensorTable::Entry& entry);
  /// Names the difference in words; null if there is none. Gradients and shared storages are only
  /// compared if `wiring` is set.
  const char* Difference(const TensorTable::Entry& entry, bool wiring) const;
};

struct StorageGuard {
  bool filled;  // it holds a number that some operations look at
  const distributed::Sharding* sharding;

  explicit StorageGuard(const tensor::Storage& storage);
  bool Holds(const tensor::Storage& storage) const;
};

}  // namespace torch_xla::replay
