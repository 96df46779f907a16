#include "replay/plan.h"

#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <bit>
#include <unordered_map>

#include "aten/autograd_node.h"
#include "aten/bridge.h"
#include "distributed/collective_node.h"
#include "exec/transfer.h"
#include "exec/worker.h"
#include "tensor/device.h"
#include "tensor/rng.h"

namespace torch_xla::aten {

using lazy::DeviceData;
using lazy::DeviceDataPtr;

namespace {

/// More seeds than this are another random state.
constexpr uint64_t kMaxDraws = 1 << 20;

bool SameView(const lazy::View* a, const lazy::View* b) {
  return a == b || (a && b && a->steps == b->steps);
}

bool HasGradFn(const XLATensorImpl& impl) {
  auto* meta = static_cast<torch::autograd::AutogradMeta*>(impl.autograd_meta());
  return meta && meta->grad_fn_;
}

bool SameNumber(const c10::Scalar& a, const c10::Scalar& b) {
  ir::Words first, second;
  ir::AttributeWriter(first).Scalar(a);
  ir::AttributeWriter(second).Scalar(b);
  return first == second;
}

std::string At(const ir::SourceLocation* location) {
  return location ? " at " + location->ToString() : "";
}

std::vector<const at::Tensor*> Pointers(const std::vector<at::Tensor>& tensors) {
  std::vector<const at::Tensor*> pointers;
  for (const at::Tensor& tensor : tensors) pointers.push_back(&tensor);
  return pointers;
}

/// How often a tensor was written to; those of inference mode do not count.
uint32_t VersionOf(c10::TensorImpl& impl) {
  return impl.is_inference() ? 0 : impl.version_counter().current_version();
}

/// Whether nobody but a parameter has ever seen a gradient, or has its memory: what takes its place
/// may as well be it.
bool IsOnlyGradient(const at::Tensor& grad) {
  auto* impl = static_cast<XLATensorImpl*>(grad.unsafeGetTensorImpl());
  return grad.use_count() == 1 && grad.weak_use_count() == 1 && impl->root().use_count() == 1 &&
         !impl->pyobj_slot()->load_pyobj() && !impl->autograd_meta() && VersionOf(*impl) == 0;
}

/// A tensor that has the storage.
size_t EntryOf(const TensorTable& table, size_t storage) {
  auto it = std::find_if(table.entries.begin(), table.entries.end(),
                         [&](const auto& entry) { return entry.storage == storage; });
  return it - table.entries.begin();
}

std::string NumberText(const lazy::RecordedNumber& number) {
  return number.is_float ? std::to_string(std::bit_cast<double>(number.bits))
                         : std::to_string(static_cast<int64_t>(number.bits));
}

}  // namespace

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
  if (!IsXla(tensor)) {
    refusal = "a tensor on " + tensor.device().str() + " is among what the function reads";
    return;
  }
  auto* impl = static_cast<XLATensorImpl*>(tensor.unsafeGetTensorImpl());
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

at::Tensor CollectiveTokenTensor(int device, bool make) {
  lazy::StoragePtr token = lazy::CollectiveToken(device, make);
  if (!token) return {};
  const ir::ShapeRef shape = token->shape();
  return at::detail::make_tensor<XLATensorImpl>(std::move(token), nullptr,
                                                c10::scalarTypeToTypeMeta(shape->dtype),
                                                lazy::Ints(shape->dims.begin(), shape->dims.end()));
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
  const XLATensorImpl& impl = *entry.impl;
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

StorageGuard::StorageGuard(const lazy::Storage& storage) : sharding(storage.sharding()) {
  filled = storage.Peek([](const DeviceData* data, auto) { return data && data->fill(); });
}

bool StorageGuard::Holds(const lazy::Storage& storage) const {
  return storage.Peek([&](const DeviceData* data, const distributed::Sharding* now) {
    return now == sharding && data && data->fill().has_value() == filled;
  });
}

bool ReplaySource::operator==(const ReplaySource& other) const {
  return kind == other.kind && index == other.index && SameNumber(fill, other.fill) &&
         sharding == other.sharding;
}

bool ReplayTensor::operator==(const ReplayTensor& other) const {
  return fresh == other.fresh && storage == other.storage &&
         SameView(view.get(), other.view.get()) && dtype == other.dtype && sizes == other.sizes &&
         conj == other.conj && neg == other.neg && requires_grad == other.requires_grad;
}

// ---------------------------------------------------------------- plans

const char* ReplayPlan::Misfit(const TensorTable& table, size_t* entry) const {
  *entry = 0;
  if (!table.refusal.empty()) return "what can be replayed";
  if (table.entries.size() != guards_.size()) return "how many tensors and gradients there are";
  for (size_t i = 0; i < guards_.size(); ++i) {
    *entry = i;
    if (const char* difference = guards_[i].Difference(table.entries[i], true)) return difference;
  }
  if (table.storages.size() != storage_guards_.size()) return "which of them share memory";
  for (size_t i = 0; i < storage_guards_.size(); ++i) {
    if (storage_guards_[i].Holds(*table.storages[i])) continue;
    *entry = EntryOf(table, i);
    return "whether it was filled with a number";
  }
  for (const Bounds& asked : bounds_) {
    const ir::Value value = table.storages[asked.storage]->value();
    const DeviceData* data = lazy::LeafData(value);
    const std::optional<lazy::Extremes> known = data ? data->extremes() : std::nullopt;
    if (!known || !asked.bounds.Violation(*known)) continue;
    *entry = EntryOf(table, asked.storage);
    return "its integers, of which an operation cannot take one";
  }
  return nullptr;
}

bool ReplayPlan::Run(const TensorTable& table, std::vector<double> floats,
                     std::vector<at::Tensor>& results) const {
  std::vector<ir::Value> values(table.storages.size());
  for (uint32_t i : needed_) {
    values[i] = table.storages[i]->value();
    if (!lazy::LeafData(values[i])) return false;
  }
  lazy::Execution execution;
  execution.inputs.reserve(inputs_.size());
  for (const ReplayInput& input : inputs_) {
    if (input.storages.empty()) {
      execution.inputs.push_back(
          input.donated ? c10::make_intrusive<DeviceData>(input.constant->shape(), device_,
                                                          input.content, input.sharding)
                        : input.constant);
      continue;
    }
    const ir::Value& value = values[input.storages[0]];
    for (uint32_t i : input.storages) {
      if (values[i] != value) return false;
    }
    DeviceData* data = lazy::LeafData(value);
    // How it lies on several devices is part of the program.
    if (data->sharding() != input.sharding) return false;
    // It is overwritten: nobody but its tensor and we may have it.
    if (input.donated && (value.node->references() != 2 || data->foreign())) return false;
    execution.inputs.push_back(DeviceDataPtr::reclaim_copy(data));
  }
  const uint64_t rng = draws_ ? lazy::SkipRngStates(device_, draws_) : 0;
  lazy::StepFinderOf(device_).Hold();
  const lazy::DeviceSet* devices = lazy::DevicesOf(device_);
  std::vector<ir::Value> leaves;
  leaves.reserve(outputs_.size());
  execution.outputs.reserve(outputs_.size());
  for (size_t i = 0; i < outputs_.size(); ++i) {
    const Output& output = outputs_[i];
    execution.outputs.push_back(c10::make_intrusive<DeviceData>(
        output.shape, device_, devices,
        program_->shardings.empty() ? distributed::Sharding::Replicated()
                                    : program_->shardings[i]));
    execution.outputs.back()->set_location(output.location);
    leaves.push_back(lazy::MakeLeaf(execution.outputs.back()));
  }
  auto make = [&](const ReplaySource& source, ir::ShapeRef shape) {
    if (source.kind == ReplaySource::kOutput) return leaves[source.index];
    if (source.kind == ReplaySource::kStorage) return values[source.index];
    return lazy::MakeLeaf(
        c10::make_intrusive<DeviceData>(shape, device_, source.fill, source.sharding));
  };
  std::vector<lazy::StoragePtr> fresh(fresh_.size());
  for (const GradUpdate& update : grads_) {
    const int32_t before = table.entries[update.entry].grad;
    if (before < 0) continue;
    const lazy::StoragePtr& storage = table.entries[before].impl->root();
    execution.dead.push_back(storage->value());
    if (!update.alike || !IsOnlyGradient(table.entries[update.entry].impl->mutable_grad())) {
      continue;
    }
    const Fresh& one = fresh_[update.grad->storage];
    storage->Assign(make(one.source, one.shape));
    fresh[update.grad->storage] = storage;
  }
  for (size_t i = 0; i < fresh_.size(); ++i) {
    if (fresh[i]) continue;
    const Fresh& one = fresh_[i];
    fresh[i] = c10::make_intrusive<lazy::Storage>(make(one.source, one.shape), device_);
    if (one.sharding) fresh[i]->SetSharding(one.sharding);
  }
  for (const Write& write : writes_) {
    lazy::Storage* storage = table.storages[write.storage];
    storage->Assign(make(write.source, storage->shape()));
  }
  lazy::StepFinderOf(device_).Release();
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (!inputs_[i].donated || inputs_[i].storages.empty()) continue;
    execution.graph.push_back(std::move(values[inputs_[i].storages[0]]));
    // Another thread may have taken the value before its tensor got another: it keeps it.
    if (execution.graph.back().node->references() == 1) continue;
    try {
      DeviceData& data = *execution.inputs[i];
      execution.inputs[i] = c10::make_intrusive<DeviceData>(
          data.shape(), device_, lazy::ToHost(data), inputs_[i].sharding);
    } catch (...) {
      for (const auto& output : execution.outputs) output->Fail(std::current_exception());
      throw;
    }
  }
  for (uint32_t i : bumped_) table.entries[i].impl->bump_version();
  auto tensor_of = [&](const ReplayTensor& made) {
    at::Tensor tensor = at::detail::make_tensor<XLATensorImpl>(
        made.fresh ? fresh[made.storage]
                   : lazy::StoragePtr::reclaim_copy(table.storages[made.storage]),
        made.view, made.dtype, made.sizes);
    if (made.conj) tensor.unsafeGetTensorImpl()->_set_conj(true);
    if (made.neg) tensor.unsafeGetTensorImpl()->_set_neg(true);
    return tensor;
  };
  // Old gradients may be the last to hold their storages: results first.
  for (const ReplayTensor& result : results_) {
    at::Tensor& tensor = results.emplace_back(tensor_of(result));
    if (!result.requires_grad) continue;
    auto node = autograd::MakeBackward<torch::autograd::Error>(
        std::string("Trying to backward through the graph a second time: this tensor is a result "
                    "of torch_xla.compile(replay=True), whose own backward pass has run"));
    torch::autograd::set_history(tensor, node);
  }
  std::vector<at::Tensor> grads;
  grads.reserve(grads_.size());
  for (const GradUpdate& update : grads_) {
    const int32_t before = table.entries[update.entry].grad;
    if (update.alike && fresh[update.grad->storage] == table.entries[before].impl->root()) continue;
    at::Tensor& grad = grads.emplace_back(update.grad ? tensor_of(*update.grad) : at::Tensor());
    std::swap(table.entries[update.entry].impl->mutable_grad(), grad);
  }
  if (!program_) return true;
  execution.program = program_;
  execution.is_whole_step = true;
  execution.floats = std::move(floats);
  execution.integers = integers_;
  // The k-th state after `rng`.
  uint64_t state = rng;
  uint64_t drawn = 0;
  for (const Seed& seed : seeds_) {
    for (; drawn <= seed.draw; ++drawn) state = lazy::NextRngState(state);
    execution.integers[seed.integer] = static_cast<int64_t>(lazy::MixSeed(state));
  }
  execution.origin = {"torch_xla.compile(replay=True)", nullptr, nullptr};
  if (program_->runs) program_->runs->Add();
  lazy::GetWorker(device_).Push(std::move(execution));
  return true;
}

std::string ReplayPlan::Difference(const ReplayPlan& other, bool donation,
                                   const std::unordered_set<size_t>& explained) const {
  if (!(hash_ == other.hash_)) return "it traces other operations";
  if (numbers_.size() != other.numbers_.size()) return "it uses more or fewer numbers";
  if (seeds_ != other.seeds_ || draws_ != other.draws_) return "it draws other random numbers";
  for (size_t i = 0; i < numbers_.size(); ++i) {
    const lazy::RecordedNumber &now = numbers_[i], &before = other.numbers_[i];
    if (now == before || explained.contains(i)) continue;
    const bool is_seed = std::any_of(seeds_.begin(), seeds_.end(), [&](const Seed& seed) {
      return !now.is_float && now.packed == static_cast<int32_t>(seed.integer);
    });
    if (is_seed) continue;
    return "a number" + At(now.location) + " is " + NumberText(now) + " and was " +
           NumberText(before) + ", and nothing that is looked at says why";
  }
  if (donation && program_ != other.program_) return "its program was compiled anew";
  auto same_input = [&](const ReplayInput& a, const ReplayInput& b) {
    if (a.storages != b.storages || a.sharding != b.sharding) return false;
    if (donation && a.donated != b.donated) return false;
    return !a.content.defined() ||
           (a.content.dtype() == b.content.dtype() && a.content.sizes() == b.content.sizes() &&
            std::memcmp(a.content.const_data_ptr(), b.content.const_data_ptr(),
                        a.content.nbytes()) == 0);
  };
  if (!std::equal(inputs_.begin(), inputs_.end(), other.inputs_.begin(), other.inputs_.end(),
                  same_input)) {
    return "it reads other tensors, or sends other data to the device";
  }
  if (fresh_ != other.fresh_ || writes_ != other.writes_ || bumped_ != other.bumped_) {
    return "it writes other tensors";
  }
  if (grads_ != other.grads_) return "it makes other gradients";
  if (results_ != other.results_) return "it returns other tensors";
  return {};
}

// ---------------------------------------------------------------- recording

ReplayRecorder::ReplayRecorder(std::vector<at::Tensor> tensors, int device)
    : tensors_(std::move(tensors)),
      device_(device),
      before_(Pointers(tensors_)),
      refusal_(before_.refusal),
      first_data_(DeviceData(ir::GetShape(c10::ScalarType::Bool, {}), device, c10::Scalar(0)).id()),
      rng_before_(lazy::GetRngSeed(device)),
      plan_(std::make_shared<ReplayPlan>()) {
  recorder_.first_data = first_data_;
  plan_->device_ = device;
  if (refusal_.empty()) LookAtTensors();
  outer_ =
      lazy::SetRecorder(&recorder_);  // Last: where something throws nobody would take it back.
}

void ReplayRecorder::LookAtTensors() {
  for (const TensorTable::Entry& entry : before_.entries) {
    plan_->guards_.emplace_back(entry);
    versions_.push_back(VersionOf(*entry.impl));
    if (entry.grad >= 0) grads_.push_back(entry.impl->grad());
    if (entry.impl->root()->device() != device_) refusal_ = "tensors of more than one xla device";
  }
  for (lazy::Storage* storage : before_.storages) {
    storages_.push_back(lazy::StoragePtr::reclaim_copy(storage));
    plan_->storage_guards_.emplace_back(*storage);
    const ir::Value value = storage->value();
    DeviceData* data = lazy::LeafData(value);
    if (!data) {
      refusal_ = "a tensor that another thread computes";
      return;
    }
    ids_.push_back(data->id());
    if (!data->fill()) continue;
    data->owners.fetch_add(1, std::memory_order_relaxed);
    fills_.push_back(DeviceDataPtr::reclaim_copy(data));
  }
  for (const at::Tensor& grad : grads_) held_.push_back(GetImpl(grad)->root()->value());
}

ReplayRecorder::~ReplayRecorder() {
  if (watching_) lazy::SetRecorder(outer_);
  for (const DeviceDataPtr& data : fills_) data->owners.fetch_sub(1, std::memory_order_relaxed);
}

size_t ReplayRecorder::End(std::vector<at::Tensor> results) {
  recorder_.closing = true;
  rng_after_ = lazy::GetRngSeed(device_);
  plan_->draws_ = lazy::RngStatesBetween(rng_before_, rng_after_);
  if (refusal_.empty() && plan_->draws_ > kMaxDraws) refusal_ = "it sets the random state";
  results_ = std::move(results);
  fresh_.clear();
  plan_->grads_.clear();
  plan_->results_.clear();
  if (refusal_.empty()) refusal_ = FindChanges();
  released_.resize(storages_.size());
  std::unordered_set<const lazy::Storage*> known;
  for (const lazy::StoragePtr& storage : storages_) known.insert(storage.get());
  for (const lazy::StoragePtr& storage : fresh_) known.insert(storage.get());
  const std::vector<lazy::StoragePtr> pending = lazy::Storage::Pending(device_);
  return std::count_if(pending.begin(), pending.end(), [&](const lazy::StoragePtr& storage) {
    return !known.contains(storage.get());
  });
}

ReplayTensor ReplayRecorder::Describe(const XLATensorImpl& impl) {
  ReplayTensor made{.fresh = true,
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

/// Whether the gradient that a call makes is the one before in all but its content.
bool ReplayRecorder::IsAlike(const ReplayPlan::GradUpdate& update, int32_t before) const {
  if (!update.grad->fresh) return false;
  const ReplayTensor& made = *update.grad;
  const TensorGuard& guard = plan_->guards_[before];
  const StorageGuard& storage = plan_->storage_guards_[guard.storage];
  const ReplayPlan::Fresh& fresh = plan_->fresh_[made.storage];
  auto shares = [&](const ReplayTensor& other) {
    return other.fresh ? other.storage == made.storage : other.storage == guard.storage;
  };
  const auto sharing_grads =
      std::count_if(plan_->grads_.begin(), plan_->grads_.end(),
                    [&](const auto& other) { return other.grad && shares(*other.grad); });
  return sharing_grads == 1 &&
         std::none_of(plan_->results_.begin(), plan_->results_.end(), shares) &&
         fresh.source.kind == ReplaySource::kOutput && !fresh.sharding && !storage.sharding &&
         !storage.filled && guard.root == fresh.shape &&
         SameView(guard.view.get(), made.view.get()) && guard.sizes == made.sizes &&
         guard.dtype == made.dtype;
}

/// What the call did to tensors rather than to their values.
std::string ReplayRecorder::FindChanges() {
  std::unordered_set<const XLATensorImpl*> known;
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
    const XLATensorImpl* old = entry.grad < 0 ? nullptr : before_.entries[entry.grad].impl;
    if (grad.unsafeGetTensorImpl() == old || (!old && !grad.defined())) continue;
    std::optional<ReplayTensor> made;
    bool alike = false;
    if (grad.defined()) {
      const XLATensorImpl* impl = GetImpl(grad, "a gradient");
      if (!known.insert(impl).second) return "it makes a tensor a gradient that is another's, too";
      if (impl->requires_grad()) return "it makes gradients that require gradients";
      made = Describe(*impl);
      alike = old && impl->key_set() == plan_->guards_[entry.grad].keys;
    }
    plan_->grads_.push_back({static_cast<uint32_t>(i), std::move(made), alike});
  }
  for (const at::Tensor& result : results_) {
    if (!IsXla(result)) return "it returns a tensor on " + result.device().str();
    XLATensorImpl* impl = GetImpl(result);
    if (!known.insert(impl).second) return "it returns a gradient itself";
    if (impl->root()->device() != device_) return "tensors of more than one xla device";
    if (impl->is_inference()) return "it returns an inference tensor";
    if (impl->grad().defined() || HookStamp(*impl)) return "a result has a gradient or hooks";
    if (impl->requires_grad() && !HasGradFn(*impl)) return "it returns a new leaf of autograd";
    plan_->results_.push_back(Describe(*impl));
  }
  return {};
}

void ReplayRecorder::ReleaseGradients(bool (*is_held)(const at::Tensor&)) {
  if (!refusal_.empty()) return;
  for (const ReplayPlan::GradUpdate& update : plan_->grads_) {
    const int32_t before = before_.entries[update.entry].grad;
    if (before < 0) continue;
    const XLATensorImpl* impl = before_.entries[before].impl;
    const uint32_t index = before_.entries[before].storage;
    const auto tensor = std::find_if(grads_.begin(), grads_.end(), [&](const at::Tensor& grad) {
      return grad.unsafeGetTensorImpl() == impl;
    });
    const auto held = held_.begin() + (tensor - grads_.begin());
    lazy::Storage& storage = *storages_[index];
    if (is_held(*tensor) || storages_[index].use_count() > 2 || storage.sharding()) continue;
    const ir::Value value = storage.value();
    if (value != *held) continue;
    // Read by operations (besides the storage, `held` and us), it would be donated; that is right
    // where it is another's, too: a momentum that began as this gradient.
    const bool is_read = value.node->references() > 3;
    if (is_read && std::count(ids_.begin(), ids_.end(), ids_[index]) == 1) continue;
    released_[index] = true;
    storage.Replace(value, lazy::MakeLeaf(c10::make_intrusive<DeviceData>(
                               storage.shape(), device_, c10::Scalar(0), nullptr)));
    *held = ir::Value();
  }
}

ReplayPlanPtr ReplayRecorder::Finish(std::string* refusal) {
  lazy::SetRecorder(outer_);
  watching_ = false;
  results_.clear();
  if (refusal_.empty() && !recorder_.reads.empty()) {
    refusal_ =
        "it asks for " + recorder_.reads[0].ToString() + ", and what follows may depend on it";
  }
  if (refusal_.empty() && recorder_.cuts.size() > 1) refusal_ = "it runs more than one program";
  const lazy::RecordedCut* cut = recorder_.cuts.empty() ? nullptr : &recorder_.cuts[0];
  if (refusal_.empty() && cut) refusal_ = AddCut(*cut);
  if (refusal_.empty()) refusal_ = AddValues(cut);
  if (refusal_.empty()) AddBounds();
  *refusal = refusal_;
  if (!refusal_.empty()) return nullptr;
  return plan_;
}

std::string ReplayRecorder::AddCut(const lazy::RecordedCut& cut) {
  if (cut.device != device_) return "tensors of more than one xla device";
  std::unordered_set<const lazy::Storage*> known;
  for (const lazy::StoragePtr& storage : storages_) known.insert(storage.get());
  for (const lazy::StoragePtr& storage : fresh_) known.insert(storage.get());
  for (const auto& target : cut.targets) {
    if (known.contains(target.storage)) continue;
    return "a tensor" + (target.location ? " made" + At(target.location) : std::string()) +
           " outlives the call, and is neither returned nor a gradient";
  }
  for (uint64_t id : cut.folded) {
    if (id < first_data_) return "it reads a tensor that nothing of what is looked at leads to";
  }
  plan_->program_ = cut.program;
  plan_->hash_ = cut.hash;
  for (const DeviceDataPtr& output : cut.outputs) {
    plan_->outputs_.push_back({output->shape(), output->location()});
  }
  std::string refusal = AddNumbers(cut);
  return refusal.empty() ? AddInputs(cut) : refusal;
}

std::string ReplayRecorder::AddNumbers(const lazy::RecordedCut& cut) {
  plan_->numbers_ = cut.numbers;
  plan_->floats_ = cut.floats;
  plan_->integers_ = cut.integers;
  std::unordered_map<uint64_t, uint64_t> draws;
  uint64_t state = rng_before_;
  for (uint64_t i = 0; i < plan_->draws_; ++i) {
    state = lazy::NextRngState(state);
    draws.emplace(lazy::MixSeed(state), i);
  }
  for (size_t i = 0; i < cut.integers.size(); ++i) {
    auto it = draws.find(static_cast<uint64_t>(cut.integers[i]));
    if (it != draws.end()) plan_->seeds_.push_back({static_cast<uint32_t>(i), it->second});
  }
  std::sort(plan_->seeds_.begin(), plan_->seeds_.end(),
            [](const auto& a, const auto& b) { return a.draw < b.draw; });
  return {};
}

std::string ReplayRecorder::AddInputs(const lazy::RecordedCut& cut) {
  std::unordered_map<uint64_t, std::vector<uint32_t>> holders;
  for (size_t i = 0; i < ids_.size(); ++i) {
    if (!released_[i]) holders[ids_[i]].push_back(static_cast<uint32_t>(i));
  }
  const std::vector<int>& aliases = cut.program->aliases;
  for (size_t i = 0; i < cut.inputs.size(); ++i) {
    ReplayInput& input = plan_->inputs_.emplace_back();
    input.donated = i < aliases.size() && aliases[i] >= 0;
    DeviceData& data = *cut.inputs[i];
    input.sharding = data.sharding();
    if (auto it = holders.find(data.id()); it != holders.end()) {
      input.storages = it->second;
      continue;
    }
    if (data.id() < first_data_) {
      return "it reads a tensor (" + data.shape()->ToString() +
             (data.location() ? ", made" + At(data.location()) : std::string()) +
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

/// What operations asked of the integers that tensors had before; what the call itself sends is the
/// same the next time.
void ReplayRecorder::AddBounds() {
  std::vector<ReplayPlan::Bounds>& all = plan_->bounds_;
  for (const lazy::RecordedBounds& asked : recorder_.bounds) {
    for (size_t i = 0; i < ids_.size(); ++i) {
      const ReplayPlan::Bounds one{static_cast<uint32_t>(i), asked.bounds};
      if (ids_[i] == asked.data && std::find(all.begin(), all.end(), one) == all.end()) {
        all.push_back(one);
      }
    }
  }
}

/// Where the values come from that storages have now.
std::string ReplayRecorder::AddValues(const lazy::RecordedCut* cut) {
  std::unordered_map<const DeviceData*, uint32_t> outputs;
  std::unordered_map<uint64_t, uint32_t> before;
  for (size_t i = 0; cut && i < cut->outputs.size(); ++i) outputs.emplace(cut->outputs[i].get(), i);
  for (size_t i = 0; i < ids_.size(); ++i) before.emplace(ids_[i], i);
  std::string refusal;
  auto source_of = [&](const DeviceData* data) {
    ReplaySource source{ReplaySource::kFill};
    if (auto it = outputs.find(data); it != outputs.end()) {
      source.kind = ReplaySource::kOutput;
      source.index = it->second;
    } else if (auto known = before.find(data->id()); known != before.end()) {
      source.kind = ReplaySource::kStorage;
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
  auto add = [&](const lazy::Storage& storage, std::optional<uint32_t> index) {
    const ir::Value value = storage.value();
    const DeviceData* data = lazy::LeafData(value);
    if (!data) {
      refusal = "another thread writes to its tensors";
      return;
    }
    if (index && data->id() == ids_[*index]) return;
    const ReplaySource source = source_of(data);
    if (source.kind == ReplaySource::kStorage) needed.insert(source.index);
    if (index) {
      plan_->writes_.push_back({*index, source});
      written.insert(*index);
    } else {
      plan_->fresh_.push_back({storage.shape(), source, storage.sharding()});
    }
  };
  for (const lazy::StoragePtr& storage : fresh_) add(*storage, std::nullopt);
  for (size_t i = 0; i < storages_.size(); ++i) {
    if (!released_[i]) add(*storages_[i], static_cast<uint32_t>(i));
  }
  for (const ReplayInput& input : plan_->inputs_) {
    needed.insert(input.storages.begin(), input.storages.end());
    if (input.donated && !input.storages.empty() &&
        (input.storages.size() != 1 || !written.contains(input.storages[0]))) {
      refusal = "a tensor that it reads dies in the call";
    }
  }
  for (ReplayPlan::GradUpdate& update : plan_->grads_) {
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

}  // namespace torch_xla::aten
