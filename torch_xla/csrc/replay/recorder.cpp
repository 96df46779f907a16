#include "replay/recorder.h"

#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <unordered_map>

#include "aten/autograd_node.h"
#include "aten/bridge.h"
#include "distributed/collective_node.h"
#include "sizes/binding.h"
#include "tensor/device.h"
#include "tensor/rng.h"

namespace torch_xla::replay {

using tensor::DeviceData;
using tensor::DeviceDataPtr;

namespace {

/// A call that draws more seeds than this is taken to have set another random state.
constexpr uint64_t kMaxDraws = 1 << 20;

}  // namespace

Recorder::Recorder(std::vector<const at::Tensor*> tensors, int device)
    : tensors_(std::move(tensors)),
      device_(device),
      before_(tensors_),
      refusal_(before_.refusal),
      first_data_(DeviceData(ir::GetShape(c10::ScalarType::Bool, {}), device, c10::Scalar(0)).id()),
      rng_before_(tensor::GetRngSeed(device)),
      plan_(std::make_shared<Plan>()) {
  log_.first_data = first_data_;
  plan_->device_ = device;
  if (refusal_.empty()) LookAtTensors();
  outer_log_ = exec::SetCutLog(&log_);  // last, since nobody would reset it after an exception
}

void Recorder::LookAtTensors() {
  for (const TensorTable::Entry& entry : before_.entries) {
    plan_->guards_.emplace_back(entry);
    versions_.push_back(VersionOf(*entry.impl));
    if (entry.grad >= 0) grads_.push_back(entry.impl->grad());
    if (entry.impl->root()->device() != device_) refusal_ = "tensors of more than one xla device";
  }
  for (tensor::Storage* storage : before_.storages) {
    storages_.push_back(tensor::StoragePtr::reclaim_copy(storage));
    plan_->storage_guards_.emplace_back(*storage);
    const ir::Value value = storage->value();
    DeviceData* data = tensor::LeafData(value);
    if (!data) {
      refusal_ = "a tensor that another thread computes";
      return;
    }
    ids_.push_back(data->id());
    if (!data->fill()) continue;
    data->owners.fetch_add(1, std::memory_order_relaxed);
    fills_.push_back(DeviceDataPtr::reclaim_copy(data));
  }
  for (const at::Tensor& grad : grads_) held_.push_back(aten::GetImpl(grad)->root()->value());
}

Recorder::~Recorder() {
  if (watching_) exec::SetCutLog(outer_log_);
  for (const DeviceDataPtr& data : fills_) data->owners.fetch_sub(1, std::memory_order_relaxed);
}

size_t Recorder::End(std::vector<at::Tensor> results) {
  log_.closing = true;
  rng_after_ = tensor::GetRngSeed(device_);
  plan_->draws_ = tensor::RngStatesBetween(rng_before_, rng_after_);
  if (refusal_.empty() && plan_->draws_ > kMaxDraws) refusal_ = "it sets the random state";
  results_ = std::move(results);
  fresh_.clear();
  plan_->grads_.clear();
  plan_->results_.clear();
  if (refusal_.empty()) refusal_ = FindChanges();
  released_.resize(storages_.size());
  std::unordered_set<const tensor::Storage*> known;
  for (const tensor::StoragePtr& storage : storages_) known.insert(storage.get());
  for (const tensor::StoragePtr& storage : fresh_) known.insert(storage.get());
  const std::vector<tensor::StoragePtr> pending = tensor::Storage::Pending(device_);
  return std::count_if(pending.begin(), pending.end(), [&](const tensor::StoragePtr& storage) {
    return !known.contains(storage.get());
  });
}

NewTensor Recorder::Describe(const aten::XLATensorImpl& impl) {
  NewTensor made{.fresh = true,
                 .storage = 0,
                 .view = impl.view_ptr(),
                 .dtype = impl.dtype(),
                 .sizes = {impl.sizes().begin(), impl.sizes().end()},
                 .conj = impl.is_conj(),
                 .neg = impl.is_neg(),
                 .requires_grad = impl.requires_grad()};
  auto known = std::find(storages_.begin(), storages_.end(), impl.root());
  if (known != storages_.end()) {
    made.fresh = false;
    made.storage = static_cast<uint32_t>(known - storages_.begin());
    return made;
  }
  auto found = std::find(fresh_.begin(), fresh_.end(), impl.root());
  made.storage = static_cast<uint32_t>(found - fresh_.begin());
  if (found == fresh_.end()) fresh_.push_back(impl.root());
  return made;
}

/// Whether the new gradient equals the previous one in everything but its content.
bool Recorder::IsAlike(const Plan::GradUpdate& update, int32_t before) const {
  if (!update.grad->fresh) return false;
  const NewTensor& made = *update.grad;
  const TensorGuard& guard = plan_->guards_[before];
  const StorageGuard& storage = plan_->storage_guards_[guard.storage];
  const Plan::Fresh& fresh = plan_->fresh_[made.storage];
  auto shares = [&](const NewTensor& other) {
    return other.fresh ? other.storage == made.storage : other.storage == guard.storage;
  };
  const auto sharing_grads =
      std::count_if(plan_->grads_.begin(), plan_->grads_.end(),
                    [&](const auto& other) { return other.grad && shares(*other.grad); });
  return sharing_grads == 1 &&
         std::none_of(plan_->results_.begin(), plan_->results_.end(), shares) &&
         fresh.source.kind == Source::kOutput && !fresh.sharding && !storage.sharding &&
         !storage.filled && guard.root == fresh.shape &&
         SameView(guard.view.get(), made.view.get()) && guard.sizes == made.sizes &&
         guard.dtype == made.dtype;
}

/// The changes that the call made to tensors themselves, rather than to their values.
std::string Recorder::FindChanges() {
  for (size_t i = 0; i < before_.num_given; ++i) {
    if (tensors_[i]->unsafeGetTensorImpl() == before_.entries[i].impl) continue;
    return "it exchanges tensors (torch.utils.swap_tensors)";
  }
  std::unordered_set<const aten::XLATensorImpl*> known;
  for (size_t i = 0; i < before_.entries.size(); ++i) {
    const TensorTable::Entry& entry = before_.entries[i];
    known.insert(entry.impl);
    if (entry.impl->root() != storages_[entry.storage]) {
      return "it gives a tensor other memory (.data = …, set_(), resize_())";
    }
    if (const char* what = plan_->guards_[i].Difference(entry, /*wiring=*/false)) {
      return std::string("it changes ") + what + " of a tensor that was there before";
    }
    if (HasGradFn(*entry.impl)) return "it writes to a tensor with gradients recorded";
  }
  for (size_t i = 0; i < storages_.size(); ++i) {
    if (storages_[i]->sharding() != plan_->storage_guards_[i].sharding) {
      return "it marks the sharding of a tensor that was there before";
    }
  }
  for (size_t i = 0; i < before_.num_given; ++i) {
    const TensorTable::Entry& entry = before_.entries[i];
    if (entry.twin >= 0) continue;
    const at::Tensor& grad = entry.impl->grad();
    const aten::XLATensorImpl* old = entry.grad < 0 ? nullptr : before_.entries[entry.grad].impl;
    if (grad.unsafeGetTensorImpl() == old || (!old && !grad.defined())) continue;
    std::optional<NewTensor> made;
    bool alike = false;
    if (grad.defined()) {
      const aten::XLATensorImpl* impl = aten::GetImpl(grad, "a gradient");
      if (!known.insert(impl).second) return "it makes a tensor a gradient that is another's, too";
      if (impl->requires_grad()) return "it makes gradients that require gradients";
      made = Describe(*impl);
      alike = old && impl->key_set() == plan_->guards_[entry.grad].keys;
    }
    plan_->grads_.push_back({static_cast<uint32_t>(i), std::move(made), alike});
  }
  for (const at::Tensor& result : results_) {
    if (!aten::IsXla(result)) return "it returns a tensor on " + result.device().str();
    aten::XLATensorImpl* impl = aten::GetImpl(result);
    if (!known.insert(impl).second) return "it returns a gradient itself";
    if (impl->root()->device() != device_) return "tensors of more than one xla device";
    if (impl->is_inference()) return "it returns an inference tensor";
    if (impl->grad().defined() || HookStamp(*impl)) return "a result has a gradient or hooks";
    if (impl->requires_grad() && !HasGradFn(*impl)) return "it returns a new leaf of autograd";
    plan_->results_.push_back(Describe(*impl));
  }
  return {};
}

void Recorder::ReleaseGradients(bool (*is_held)(const at::Tensor&)) {
  if (!refusal_.empty()) return;
  for (const Plan::GradUpdate& update : plan_->grads_) {
    const int32_t before = before_.entries[update.entry].grad;
    if (before < 0) continue;
    const aten::XLATensorImpl* impl = before_.entries[before].impl;
    const uint32_t index = before_.entries[before].storage;
    const auto tensor = std::find_if(grads_.begin(), grads_.end(), [&](const at::Tensor& grad) {
      return grad.unsafeGetTensorImpl() == impl;
    });
    const auto held = held_.begin() + (tensor - grads_.begin());
    tensor::Storage& storage = *storages_[index];
    if (is_held(*tensor) || storages_[index].use_count() > 2 || storage.sharding()) continue;
    const ir::Value value = storage.value();
    if (value != *held) continue;
    // If operations read the value (there are owners besides the storage, `held` and `value`), it
    // would be donated. That is only right if another tensor has the same data, such as a momentum
    // that began as this gradient.
    const bool is_read = value.node->references() > 3;
    if (is_read && std::count(ids_.begin(), ids_.end(), ids_[index]) == 1) continue;
    released_[index] = true;
    storage.Replace(value, tensor::MakeLeaf(c10::make_intrusive<DeviceData>(
                               storage.shape(), device_, c10::Scalar(0), nullptr)));
    *held = ir::Value();
  }
}

PlanPtr Recorder::Finish(std::string* refusal) {
  exec::SetCutLog(outer_log_);
  watching_ = false;
  results_.clear();
  if (refusal_.empty() && !log_.reads.empty()) {
    refusal_ = "it asks for " + log_.reads[0].ToString() + ", and what follows may depend on it";
  }
  if (refusal_.empty() && log_.cuts.size() > 1) refusal_ = "it runs more than one program";
  const exec::RecordedCut* cut = log_.cuts.empty() ? nullptr : &log_.cuts[0];
  if (refusal_.empty() && cut) refusal_ = AddCut(*cut);
  if (refusal_.empty()) refusal_ = AddValues(cut);
  if (refusal_.empty()) AddBounds();
  *refusal = refusal_;
  if (!refusal_.empty()) return nullptr;
  return plan_;
}

std::string Recorder::AddCut(const exec::RecordedCut& cut) {
  if (cut.device != device_) return "tensors of more than one xla device";
  std::unordered_set<const tensor::Storage*> known;
  for (const tensor::StoragePtr& storage : storages_) known.insert(storage.get());
  for (const tensor::StoragePtr& storage : fresh_) known.insert(storage.get());
  for (const auto& target : cut.targets) {
    if (known.contains(target.storage)) continue;
    return "a tensor" + (target.location ? " made" + AtLine(target.location) : std::string()) +
           " outlives the call, and is neither returned nor a gradient";
  }
  for (uint64_t id : cut.folded) {
    if (id < first_data_) return "it reads a tensor that nothing of what is looked at leads to";
  }
  plan_->program_ = cut.program;
  plan_->binding_ = cut.binding;
  plan_->hash_ = cut.hash;
  for (const DeviceDataPtr& output : cut.outputs) {
    plan_->outputs_.push_back({output->shape(), output->location()});
  }
  std::string refusal = AddNumbers(cut);
  return refusal.empty() ? AddInputs(cut) : refusal;
}

std::string Recorder::AddNumbers(const exec::RecordedCut& cut) {
  plan_->numbers_ = cut.numbers;
  plan_->floats_ = cut.floats;
  plan_->integers_ = cut.integers;
  std::unordered_map<uint64_t, uint64_t> draws;
  uint64_t state = rng_before_;
  for (uint64_t i = 0; i < plan_->draws_; ++i) {
    state = tensor::NextRngState(state);
    draws.emplace(tensor::MixSeed(state), i);
  }
  for (size_t i = 0; i < cut.integers.size(); ++i) {
    auto it = draws.find(static_cast<uint64_t>(cut.integers[i]));
    if (it != draws.end()) plan_->seeds_.push_back({static_cast<uint32_t>(i), it->second});
  }
  std::sort(plan_->seeds_.begin(), plan_->seeds_.end(),
            [](const auto& a, const auto& b) { return a.draw < b.draw; });
  return {};
}

std::string Recorder::AddInputs(const exec::RecordedCut& cut) {
  std::unordered_map<uint64_t, std::vector<uint32_t>> holders;
  for (size_t i = 0; i < ids_.size(); ++i) {
    if (!released_[i]) holders[ids_[i]].push_back(static_cast<uint32_t>(i));
  }
  const std::vector<int>& aliases = cut.program->aliases;
  for (size_t i = 0; i < cut.inputs.size(); ++i) {
    Input& input = plan_->inputs_.emplace_back();
    input.donated =
        cut.binding ? cut.binding->IsDonated(i, aliases) : i < aliases.size() && aliases[i] >= 0;
    DeviceData& data = *cut.inputs[i];
    input.sharding = data.sharding();
    if (auto it = holders.find(data.id()); it != holders.end()) {
      input.storages = it->second;
      continue;
    }
    if (data.id() < first_data_) {
      return "it reads a tensor (" + data.shape()->ToString() +
             (data.location() ? ", made" + AtLine(data.location()) : std::string()) +
             ") that nothing of what is looked at leads to";
    }
    if (!cut.contents[i].defined()) {
      return "it sends data to the device (" + data.shape()->ToString() +
             "), too much to compare with the next time";
    }
    input.constant = cut.inputs[i];
    input.content = cut.contents[i];
  }
  return {};
}

/// Adds the bounds that operations required of integers that tensors had before the call. Data that
/// the call itself sends is equal in every call.
void Recorder::AddBounds() {
  std::vector<Plan::Bounds>& all = plan_->bounds_;
  for (const exec::RecordedBounds& asked : log_.bounds) {
    for (size_t i = 0; i < ids_.size(); ++i) {
      const Plan::Bounds one{static_cast<uint32_t>(i), asked.bounds};
      if (ids_[i] == asked.data && std::find(all.begin(), all.end(), one) == all.end()) {
        all.push_back(one);
      }
    }
  }
}

/// Finds the sources of the values that the storages have now.
std::string Recorder::AddValues(const exec::RecordedCut* cut) {
  std::unordered_map<const DeviceData*, uint32_t> outputs;
  std::unordered_map<uint64_t, uint32_t> before;
  for (size_t i = 0; cut && i < cut->outputs.size(); ++i) outputs.emplace(cut->outputs[i].get(), i);
  for (size_t i = 0; i < ids_.size(); ++i) before.emplace(ids_[i], i);
  std::string refusal;
  auto source_of = [&](const DeviceData* data) {
    Source source{Source::kFill};
    if (auto it = outputs.find(data); it != outputs.end()) {
      source.kind = Source::kOutput;
      source.index = it->second;
    } else if (auto known = before.find(data->id()); known != before.end()) {
      source.kind = Source::kStorage;
      source.index = known->second;
    } else if (data->fill()) {
      source.fill = *data->fill();
      source.sharding = data->sharding();
    } else {
      refusal = "it sends data to the device that it returns or keeps";
    }
    return source;
  };
  std::unordered_set<uint32_t> written, needed;
  auto add = [&](const tensor::Storage& storage, std::optional<uint32_t> index) {
    const ir::Value value = storage.value();
    const DeviceData* data = tensor::LeafData(value);
    if (!data) {
      refusal = "another thread writes to its tensors";
      return;
    }
    if (index && data->id() == ids_[*index]) return;
    const Source source = source_of(data);
    if (source.kind == Source::kStorage) needed.insert(source.index);
    if (index) {
      plan_->writes_.push_back({*index, source});
      written.insert(*index);
    } else {
      plan_->fresh_.push_back({storage.shape(), source, storage.sharding()});
    }
  };
  for (const tensor::StoragePtr& storage : fresh_) add(*storage, std::nullopt);
  for (size_t i = 0; i < storages_.size(); ++i) {
    if (!released_[i]) add(*storages_[i], static_cast<uint32_t>(i));
  }
  for (const Input& input : plan_->inputs_) {
    needed.insert(input.storages.begin(), input.storages.end());
    if (input.donated && !input.storages.empty() &&
        (input.storages.size() != 1 || !written.contains(input.storages[0]))) {
      refusal = "a tensor that it reads dies in the call";
    }
  }
  for (Plan::GradUpdate& update : plan_->grads_) {
    update.alike = update.alike && IsAlike(update, before_.entries[update.entry].grad);
  }
  plan_->needed_.assign(needed.begin(), needed.end());
  std::sort(plan_->needed_.begin(), plan_->needed_.end());
  for (size_t i = 0; i < versions_.size(); ++i) {
    const TensorTable::Entry& entry = before_.entries[i];
    if (entry.twin < 0 && VersionOf(*entry.impl) != versions_[i]) {
      plan_->bumped_.push_back(static_cast<uint32_t>(i));
    }
  }
  return refusal;
}

}  // namespace torch_xla::replay
