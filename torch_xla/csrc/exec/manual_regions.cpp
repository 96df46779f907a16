#include "exec/manual_regions.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "XLAOps.h"
#include "debug/environment.h"
#include "distributed/manual_ops.h"
#include "exec/cut.h"
#include "exec/stored_programs.h"
#include "lowering/may_call.h"
#include "stablehlo/joined_dims.h"
#include "stablehlo/text.h"
#include "tensor/device.h"

namespace torch_xla::exec {

using distributed::kManualCollective;
using distributed::kToLocal;
using distributed::kToWhole;
using distributed::Sharding;
using distributed::ShardingWriter;

namespace {

bool BeginsOrEnds(const ir::Node& node) {
  return &node.op() == &kToLocal || &node.op() == &kToWhole;
}

bool IsExchange(const ir::Node* node) { return &node->op() == &kManualCollective; }

std::vector<uint32_t> LocalLeaves(const tensor::Graph& graph) {
  std::vector<uint32_t> positions;
  for (size_t i = 0; i < graph.data.size(); ++i) {
    if (distributed::IsLocal(*graph.data[i]->sharding()))
      positions.push_back(graph.data_positions[i]);
  }
  return positions;
}

}  // namespace

ManualRegions::ManualRegions(const tensor::Graph& graph)
    : ManualRegions(graph.order, graph.roots, LocalLeaves(graph),
                    std::ranges::any_of(graph.order, IsExchange)) {}

ManualRegions::ManualRegions(std::span<const ir::Node* const> order,
                             std::span<const ir::Value> roots, std::span<const uint32_t> local,
                             bool exchanges)
    : order_(order), roots_(roots) {
  if (!distributed::HasManualOps() ||
      (local.empty() && !exchanges &&
       std::ranges::none_of(order, [](const ir::Node* node) { return BeginsOrEnds(*node); }))) {
    return;
  }
  local_.resize(order.size());
  for (const uint32_t position : local) local_[position] = true;
  regions_.resize(order.size());
  std::vector<int> levels(order.size());  // of the results
  auto find = [&](uint32_t position) {
    while (regions_[position].region != position) position = regions_[position].region;
    return position;
  };
  for (uint32_t i = 0; i < order.size(); ++i) {
    const ir::Node& node = *order[i];
    position_of_.emplace(&node, i);
    const bool is_leaf = local_[i], ends = &node.op() == &kToWhole;
    Place& place = regions_[i];
    for (const ir::Value& operand : node.operands()) {
      const auto found = operand ? position_of_.find(operand.node.get()) : position_of_.end();
      if (found == position_of_.end()) continue;
      local_[i] = local_[i] || local_[found->second];
      place.level = std::max(place.level, levels[found->second]);
    }
    local_[i] = local_[i] || &node.op() == &kToLocal || &node.op() == &kManualCollective;
    place.inside = (local_[i] && !is_leaf) || ends;
    place.region = i;
    for (const ir::Value& operand : node.operands()) {
      const auto found = operand ? position_of_.find(operand.node.get()) : position_of_.end();
      if (found == position_of_.end() || !place.inside || !local_[found->second]) continue;
      if (regions_[found->second].inside) regions_[find(found->second)].region = find(i);
    }
    levels[i] = place.level + (ends ? 1 : 0);
    if (ends) local_[i] = false;
  }
  std::vector<uint32_t> roots_of(order.size());
  for (uint32_t i = 0; i < order.size(); ++i) roots_of[i] = regions_[i].inside ? find(i) : 0;
  for (uint32_t i = 0; i < order.size(); ++i) regions_[i].region = roots_of[i];
}

bool ManualRegions::IsLocal(const ir::Node* node) const {
  const auto found = position_of_.find(node);
  return found != position_of_.end() && local_[found->second];
}

void ManualRegions::Lower(lowering::LoweringContext& cx, std::span<const uint32_t> positions,
                          const Numbers& numbers, const std::function<void(size_t)>& lower) const {
  std::vector<size_t> steps(positions.size());
  std::iota(steps.begin(), steps.end(), 0);
  const Place outside;
  auto place_of = [&](size_t step) -> const Place& {
    return empty() ? outside : regions_[positions[step]];
  };
  if (!empty()) std::ranges::stable_sort(steps, {}, place_of);
  std::vector<uint32_t> region;
  for (size_t i = 0; i < steps.size(); ++i) {
    const Place& place = place_of(steps[i]);
    if (!place.inside) {
      lower(steps[i]);
      continue;
    }
    region.push_back(positions[steps[i]]);
    if (i + 1 < steps.size() && place_of(steps[i + 1]) == place) continue;
    LowerRegion(cx, std::exchange(region, {}), numbers);
  }
}

void ManualRegions::LowerRegion(lowering::LoweringContext& cx, std::span<const uint32_t> positions,
                                const Numbers& numbers) const {
  const ShardingWriter& writer = ShardingWriter::Current();
  // The region is a function with a builder of its own: its program is that of a single device,
  // which may call kernels.
  const lowering::LibraryCalls calls(true);
  lowering::LoweringContext part(cx.platform());
  part.SetGraph(order_, roots_);
  stablehlo::Builder& builder = part.builder();
  std::vector<stablehlo::Value> operands;
  std::vector<const Sharding*> in;
  auto take = [&](stablehlo::Value whole, const Sharding& sharding) {
    operands.push_back(whole);
    in.push_back(&sharding);
    return builder.Parameter(writer.Part(whole.type(), sharding));
  };
  auto is_here = [&](const ir::Node* node) {
    const auto found = position_of_.find(node);
    return found != position_of_.end() &&
           std::binary_search(positions.begin(), positions.end(), found->second);
  };
  std::vector<stablehlo::Value> results;
  std::vector<const Sharding*> out;
  std::vector<ir::Value> made;  // the values that are the results outside
  auto hand_on = [&](const ir::Node* node, uint32_t index, stablehlo::Value value,
                     const Sharding& sharding) {
    results.push_back(value);
    out.push_back(&sharding);
    made.push_back({ir::NodePtr(const_cast<ir::Node*>(node)), index});
  };
  for (const uint32_t position : positions) {
    const ir::Node& node = *order_[position];
    TORCH_CHECK(&node.op() != &ir::ops::mark_sharding,
                "mark_sharding: a value of a manual region (shard_map) has a part on each device "
                "already; return it from the region and mark the result");
    if (&node.op() == &kToLocal) {
      const ir::Value& whole = node.operands()[0];
      TORCH_CHECK(!IsLocal(whole.node.get()),
                  "shard_map: expected a tensor of all devices, got a value of another region");
      part.SetLeaf(node, take(cx.Lowered(whole), *distributed::ShardingNamed(node)));
      continue;
    }
    for (const ir::Value& operand : node.operands()) {
      if (!operand || part.IsLowered(operand) || is_here(operand.node.get())) continue;
      const bool local = IsLocal(operand.node.get());
      stablehlo::Value value =
          take(cx.Lowered(operand), local ? *distributed::Local() : *Sharding::Replicated());
      const stablehlo::Type type = part.Physical(operand.shape());
      if (value.type() != type) value = stablehlo::Reshape(value, type.dims);
      part.Bind(operand, value);
    }
    if (&node.op() == &kToWhole) {
      hand_on(&node, 0, part.Lowered(node.operands()[0]), *distributed::ShardingNamed(node));
      continue;
    }
    if (part.IsLowered(node)) continue;  // lowered together with a node that reads it
    for (const auto& [word, value] : numbers(position)) {
      part.SetNumberParameter(word, take(value, *Sharding::Replicated()));
    }
    part.Lower(node);
  }
  // Local values that nodes outside of this region read.
  std::map<std::pair<uint32_t, uint32_t>, bool> elsewhere;
  auto note = [&](const ir::Value& value) {
    if (!value || !IsLocal(value.node.get()) || !is_here(value.node.get())) return;
    if (!elsewhere.emplace(std::pair(position_of_.at(value.node.get()), value.index), true).second)
      return;
    stablehlo::Value lowered = part.Lowered(value);
    if (lowered.rank() == 0) lowered = stablehlo::Reshape(lowered, {1});
    hand_on(value.node.get(), value.index, stablehlo::ComputedForm(lowered), *distributed::Local());
  };
  for (size_t i = 0; i < order_.size(); ++i) {
    if (std::binary_search(positions.begin(), positions.end(), static_cast<uint32_t>(i))) continue;
    for (const ir::Value& operand : order_[i]->operands()) note(operand);
  }
  for (const ir::Value& root : roots_) note(root);
  if (results.empty()) return;  // nobody reads them
  const std::string text = builder.Finish(results, "region");
  TORCH_CHECK(!ShardingWriter::HasShardings(text),
              "shard_map: a loop or a branch within a region has marks (mark_sharding), or regions "
              "that were begun outside of one");
  const std::string function = cx.builder().AddFunctions(text);
  std::vector<stablehlo::Type> types = stablehlo::TypesOf(results);
  const std::vector<stablehlo::Value> wholes =
      writer.Call(cx.builder(), function, operands, in, types, out);
  for (size_t i = 0; i < made.size(); ++i) cx.Bind(made[i], wholes[i]);
}

namespace {

/// By device. Interned: equal ones are the same object.
using Holders = std::vector<int64_t>;

const Holders kUnknown;

class HolderWalk {
 public:
  const Holders* Of(const ir::Node& root) {
    walk_.From(
        root, [this](const ir::Node& node) { of_.push_back(Visit(node)); },
        [](const ir::Node& node) { return BeginsOrEnds(node); });
    return of_.back();
  }

 private:
  const Holders* Visit(const ir::Node& node) {
    if (&node.op() == &kToWhole) return nullptr;
    if (&node.op() == &kToLocal) {
      const Sharding& sharding = *distributed::ShardingNamed(node);
      std::vector<Holders> parts(devices_);
      for (size_t i = 0; i < sharding.devices().size(); ++i) {
        parts[sharding.devices()[i]] = {static_cast<int64_t>(i) / sharding.copies()};
      }
      return Intern(parts);
    }
    if (node.payload()) {
      const Sharding* sharding = static_cast<const tensor::DeviceData*>(node.payload())->sharding();
      return sharding && distributed::IsLocal(*sharding) ? &kUnknown : nullptr;
    }
    if (&node.op() == &ir::ops::stablehlo) {
      if (ShardingWriter::Exchanges(ir::AttributeReader(node.attributes()).String())) {
        return &kUnknown;
      }
    }
    const Holders* all = nullptr;
    for (const ir::Value& operand : node.operands()) {
      const Holders* const one = operand ? of_[operand.node->mark().position] : nullptr;
      if (one == &kUnknown) return one;
      if (!one || one == all) continue;
      if (!all) {
        all = one;
        continue;
      }
      std::vector<Holders> pairs(devices_);
      for (size_t i = 0; i < devices_; ++i) pairs[i] = {(*all)[i], (*one)[i]};
      all = Intern(pairs);
    }
    return &node.op() == &kManualCollective ? Exchange(node, all) : all;
  }

  const Holders* Exchange(const ir::Node& node, const Holders* of) {
    ir::AttributeReader reader(node.attributes());
    const std::string_view kind = reader.String();
    const auto arguments = reader.IntList(), members = reader.IntList();
    const auto size = static_cast<size_t>(arguments[0]);
    std::vector<Holders> got(devices_);
    for (size_t begin = 0; begin < members.size(); begin += size) {
      auto at = [&](size_t place) { return of ? (*of)[members[begin + place]] : 0; };
      Holders group;
      for (size_t i = 0; i < size; ++i) group.push_back(at(i));
      if (kind == "sum" || kind == "max" || kind == "min") std::ranges::sort(group);
      const bool own = kind == "reduce_scatter" || kind == "all_to_all";
      for (size_t i = 0; i < size; ++i) {
        Holders& mine = got[members[begin + i]];
        if (kind == "axis_index") {
          mine = {static_cast<int64_t>(i)};
        } else if (kind != "ppermute") {
          mine = group;
          if (own) mine.push_back(static_cast<int64_t>(i));
        }
      }
      if (kind != "ppermute") continue;
      for (size_t i = 1; i + 1 < arguments.size(); i += 2) {
        got[members[begin + arguments[i + 1]]] = {at(arguments[i])};
      }
    }
    return Intern(got);
  }

  /// Null if all devices have the same.
  const Holders* Intern(const std::vector<Holders>& keys) {
    std::map<Holders, int64_t> numbers;
    Holders holders;
    for (const Holders& key : keys) {
      holders.push_back(numbers.emplace(key, static_cast<int64_t>(numbers.size())).first->second);
    }
    return numbers.size() == 1 ? nullptr : &*known_.insert(std::move(holders)).first;
  }

  const size_t devices_ = tensor::GetClient().devices().size();
  tensor::GraphWalk walk_;
  std::vector<const Holders*> of_;  // by position: null if all devices have the same
  std::set<Holders> known_;
};

}  // namespace

std::vector<int64_t> HoldersOf(const ir::Value& value) {
  const auto lock = tensor::LockGraph();
  HolderWalk walk;
  const Holders* const holders = walk.Of(*value.node);
  return holders ? *holders : Holders();
}

namespace {

bool Probe() {
  runtime::Client& client = tensor::GetClient();
  const int64_t devices = static_cast<int64_t>(client.devices().size());
  const ShardingWriter writer(devices, /*shardy=*/true);
  stablehlo::Builder builder;
  builder.SetPartitions(devices);
  const Sharding& replicated = *Sharding::Replicated();
  const stablehlo::Value x =
      builder.Parameter({runtime::ElementType::kF32, {devices}}, writer.Attribute(replicated, 1));
  const stablehlo::Type part{runtime::ElementType::kF32, {1}};
  const std::string function = builder.Function(
      "part", std::span(&part, 1),
      [](std::span<const stablehlo::Value> v) { return std::vector{stablehlo::Negate(v[0])}; });
  const Sharding* local = distributed::Local();
  const stablehlo::Value y =
      writer.Call(builder, function, {{x}}, {{local}}, {{part}}, {{local}})[0];
  builder.AddOutputAttributes(0, writer.Attribute(*local, 1));
  const std::string text = writer.Declare(builder.Finish({y}));
  runtime::CompileOptions options;
  options.num_partitions = static_cast<int>(devices);
  options.use_spmd_partitioning = true;
  options.propagate_to_outputs = {false};
  const std::shared_ptr<DiskCache> cache = UsableCache();
  const std::string key = cache ? ProgramKey(TextHash("shardy?\n" + text), options) : std::string();
  if (const auto known = cache ? cache->Read(key) : std::nullopt) return known == "1";
  bool takes = true;
  try {
    client.Compile(text, options);
  } catch (const runtime::Error&) {
    takes = false;
  }
  if (cache) cache->Write(key, takes ? "1" : "0");
  return takes;
}

}  // namespace

bool PartitionsByShardy() {
  static const bool by_shardy = std::getenv("XLA_SHARDY") ? debug::EnvFlag("XLA_SHARDY") : Probe();
  return by_shardy;
}

ShardingWriter WriterFor(int64_t devices) { return {devices, devices > 1 && PartitionsByShardy()}; }

}  // namespace torch_xla::exec
