#include "replay/tensor_guards.h"

#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

namespace torch_xla::replay {

using tensor::DeviceData;

bool SameView(const tensor::View* a, const tensor::View* b) {
  return a == b || (a && b && a->steps == b->steps);
}

bool HasGradFn(const aten::XLATensorImpl& impl) {
  auto* meta = static_cast<torch::autograd::AutogradMeta*>(impl.autograd_meta());
  return meta && meta->grad_fn_;
}

/// How often a tensor was written to. Tensors of inference mode do not count their writes.
uint32_t VersionOf(c10::TensorImpl& impl) {
  return impl.is_inference() ? 0 : impl.version_counter().current_version();
}

size_t HookStamp(const c10::TensorImpl& impl) {
  auto* meta = static_cast<torch::autograd::AutogradMeta*>(impl.autograd_meta());
  if (!meta) return 0;
  size_t stamp = 0;
  auto add = [&stamp](const void* hook) {
    if (hook) stamp = c10::hash_combine(stamp + 1, reinterpret_cast<uintptr_t>(hook));
  };
  for (const auto& hook : meta->hooks_) add(hook.get());
  add(meta->post_acc_grad_hooks_.get());
  if (auto accumulator = meta->grad_accumulator_.lock()) {
    for (const auto& hook : accumulator->pre_hooks()) add(hook.get());
    for (const auto& hook : accumulator->post_hooks()) add(hook.get());
    for (const auto& hook : accumulator->tensor_pre_hooks()) add(hook.get());
  }
  return stamp;
}

bool HasTangent(const c10::TensorImpl& impl) {
  auto* meta = static_cast<torch::autograd::AutogradMeta*>(impl.autograd_meta());
  return meta && meta->fw_grad_ && !meta->fw_grad_->empty();
}

TensorTable::TensorTable(c10::ArrayRef<const at::Tensor*> tensors) {
  entries.reserve(2 * tensors.size());
  storages.reserve(2 * tensors.size());
  storage_index_.Reserve(2 * tensors.size());
  tensor_index_.Reserve(2 * tensors.size());
  for (const at::Tensor* tensor : tensors) {
    Add(*tensor);
    if (!refusal.empty()) return;
  }
  num_given = entries.size();
  for (size_t i = 0; i < num_given; ++i) {
    if (entries[i].twin >= 0) continue;
    const at::Tensor& grad = entries[i].impl->grad();
    if (!grad.defined()) continue;
    Add(grad);
    if (!refusal.empty()) return;
    if (entries.back().twin >= 0) {
      refusal = "a gradient is a tensor that the function has otherwise, too";
    }
    if (entries.back().impl->requires_grad()) refusal = "a gradient requires a gradient itself";
    if (!refusal.empty()) return;
    entries[i].grad = static_cast<int32_t>(entries.size()) - 1;
  }
}

void TensorTable::Add(const at::Tensor& tensor) {
  if (!aten::IsXla(tensor)) {
    refusal = "a tensor on " + tensor.device().str() + " is among what the function reads";
    return;
  }
  auto* impl = static_cast<aten::XLATensorImpl*>(tensor.unsafeGetTensorImpl());
  if (impl->key_set().has(c10::DispatchKey::Python)) refusal = "a tensor subclass";
  if (HasTangent(*impl)) refusal = "a tensor with a tangent of forward-mode autograd";
  if (HasGradFn(*impl)) refusal = "a tensor with a grad_fn: gradients would flow out of the call";
  const uint32_t storage = storage_index_.Find(impl->root().get());
  if (storage == storages.size()) storages.push_back(impl->root().get());
  const auto tensor_number = static_cast<uint32_t>(entries.size());
  const uint32_t first = tensor_index_.Find(impl, tensor_number);
  entries.push_back(
      {impl, storage, first == tensor_number ? -1 : static_cast<int32_t>(first), /*grad=*/-1});
}

void TensorTable::PointerIndex::Reserve(size_t count) {
  slots_.resize(std::bit_ceil(2 * count + 4));
}

uint32_t TensorTable::PointerIndex::Find(const void* pointer, std::optional<uint32_t> number) {
  const size_t mask = slots_.size() - 1;
  size_t slot = (reinterpret_cast<uintptr_t>(pointer) >> 4) * 0x9E3779B97F4A7C15ull >> 32;
  for (;; ++slot) {
    auto& [known, index] = slots_[slot & mask];
    if (known == pointer) return index;
    if (known) continue;
    known = pointer;
    return index = number.value_or(count_++);
  }
}

TensorGuard::TensorGuard(const TensorTable::Entry& entry)
    : root(entry.impl->root()->shape()),
      view(entry.impl->view_ptr()),
      sizes(entry.impl->sizes().begin(), entry.impl->sizes().end()),
      dtype(entry.impl->dtype()),
      keys(entry.impl->key_set()),
      device(entry.impl->root()->device()),
      requires_grad(entry.impl->requires_grad()),
      storage(entry.storage),
      twin(entry.twin),
      grad(entry.grad),
      hooks(HookStamp(*entry.impl)) {}

const char* TensorGuard::Difference(const TensorTable::Entry& entry, bool wiring) const {
  const aten::XLATensorImpl& impl = *entry.impl;
  if (impl.dtype() != dtype) return "its dtype";
  if (impl.sizes() != c10::IntArrayRef(sizes)) return "its shape";
  if (impl.root()->shape() != root || !SameView(impl.view(), view.get()))
    return "how it lies in its storage";
  if (impl.requires_grad() != requires_grad) return "requires_grad";
  if (impl.key_set() != keys) return "its dispatch keys";
  if (impl.root()->device() != device) return "its device";
  if (HookStamp(impl) != hooks) return "its hooks";
  if (!wiring) return nullptr;
  if (entry.storage != storage || entry.twin != twin) return "which tensors it shares memory with";
  if (entry.grad != grad) return "whether it has a gradient";
  return nullptr;
}

StorageGuard::StorageGuard(const tensor::Storage& storage) : sharding(storage.sharding()) {
  filled = storage.Peek([](const DeviceData* data, auto) { return data && data->fill(); });
}

bool StorageGuard::Holds(const tensor::Storage& storage) const {
  return storage.Peek([&](const DeviceData* data, const distributed::Sharding* now) {
    return now == sharding && data && data->fill().has_value() == filled;
  });
}

}  // namespace torch_xla::replay
