#include "exec/capture.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <mutex>
#include <numeric>
#include <optional>
#include <unordered_set>

#include "XLAOps.h"
#include "distributed/collective_node.h"
#include "exec/lower_graph.h"
#include "exec/manual_regions.h"
#include "exec/nan_search.h"
#include "exec/packed_numbers.h"
#include "exec/worker.h"
#include "ir/dump.h"
#include "lowering/context.h"
#include "lowering/may_call.h"
#include "runtime/platform.h"
#include "sizes/loops.h"
#include "stablehlo/joined_dims.h"
#include "tensor/device.h"
#include "tensor/graph.h"
#include "tensor/node_factory.h"
#include "tensor/rng.h"

namespace torch_xla::exec {
namespace {

std::exception_ptr NoValue(const std::string& what) {
  try {
    TORCH_CHECK(
        false, what,
        ": this tensor only stands for a value while the function is traced, and has no value "
        "itself. A traced function must not read its tensors, and its tensors must not be "
        "used after the trace");
  } catch (...) {
    return std::current_exception();
  }
}

tensor::DeviceDataPtr Promise(ir::ShapeRef shape, int device) {
  return tensor::MakePromise(shape, device, tensor::DevicesOf(device));
}

bool IsNumber(const ir::Node& node) { return &node.op() == &ir::ops::scalar; }

stablehlo::Value LowerNumber(lowering::LoweringContext& cx, const ir::Node& node) {
  const c10::Scalar number = ir::AttributeReader(node.attributes()).Scalar();
  return LowerScalar(cx, number, cx.Physical(node.shape()));
}

// The texts of functions, by the hash of what they compute. When the map is full it is cleared.
constexpr size_t kMaxTexts = 1024;
std::mutex texts_mutex;

std::unordered_map<ir::Hash128, std::string, ir::Hash128Hasher>& Texts() {
  static auto& texts = *new std::unordered_map<ir::Hash128, std::string, ir::Hash128Hasher>;
  return texts;
}

std::optional<std::string> FindText(const ir::Hash128& hash) {
  std::lock_guard<std::mutex> lock(texts_mutex);
  auto it = Texts().find(hash);
  return it == Texts().end() ? std::nullopt : std::optional(it->second);
}

void KeepText(const ir::Hash128& hash, const std::string& text) {
  std::lock_guard<std::mutex> lock(texts_mutex);
  if (Texts().size() >= kMaxTexts) Texts().clear();
  Texts().emplace(hash, text);
}

/// `numbers` maps a fill that is a parameter of the function to the number that it is filled with.
void LowerAll(lowering::LoweringContext& cx, const std::vector<const ir::Node*>& order,
              const std::unordered_map<const ir::Node*, ir::Value>& numbers,
              const ManualRegions& regions) {
  std::vector<uint32_t> positions(order.size());
  std::iota(positions.begin(), positions.end(), 0);
  auto no_numbers = [](uint32_t) { return std::vector<std::pair<size_t, stablehlo::Value>>(); };
  regions.Lower(cx, positions, no_numbers, [&](size_t i) {
    const ir::Node* node = order[i];
    if (auto it = numbers.find(node); it != numbers.end()) {
      cx.SetLeaf(*node, BroadcastTo(cx.Lowered(it->second), cx.Physical(node->shape()).dims));
    } else if (node->payload()) {
      cx.SetLeaf(*node, LowerFill(cx, *static_cast<tensor::DeviceData*>(node->payload())));
    } else if (IsNumber(*node)) {
      cx.SetLeaf(*node, LowerNumber(cx, *node));
    } else {
      cx.Lower(*node);
    }
  });
}

/// Whether the node is a view or a multiple of its first operand.
bool IsViewOrMultiple(const ir::Node& node) {
  if (&node.op() == &ir::ops::as_strided) return true;
  return &node.op() == &ir::ops::mul_Tensor && &node.operands()[1].node->op() == &ir::ops::scalar &&
         node.operands()[0].shape() == node.shape();
}

}  // namespace

/// The part of the graph between the inputs and the outputs of a function.
struct Capture::Walk {
  std::vector<const ir::Node*> order;  // operands before users
  Positions inputs;  // the inputs that are needed, by their places in the list of inputs
  std::vector<size_t> used;
  std::vector<ir::Value> captured;                       // numbers, leaves and values from outside
  std::unordered_map<const ir::Node*, ir::Value> fills;  // the number that a fill is filled with
};

Capture::Capture(int device, std::string what)
    : device_(device),
      what_(std::move(what)),
      first_data_(
          tensor::DeviceData(ir::GetShape(c10::ScalarType::Bool, {}), device, c10::Scalar(0)).id()),
      rng_state_(tensor::GetRngSeed(device)) {
  for (tensor::StoragePtr& storage : tensor::Storage::Pending(device)) {
    ir::Value value = storage->value();
    if (tensor::LeafData(value)) continue;
    outside_.emplace(Key{value.node.get(), value.index}, 0);
    before_.emplace_back(std::move(storage), std::move(value));
  }
  if (tensor::StoragePtr token = distributed::CollectiveToken(device)) token_ = token->value();
  tensor::StepFinderOf(device).Hold();
}

Capture::~Capture() {
  tensor::StepFinderOf(device_).Release();
  // Later collectives must not wait for the traced collectives.
  distributed::RestoreCollectiveToken(device_, token_);
  std::unordered_set<const ir::Node*> depends;
  for (const ir::Value& value : placeholders_) depends.insert(value.node.get());
  const auto failed = NoValue(what_);
  for (const tensor::StoragePtr& storage : tensor::Storage::Pending(device_)) {
    const ir::Value value = storage->value();
    if (tensor::LeafData(value)) continue;
    bool spoilt = false;
    for (const ir::Node* node : ir::PostOrder({&value, 1})) {
      spoilt = spoilt || depends.contains(node);
    }
    if (!spoilt) continue;
    auto data = Promise(value.shape(), device_);
    data->Fail(failed);
    storage->Replace(value, tensor::MakeLeaf(data));
  }
}

ir::Value Capture::Placeholder(ir::ShapeRef shape) {
  auto data = Promise(ir::GetShape(shape->dtype, shape->dims), device_);
  data->Fail(NoValue(what_));
  return placeholders_.emplace_back(tensor::MakeLeaf(data));
}

bool Capture::IsOutside(const ir::Node& leaf) const {
  return static_cast<const tensor::DeviceData*>(leaf.payload())->id() < first_data_;
}

std::vector<ir::Value> Capture::BasesOf(std::vector<ir::Value> values) {
  constexpr int64_t kMuchLarger = 4;
  for (ir::Value& value : values) {
    const int64_t most = kMuchLarger * value.shape()->numel;
    while (IsViewOrMultiple(*value.node) && value.node->operands()[0].shape()->numel <= most) {
      value = ir::Value(value.node->operands()[0]);
    }
  }
  return values;
}

std::vector<bool> Capture::DependOnPlaceholders(const std::vector<ir::Value>& values) const {
  std::unordered_set<const ir::Node*> depend;
  for (const ir::Value& value : placeholders_) depend.insert(value.node.get());
  for (const ir::Node* node : ir::PostOrder(values)) {
    for (const ir::Value& operand : node->operands()) {
      if (depend.contains(operand.node.get())) depend.insert(node);
    }
  }
  std::vector<bool> result;
  for (const ir::Value& value : values) result.push_back(depend.contains(value.node.get()));
  return result;
}

std::optional<ir::Value> Capture::TakeEffects() {
  const tensor::StoragePtr token = distributed::CollectiveToken(device_);
  if (!token) return std::nullopt;
  const ir::Value now = token->value();
  if (token_ ? now == *token_ : tensor::LeafData(now) != nullptr) return std::nullopt;
  distributed::RestoreCollectiveToken(device_, token_);
  return now;
}

std::vector<std::pair<tensor::StoragePtr, ir::Value>> Capture::WrittenOutside() const {
  std::unordered_set<const tensor::Storage*> pending;
  for (const auto& [storage, value] : before_) pending.insert(storage.get());
  std::vector<std::pair<tensor::StoragePtr, ir::Value>> written;
  for (const auto& [address, before] : writes_.All()) {
    const bool had_data =
        tensor::LeafData(before.value) && before.last_data != 0 && before.last_data < first_data_;
    if (!had_data && !pending.contains(address)) continue;
    if (const auto storage = before.storage.lock()) {
      written.emplace_back(
          tensor::StoragePtr::reclaim_copy(static_cast<tensor::Storage*>(storage.get())),
          before.value);
    }
  }
  return written;
}

bool Capture::ChangedOutside() const {
  const auto written = WrittenOutside();
  return std::any_of(written.begin(), written.end(),
                     [](const auto& write) { return write.first->value() != write.second; });
}

void Capture::RestoreOutside() {
  for (const auto& [storage, before] : WrittenOutside()) {
    // The sizes of a tensor that was resized stay, so its memory has to stay, too.
    if (storage->shape() == before.shape()) storage->Replace(storage->value(), before);
  }
}

int64_t Capture::DrawOf(const ir::Node& number) const {
  const c10::Scalar value = ir::AttributeReader(number.attributes()).Scalar();
  if (!value.isIntegral(/*includeBool=*/false)) return -1;
  const auto seed = static_cast<uint64_t>(ir::IntegerBits(value));
  const uint64_t now = tensor::GetRngSeed(device_);
  int64_t draw = 0;
  for (uint64_t state = rng_state_; state != now; ++draw) {
    state = tensor::NextRngState(state);
    if (tensor::MixSeed(state) == seed) return draw;
    // The state of the generator was set to an unrelated value since the capture began.
    if (draw == 1 << 20) break;
  }
  return -1;
}

Capture::Walk Capture::Collect(const std::vector<ir::Value>& inputs,
                               const std::vector<ir::Value>& outputs) const {
  Positions given;
  for (size_t i = 0; i < inputs.size(); ++i) {
    given.try_emplace(Key{inputs[i].node.get(), inputs[i].index}, i);
  }
  Walk walk;
  std::vector<bool> used(inputs.size());
  Positions captured;
  std::unordered_set<const ir::Node*> done;
  std::vector<std::pair<const ir::Node*, size_t>> stack;
  // Visits a value: an input, data, a number or a value from outside ends the walk; any other node
  // is computed in the function.
  auto open = [&](const ir::Value& value) {
    const Key key{value.node.get(), value.index};
    if (auto it = given.find(key); it != given.end()) {
      used[it->second] = true;
      return;
    }
    const ir::Node& node = *value.node;
    if (const tensor::DeviceData* data = tensor::LeafData(value)) {
      for (const ir::Value& placeholder : placeholders_) {
        TORCH_CHECK(placeholder != value, what_,
                    ": a result depends on a placeholder that is no argument of the function");
      }
      if (data->fill() && !IsOutside(node)) {
        if (!done.insert(&node).second) return;
        walk.order.push_back(&node);
        if (tensor::IsSpecial(*data->fill())) return;
        ir::Value number = tensor::MakeScalarParameter(*data->fill(), node.shape()->dtype, false);
        walk.fills.emplace(&node, number);
        walk.captured.push_back(std::move(number));
        return;
      }
      if (captured.try_emplace(key, walk.captured.size()).second) walk.captured.push_back(value);
      return;
    }
    if (IsNumber(node) || outside_.contains(key)) {
      if (captured.try_emplace(key, walk.captured.size()).second) walk.captured.push_back(value);
      return;
    }
    if (!done.contains(&node)) stack.emplace_back(&node, 0);
  };
  for (const ir::Value& output : outputs) {
    open(output);
    while (!stack.empty()) {
      auto& [node, next] = stack.back();
      if (done.contains(node)) {
        stack.pop_back();
      } else if (next < node->operands().size()) {
        open(node->operands()[next++]);
      } else {
        done.insert(node);
        walk.order.push_back(node);
        stack.pop_back();
      }
    }
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!used[i]) continue;
    walk.inputs.emplace(Key{inputs[i].node.get(), inputs[i].index}, i);
    walk.used.push_back(i);
  }
  return walk;
}

void Capture::TakeNumbers(Walk& walk, const std::vector<size_t>& kept) {
  std::vector<ir::Value> captured;
  std::vector<const ir::Node*> numbers;
  for (size_t i = 0; i < walk.captured.size(); ++i) {
    const ir::Value& value = walk.captured[i];
    if (IsNumber(*value.node) && std::ranges::find(kept, i) == kept.end()) {
      numbers.push_back(value.node.get());
    } else {
      captured.push_back(value);
    }
  }
  walk.captured = std::move(captured);
  walk.order.insert(walk.order.begin(), numbers.begin(), numbers.end());
}

ir::Hash128 Capture::HashOf(const Walk& walk, const std::vector<ir::Value>& inputs,
                            const std::vector<ir::Value>& outputs, const std::string& name) {
  ir::Hasher hasher;
  Positions known;
  auto add_parameter = [&](const ir::Value& value) {
    known.try_emplace(Key{value.node.get(), value.index}, known.size());
    hasher.Add(value.shape()->hash);
  };
  for (size_t i : walk.used) add_parameter(inputs[i]);
  hasher.Add(walk.used.size());
  for (const ir::Value& value : walk.captured) add_parameter(value);
  std::unordered_map<const ir::Node*, size_t> positions;
  auto add_use = [&](const ir::Value& value) {
    auto parameter = known.find(Key{value.node.get(), value.index});
    hasher.Add(parameter != known.end() ? 2 * parameter->second
                                        : 2 * positions.at(value.node.get()) + 1);
    hasher.Add(value.index);
  };
  for (const ir::Node* node : walk.order) {
    hasher.Add(node->hash());
    // The text is made only once, so numbers that the node's hash leaves out are constants in it.
    const ir::Words& attributes = node->attributes();
    for (uint32_t rest = attributes.numbers; rest; rest &= rest - 1) {
      hasher.Add(attributes[std::countr_zero(rest)]);
    }
    if (IsNumber(*node)) {
      for (uint64_t word : attributes) hasher.Add(word);
    }
    if (auto it = walk.fills.find(node); it != walk.fills.end()) {
      add_use(it->second);
    } else if (node->payload()) {
      ir::Words words;
      ir::AttributeWriter(words).Scalar(*static_cast<tensor::DeviceData*>(node->payload())->fill());
      for (uint64_t word : words) hasher.Add(word);
    }
    for (const ir::Value& operand : node->operands()) add_use(operand);
    positions.emplace(node, positions.size());
  }
  for (const ir::Value& output : outputs) {
    add_use(output);
    hasher.Add(output.shape()->hash);
  }
  hasher.Add(std::hash<std::string>()(name));
  hasher.Add(CurrentSettings()->Hash());
  return hasher.Finish();
}

std::string Capture::TextOf(const Walk& walk, const std::vector<ir::Value>& inputs,
                            const std::vector<ir::Value>& outputs, const std::string& name,
                            int64_t devices, bool portable, const std::string& what) {
  const ManualRegions regions(walk.order, outputs);
  TORCH_CHECK_NOT_IMPLEMENTED(
      regions.empty() || devices > 1, what,
      ": an export is a program for one device, where the devices of a region (shard_map) are not; "
      "export the function that each device runs, without the exchange");
  for (const ir::Value& output : outputs) {
    TORCH_CHECK(!regions.IsLocal(output.node.get()), what,
                ": the function returns or keeps a value of a manual region (shard_map), which has "
                "a part on each device and no whole: return it from the region");
  }
  auto lower = [&](int64_t partitions) {
    const distributed::ShardingWriter writer = WriterFor(partitions);
    const distributed::ShardingWriter::Use use(writer);
    lowering::LoweringContext cx(tensor::Platform());
    stablehlo::Builder& builder = cx.builder();
    builder.SetPartitions(partitions);
    // A function has the types that the user sees, not the types that the device computes in.
    auto parameter = [&](const ir::Value& value) {
      stablehlo::Type type = cx.Physical(value.shape());
      const auto physical = type.element;
      type.element = lowering::NaturalType(value.shape()->dtype);
      cx.Bind(value, stablehlo::Convert(builder.Parameter(type), physical));
    };
    for (size_t i : walk.used) parameter(inputs[i]);
    for (const ir::Value& value : walk.captured) parameter(value);
    LowerAll(cx, walk.order, walk.fills, regions);
    if (devices == 1) AddNanSearch(cx, walk.order);
    std::vector<stablehlo::Value> results;
    for (const ir::Value& output : outputs) {
      results.push_back(
          stablehlo::Convert(cx.Lowered(output), lowering::NaturalType(output.shape()->dtype)));
    }
    return builder.Finish(results, name);
  };
  std::string text = lower(devices);
  // The other form is for programs of one device that may call libraries, and for manual regions.
  if (!portable && regions.empty() &&
      (devices > 1 || runtime::HasCudnn(tensor::Platform()) ||
       lowering::HasCpuKernels(tensor::Platform()))) {
    const lowering::LibraryCalls allowed(true);
    text = stablehlo::JoinForms(text, lower(1));
  }
  return text;
}

void Capture::KeepFunction(const std::string& text, const Walk& walk,
                           const std::vector<ir::Value>& inputs,
                           const std::vector<ir::Value>& outputs) {
  sizes::LoopFunction kept{.nodes = {}, .parameters = {}, .outputs = {}, .lower = &Lower};
  std::unordered_map<Key, ir::Value, KeyHash> copies;  // of parameters
  std::unordered_map<const ir::Node*, ir::NodePtr> nodes;
  const auto copy = [&](const ir::Value& value) -> ir::Value {
    if (auto it = copies.find({value.node.get(), value.index}); it != copies.end())
      return it->second;
    return {nodes.at(value.node.get()), value.index};
  };
  // Arrays, and nodes from outside, must not be kept alive.
  const auto add_parameter = [&](const ir::Value& value) {
    const ir::Value leaf = IsNumber(*value.node)
                               ? ir::Value{sizes::WithOperands(*value.node, {}), 0}
                               : sizes::LoopParameter(value.shape());
    copies.emplace(Key{value.node.get(), value.index}, leaf);
    kept.nodes.push_back(leaf.node.get());
    kept.parameters.push_back(leaf);
  };
  for (size_t i : walk.used) add_parameter(inputs[i]);
  for (const ir::Value& value : walk.captured) add_parameter(value);
  for (const ir::Node* node : walk.order) {
    ir::NodePtr& made = nodes[node];
    if (auto fill = walk.fills.find(node); fill != walk.fills.end()) {
      made = tensor::Expand(copy(fill->second), node->shape()->dims).node;
    } else if (node->payload()) {
      made = tensor::Fill(*static_cast<tensor::DeviceData*>(node->payload())->fill(), node->shape())
                 .node;
      kept.nodes.push_back(made->operands()[0].node.get());
    } else {
      ir::Node::Operands operands;
      for (const ir::Value& operand : node->operands()) operands.push_back(copy(operand));
      made = sizes::WithOperands(*node, std::move(operands));
    }
    kept.nodes.push_back(made.get());
  }
  for (const ir::Value& output : outputs) kept.outputs.push_back(copy(output));
  sizes::KeepFunction(text, std::move(kept));
}

std::string Capture::Lower(const std::vector<ir::Value>& parameters,
                           const std::vector<ir::Value>& outputs, std::vector<ir::Value>& numbers) {
  Walk walk;
  std::unordered_set<const ir::Node*> done;
  for (const ir::Value& value : parameters) {
    walk.inputs.emplace(Key{value.node.get(), value.index}, walk.used.size());
    walk.used.push_back(walk.used.size());
    done.insert(value.node.get());
  }
  for (const ir::Node* node : ir::PostOrder(outputs)) {
    if (!done.insert(node).second) continue;
    TORCH_CHECK(&node->op() != &ir::ops::device_data,
                "a function of a loop depends on an array from outside");
    if (!IsNumber(*node)) {
      walk.order.push_back(node);
    } else {
      walk.captured.push_back({ir::NodePtr(const_cast<ir::Node*>(node)), 0});
    }
  }
  numbers = walk.captured;
  ir::Hasher hasher;
  hasher.Add(HashOf(walk, parameters, outputs, "loop"));
  hasher.Add(uint64_t{2});  // a form of its own; see MakeFunction
  const ir::Hash128 hash = hasher.Finish();
  if (std::optional<std::string> text = FindText(hash)) return *std::move(text);
  std::string text = TextOf(walk, parameters, outputs, "loop", 1, /*portable=*/false, "loop");
  KeepText(hash, text);
  return text;
}

Capture::Function Capture::MakeFunction(const std::vector<ir::Value>& inputs,
                                        const std::vector<ir::Value>& outputs,
                                        const std::string& name, const FunctionOptions& options) {
  Walk walk = Collect(inputs, outputs);
  if (options.numbers) TakeNumbers(walk, *options.numbers);
  Function function;
  function.inputs = walk.used;
  function.captured = walk.captured;
  for (const ir::Value& value : walk.captured) {
    function.seeds.push_back(IsNumber(*value.node) ? DrawOf(*value.node) : -1);
  }
  const auto devices =
      options.portable ? 1 : static_cast<int64_t>(tensor::DevicesOf(device_)->size());
  ir::Hasher hasher;
  hasher.Add(HashOf(walk, inputs, outputs, name));
  hasher.Add(options.portable);
  hasher.Add(static_cast<uint64_t>(devices));
  const ir::Hash128 hash = hasher.Finish();
  if (std::optional<std::string> text = FindText(hash)) {
    function.text = *std::move(text);
    return function;
  }
  function.text = TextOf(walk, inputs, outputs, name, devices, options.portable, what_);
  if (!options.portable && devices == 1) KeepFunction(function.text, walk, inputs, outputs);
  KeepText(hash, function.text);
  return function;
}

Capture::Compiled Capture::MakeProgram(const std::vector<ir::Value>& inputs,
                                       const std::vector<ir::Value>& outputs,
                                       const std::string& name) {
  Walk walk = Collect(inputs, outputs);
  // A value that other programs need as well must be device data before this program is made.
  for (const ir::Value& value : walk.captured) {
    TORCH_CHECK(tensor::LeafData(value) || IsNumber(*value.node), what_,
                ": a tensor from outside of the function is not computed yet");
  }
  const lowering::LibraryCalls calls(tensor::DevicesOf(device_)->size() == 1);
  lowering::LoweringContext cx(tensor::Platform());
  stablehlo::Builder& builder = cx.builder();
  Compiled compiled;
  compiled.program = std::make_shared<Program>();
  Signature& signature = compiled.program->signature;
  auto parameter = [&](const ir::Value& value) {
    cx.Bind(value, builder.Parameter(cx.Physical(value.shape())));
    signature.parameters.push_back(value.shape());
  };
  for (size_t i : walk.used) parameter(inputs[i]);
  std::vector<std::pair<const ir::Node*, int64_t>> seeds;
  for (const ir::Value& value : walk.captured) {
    if (tensor::DeviceData* data = tensor::LeafData(value)) {
      parameter(value);
      compiled.captured.push_back(tensor::DeviceDataPtr::reclaim_copy(data));
      continue;
    }
    const int64_t draw = DrawOf(*value.node);
    if (draw < 0) {
      cx.SetLeaf(*value.node, LowerNumber(cx, *value.node));
    } else {
      seeds.emplace_back(value.node.get(), draw);
      compiled.draws = std::max(compiled.draws, static_cast<uint64_t>(draw) + 1);
    }
  }
  if (!seeds.empty()) {
    const auto count = static_cast<int64_t>(compiled.draws);
    stablehlo::Value all = builder.Parameter({runtime::ElementType::kS64, {count}});
    for (const auto& [node, draw] : seeds) cx.SetLeaf(*node, Unpack(all, draw));
  }
  LowerAll(cx, walk.order, walk.fills, ManualRegions(walk.order, outputs));
  AddNanSearch(cx, walk.order);
  signature.integers = compiled.draws;
  std::vector<stablehlo::Value> results;
  for (const ir::Value& output : outputs) {
    results.push_back(stablehlo::ComputedForm(cx.Lowered(output)));
    signature.results.push_back(output.shape());
  }
  compiled.program->devices = tensor::DevicesOf(device_);
  compiled.program->stablehlo = builder.Finish(results, name);
  compiled.inputs = walk.used;
  return compiled;
}

std::vector<ir::Value> Run(const Capture::Compiled& compiled,
                           std::vector<tensor::DeviceDataPtr> inputs,
                           c10::ArrayRef<ir::ShapeRef> outputs, int device) {
  Execution execution;
  execution.program = compiled.program;
  execution.inputs = std::move(inputs);
  execution.inputs.insert(execution.inputs.end(), compiled.captured.begin(),
                          compiled.captured.end());
  for (uint64_t i = 0; i < compiled.draws; ++i) {
    const ir::Value seed = tensor::DrawSeed(device);
    execution.integers.push_back(ir::AttributeReader(seed.node->attributes()).Scalar().toLong());
  }
  std::vector<ir::Value> results;
  for (ir::ShapeRef shape : outputs) {
    execution.outputs.push_back(Promise(shape, device));
    results.push_back(tensor::MakeLeaf(execution.outputs.back()));
  }
  GetWorker(device).Push(std::move(execution));
  return results;
}

}  // namespace torch_xla::exec
