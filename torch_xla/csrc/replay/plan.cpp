#include "replay/plan.h"

#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <bit>
#include <unordered_map>

#include "aten/autograd_node.h"
#include "aten/bridge.h"
#include "exec/transfer.h"
#include "exec/worker.h"
#include "sizes/binding.h"
#include "tensor/device.h"
#include "tensor/rng.h"

namespace torch_xla::replay {

using tensor::DeviceData;
using tensor::DeviceDataPtr;

namespace {

bool SameNumber(const c10::Scalar& a, const c10::Scalar& b) {
  ir::Words first, second;
  ir::AttributeWriter(first).Scalar(a);
  ir::AttributeWriter(second).Scalar(b);
  return first == second;
}

/// Whether nothing but its parameter holds the gradient or its memory, and Python has never seen
/// it. Then the gradient's tensor can be reused for the next gradient.
bool IsOnlyGradient(const at::Tensor& grad) {
  auto* impl = static_cast<aten::XLATensorImpl*>(grad.unsafeGetTensorImpl());
  return grad.use_count() == 1 && grad.weak_use_count() == 1 && impl->root().use_count() == 1 &&
         !impl->pyobj_slot()->load_pyobj() && !impl->autograd_meta() && VersionOf(*impl) == 0;
}

/// The first entry with the storage.
size_t EntryOf(const TensorTable& table, size_t storage) {
  auto it = std::find_if(table.entries.begin(), table.entries.end(),
                         [&](const auto& entry) { return entry.storage == storage; });
  return it - table.entries.begin();
}

std::string NumberText(const exec::RecordedNumber& number) {
  return number.is_float ? std::to_string(std::bit_cast<double>(number.bits))
                         : std::to_string(static_cast<int64_t>(number.bits));
}

}  // namespace

std::string AtLine(const ir::SourceLocation* location) {
  return location ? " at " + location->ToString() : "";
}

bool Source::operator==(const Source& other) const {
  return kind == other.kind && index == other.index && SameNumber(fill, other.fill) &&
         sharding == other.sharding;
}

bool NewTensor::operator==(const NewTensor& other) const {
  return fresh == other.fresh && storage == other.storage &&
         SameView(view.get(), other.view.get()) && dtype == other.dtype && sizes == other.sizes &&
         conj == other.conj && neg == other.neg && requires_grad == other.requires_grad;
}

// ---------------------------------------------------------------- plans

const char* Plan::Misfit(const TensorTable& table, size_t* entry) const {
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
    const DeviceData* data = tensor::LeafData(value);
    const std::optional<tensor::Extremes> known = data ? data->extremes() : std::nullopt;
    if (!known || !asked.bounds.Violation(*known)) continue;
    *entry = EntryOf(table, asked.storage);
    return "its integers, of which an operation cannot take one";
  }
  return nullptr;
}

bool Plan::Run(const TensorTable& table, std::vector<double> floats,
               std::vector<at::Tensor>& results) const {
  if (binding_ && binding_->GivesWay()) return false;
  std::vector<ir::Value> values(table.storages.size());
  for (uint32_t i : needed_) {
    values[i] = table.storages[i]->value();
    if (!tensor::LeafData(values[i])) return false;
  }
  exec::Execution execution;
  execution.inputs.reserve(inputs_.size());
  for (const Input& input : inputs_) {
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
    DeviceData* data = tensor::LeafData(value);
    // The sharding of an input is part of the program.
    if (data->sharding() != input.sharding) return false;
    // The program overwrites the input, so only its tensor and this function may have it.
    if (input.donated && (value.node->references() != 2 || data->foreign())) return false;
    execution.inputs.push_back(DeviceDataPtr::reclaim_copy(data));
  }
  const uint64_t rng = draws_ ? tensor::SkipRngStates(device_, draws_) : 0;
  tensor::StepFinderOf(device_).Hold();
  const tensor::DeviceSet* devices = tensor::DevicesOf(device_);
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
    leaves.push_back(tensor::MakeLeaf(execution.outputs.back()));
  }
  auto make = [&](const Source& source, ir::ShapeRef shape) {
    if (source.kind == Source::kOutput) return leaves[source.index];
    if (source.kind == Source::kStorage) return values[source.index];
    return tensor::MakeLeaf(
        c10::make_intrusive<DeviceData>(shape, device_, source.fill, source.sharding));
  };
  std::vector<tensor::StoragePtr> fresh(fresh_.size());
  for (const GradUpdate& update : grads_) {
    const int32_t before = table.entries[update.entry].grad;
    if (before < 0) continue;
    const tensor::StoragePtr& storage = table.entries[before].impl->root();
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
    fresh[i] = c10::make_intrusive<tensor::Storage>(make(one.source, one.shape), device_);
    if (one.sharding) fresh[i]->SetSharding(one.sharding);
  }
  for (const Write& write : writes_) {
    tensor::Storage* storage = table.storages[write.storage];
    storage->Assign(make(write.source, storage->shape()));
  }
  tensor::StepFinderOf(device_).Release();
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (!inputs_[i].donated || inputs_[i].storages.empty()) continue;
    execution.graph.push_back(std::move(values[inputs_[i].storages[0]]));
    // Another thread may have taken the old value before the tensor got its new one. That thread
    // keeps the buffer, and the program gets a copy.
    if (execution.graph.back().node->references() == 1) continue;
    try {
      DeviceData& data = *execution.inputs[i];
      execution.inputs[i] = c10::make_intrusive<DeviceData>(
          data.shape(), device_, exec::ToHost(data), inputs_[i].sharding);
    } catch (...) {
      for (const auto& output : execution.outputs) output->Fail(std::current_exception());
      throw;
    }
  }
  for (uint32_t i : bumped_) table.entries[i].impl->bump_version();
  auto tensor_of = [&](const NewTensor& made) {
    at::Tensor tensor = at::detail::make_tensor<aten::XLATensorImpl>(
        made.fresh ? fresh[made.storage]
                   : tensor::StoragePtr::reclaim_copy(table.storages[made.storage]),
        made.view, made.dtype, made.sizes);
    if (made.conj) tensor.unsafeGetTensorImpl()->_set_conj(true);
    if (made.neg) tensor.unsafeGetTensorImpl()->_set_neg(true);
    return tensor;
  };
  // Make the results first, since the old gradients may be the last owners of their storages.
  for (const NewTensor& result : results_) {
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
  // The random state after the draw of this seed.
  uint64_t state = rng;
  uint64_t drawn = 0;
  for (const Seed& seed : seeds_) {
    for (; drawn <= seed.draw; ++drawn) state = tensor::NextRngState(state);
    execution.integers[seed.integer] = static_cast<int64_t>(tensor::MixSeed(state));
  }
  execution.origin = {"torch_xla.compile(replay=True)", nullptr, nullptr};
  if (program_->runs) program_->runs->Add();
  if (binding_) binding_->Apply(execution, device_, devices);
  exec::GetWorker(device_).Push(std::move(execution));
  return true;
}

std::string Plan::Difference(const Plan& other, bool donation,
                             const std::unordered_set<size_t>& explained) const {
  if (!(hash_ == other.hash_)) return "it traces other operations";
  if (numbers_.size() != other.numbers_.size()) return "it uses more or fewer numbers";
  if (seeds_ != other.seeds_ || draws_ != other.draws_) return "it draws other random numbers";
  for (size_t i = 0; i < numbers_.size(); ++i) {
    const exec::RecordedNumber &now = numbers_[i], &before = other.numbers_[i];
    if (now == before || explained.contains(i)) continue;
    const bool is_seed = std::any_of(seeds_.begin(), seeds_.end(), [&](const Seed& seed) {
      return !now.is_float && now.packed == static_cast<int32_t>(seed.integer);
    });
    if (is_seed) continue;
    return "a number" + AtLine(now.location) + " is " + NumberText(now) + " and was " +
           NumberText(before) + ", and nothing that is looked at says why";
  }
  if (donation && program_ != other.program_) return "its program was compiled anew";
  auto same_input = [&](const Input& a, const Input& b) {
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

}  // namespace torch_xla::replay
