#include "sizes/families.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "XLAOps.h"
#include "debug/metrics.h"
#include "debug/report.h"
#include "ir/dump.h"
#include "sizes/bounded_graph.h"
#include "sizes/rules.h"
#include "tensor/device_data.h"
#include "tensor/node_factory.h"
#include "tensor/view.h"

namespace torch_xla::sizes {
namespace {

/// Smaller graphs are many, compile fast and run in less time than arrays are padded in. They, and
/// graphs whose inputs have fixed sizes, take sizes as arguments where no array is padded or taken
/// apart for that, small graphs from the fourth size on. Mode "poison" has no such limits.
constexpr size_t kFewestNodes = 8;
constexpr int kFewSizes = 3;
/// Above this number all structures are forgotten. At worst one more program is compiled for each.
constexpr size_t kMaxStructures = 1 << 10;
/// A structure that was refused this often is not tried again.
constexpr int kMaxRefusals = 4;

enum class Mode { kOff, kOn, kPoison };

/// XLA_DYNAMIC_SIZES: 0 is off. "poison" fills all padding with NaN and with indices that are out
/// of bounds, so that tests see whether results depend on padding.
Mode ModeOf() {
  static const Mode mode = [] {
    const char* text = std::getenv("XLA_DYNAMIC_SIZES");
    const std::string given = text ? text : "";
    if (given == "poison") return Mode::kPoison;
    return given == "0" ? Mode::kOff : Mode::kOn;
  }();
  return mode;
}

struct Structure {
  VaryingSizes sizes;
  bool varies = false;
  int refusals = 0;
  SizesNote refused;               // the latest refusal
  std::vector<ir::ShapeRef> last;  // inputs of the last graph
  int growths = 0;                 // how many graphs in a row had inputs that grew by 1
  bool computed = false;           // whether a program made one that grew, as it makes a cache
  bool always_grows = false;       // whether `growths` has ever reached its limit
  int graphs = 0;                  // how many were compared with the first one
  // Of them, in how many a result's dimension had another size, for inputs that vary.
  std::map<std::pair<uint32_t, size_t>, int> differed;
};

/// Notes whether inputs grow by 1 from graph to graph. Of those that come from the host two in a
/// row have to: their sizes may be any.
void NoteGrowth(Structure& structure, const tensor::Graph& graph) {
  constexpr int kAlways = 3;
  std::vector<ir::ShapeRef> now;
  for (const tensor::DeviceDataPtr& data : graph.data) now.push_back(data->shape());
  bool grew = false, computed = false, other = now.size() != structure.last.size();
  for (size_t i = 0; !other && i < now.size(); ++i) {
    other = now[i]->rank() != structure.last[i]->rank();
    for (size_t d = 0; !other && d < now[i]->rank(); ++d) {
      const int64_t more = now[i]->dims[d] - structure.last[i]->dims[d];
      grew |= more == 1;
      computed |= more == 1 && (graph.data[i]->pending() || graph.data[i]->producer() != 0);
      other |= more != 0 && more != 1;
    }
  }
  if (grew || other) structure.growths = grew && !other ? structure.growths + 1 : 0;
  structure.always_grows |= structure.growths >= kAlways;
  if (grew) structure.computed = computed;
  structure.sizes.grows =
      structure.always_grows || structure.growths > (structure.computed ? 0 : 1);
  structure.last = std::move(now);
}

std::mutex structures_mutex;
std::unordered_map<ir::Hash128, Structure, ir::Hash128Hasher>& Structures() {
  static auto& structures = *new std::unordered_map<ir::Hash128, Structure, ir::Hash128Hasher>;
  return structures;
}

/// Adds the dimensions that a node works along. They are no sizes, but graphs that differ in them
/// have sizes at other places.
void AddDimensions(const ir::Node& node, ir::Hasher& hasher) {
  if (node.attributes().empty()) return;
  try {
    for (const Argument& argument : ArgumentsOf(node)) {
      if (!argument.name.starts_with("dim") && argument.name != "keepdim") continue;
      for (size_t i = 0; i < argument.words; ++i) hasher.Add(node.attributes()[argument.word + i]);
    }
  } catch (const SizesRefused&) {  // only a rule has to read all
  }
}

/// The hash of a graph without its sizes and most attributes. It says which graphs' sizes are
/// compared with each other; graphs with equal hashes may still need different programs.
ir::Hash128 HashWithoutSizes(const tensor::Graph& graph, const ResultShapes& shapes) {
  std::unordered_map<const ir::Node*, uint64_t> positions;
  positions.reserve(graph.order.size());
  ir::Hasher hasher;
  for (const ir::Node* node : shapes.nodes) {
    hasher.Add(node->op().id);
    hasher.Add(shapes.loops.contains(node) ? ~size_t{0} : node->attributes().size());
    AddDimensions(*node, hasher);
    for (const ir::Value& operand : node->operands())
      hasher.Add(positions.at(operand.node.get()) << 16 | operand.index);
    for (size_t i = 0; i < node->num_outputs(); ++i) {
      const ir::ShapeRef shape = node->shape(i);
      hasher.Add(shape ? static_cast<uint64_t>(shape->dtype) << 8 | shape->rank() : ~uint64_t{0});
    }
    positions.emplace(node, positions.size());
  }
  for (const ir::Value& root : graph.roots)
    hasher.Add(positions.at(root.node.get()) << 16 | root.index);
  return hasher.Finish();
}

SizesNote Taken(const BoundedGraph& graph) {
  return {"sizes are arguments of the program (family " + graph.family() +
          "): " + graph.Description()};
}

SizesNote Kept(const SizesNote& reason) {
  return {"sizes are part of the program: " + reason.text, reason.location};
}

/// A size that most graphs share with the first one, such as that of all batches but an epoch's
/// last, is no argument of a graph that has it. Then it has no padding, and the graphs before the
/// first other size keep their programs.
void FixFirstSizes(const Structure& structure, const tensor::Graph& graph,
                   const ResultShapes& shapes, VaryingSizes& sizes) {
  std::set<int64_t> fixed;
  for (uint32_t position : graph.data_positions) {
    const uint32_t i = shapes.begin[position];
    for (size_t d = 0; d < shapes.shapes[i]->rank() && d < 64; ++d) {
      const int64_t size = shapes.shapes[i]->dims[d];
      const auto differed = structure.differed.find({i, d});
      if (size == sizes.first[i]->dims[d] && differed != structure.differed.end() &&
          2 * differed->second < structure.graphs)
        fixed.insert(size);
    }
  }
  for (size_t i = 0; !fixed.empty() && i < sizes.first.size(); ++i) {
    const ir::ShapeRef first = sizes.first[i], now = shapes.shapes[i];
    for (size_t d = 0; first && now && d < now->rank() && d < 64; ++d) {
      if (first->dims[d] == now->dims[d] && fixed.contains(now->dims[d]))
        sizes.varies[i] &= ~(uint64_t{1} << d);
    }
  }
}

/// Notes the sizes of this graph. Returns what varies among the graphs of its structure; nothing if
/// nothing does, or if few small graphs were seen.
std::optional<VaryingSizes> Learn(const tensor::Graph& graph, const ResultShapes& shapes,
                                  const ir::Hash128& hash, SizesNote& note) {
  std::lock_guard lock(structures_mutex);
  auto& structures = Structures();
  if (structures.size() >= kMaxStructures) structures.clear();
  const auto [it, is_new] = structures.try_emplace(hash);
  Structure& structure = it->second;
  VaryingSizes& sizes = structure.sizes;
  NoteGrowth(structure, graph);
  if (is_new) {
    sizes.varies.resize(shapes.shapes.size());
    sizes.first = shapes.shapes;
    sizes.family = ir::ToHex(hash).substr(24);
    return std::nullopt;
  }
  for (size_t i = 0; i < sizes.first.size(); ++i) {
    const ir::ShapeRef first = sizes.first[i], now = shapes.shapes[i];
    if (first == now || !first || !now) continue;
    for (size_t d = 0; d < now->rank() && d < 64; ++d) {
      if (first->dims[d] != now->dims[d]) sizes.varies[i] |= uint64_t{1} << d;
    }
  }
  ++structure.graphs;
  for (uint32_t position : graph.data_positions) {
    const uint32_t i = shapes.begin[position];
    if (sizes.varies[i] == 0) continue;
    structure.varies = true;
    for (size_t d = 0; d < shapes.shapes[i]->rank(); ++d) {
      if (shapes.shapes[i]->dims[d] != sizes.first[i]->dims[d]) ++structure.differed[{i, d}];
    }
  }
  // The number of elements that a mask chooses varies without any input.
  bool makes = false;
  for (size_t node = 0; node < shapes.nodes.size(); ++node) {
    if (sizes.varies[shapes.begin[node]] == 0) continue;
    const ir::OpSpec& op = shapes.nodes[node]->op();
    structure.varies |= &op == &ir::ops::nonzero_static;
    makes |= &op == &ir::ops::device_data || RuleOf(op, /*makes=*/true);
  }
  sizes.makes = !structure.varies;
  if (sizes.makes && !makes) return std::nullopt;
  if (graph.order.size() < kFewestNodes && ModeOf() == Mode::kOn && structure.graphs < kFewSizes)
    return std::nullopt;
  if (structure.refusals >= kMaxRefusals) {
    note = Kept(structure.refused);
    return std::nullopt;
  }
  VaryingSizes varying = sizes;
  if (!varying.grows) FixFirstSizes(structure, graph, shapes, varying);
  return varying;
}

c10::Scalar PaddingOf(c10::ScalarType dtype) {
  if (c10::isIntegralType(dtype, true) || c10::isComplexType(dtype)) {
    if (ModeOf() != Mode::kPoison || c10::isComplexType(dtype)) return int64_t{0};
    switch (dtype) {
      case c10::ScalarType::Bool:
        return true;
      case c10::ScalarType::Int:
      case c10::ScalarType::Long:
        return int64_t{1} << 30;
      default:
        return int64_t{101};
    }
  }
  return ModeOf() == Mode::kPoison ? std::numeric_limits<double>::quiet_NaN() : 0.0;
}

/// Above this number all bindings are forgotten; their graphs are then rewritten again.
constexpr size_t kMaxBindings = 1 << 12;

std::unordered_map<ir::Hash128, Bound, ir::Hash128Hasher>& Bindings() {
  static auto& bindings = *new std::unordered_map<ir::Hash128, Bound, ir::Hash128Hasher>;
  return bindings;
}

}  // namespace

std::optional<BoundedProgram> BoundGraph(const tensor::Graph& graph, int device,
                                         const tensor::DeviceSet* devices,
                                         const std::vector<int>& aliases, SizesNote& note) {
  static auto& refused = *new debug::Counter("DynamicSizesRefused");
  const Mode mode = ModeOf();
  if (mode == Mode::kOff || !note.text.empty()) return std::nullopt;
  ResultShapes shapes = ShapesOf(graph);
  const ir::Hash128 structure = HashWithoutSizes(graph, shapes);
  std::optional<VaryingSizes> varying = Learn(graph, shapes, structure, note);
  if (!varying) return std::nullopt;
  BoundedProgram result{.graph = {},
                        .aliases = {},
                        .rewritten = std::make_unique<BoundedGraph>(
                            graph, std::move(shapes), *std::move(varying), device, devices)};
  BoundedGraph& bounded = *result.rewritten;
  std::string reason;
  try {
    bounded.Rewrite(&RuleOf);
  } catch (const SizesRefused& refusal) {
    reason = refusal.reason;
  } catch (const c10::Error& error) {
    reason = error.what_without_backtrace();
  } catch (const std::exception& error) {
    reason = error.what();
  }
  if (!reason.empty()) {
    refused.Add();
    const ir::Node* node = bounded.refused();
    if (!node) {  // other sizes of the structure may be arguments
      note = Kept({std::move(reason)});
      return std::nullopt;
    }
    if (node->shape()) reason.insert(0, node->shape()->ToString() + ": ");
    reason.insert(0, std::string(node->op().name) + " ");
    note = RefuseBounds(graph, {std::move(reason), node->location()});
    return std::nullopt;
  }
  {
    // The next sizes are rewritten in one pass.
    std::lock_guard lock(structures_mutex);
    if (const auto found = Structures().find(structure); found != Structures().end())
      found->second.sizes.zeroed = bounded.zeroed();
  }
  const bool copies =
      !bounded.padded().empty() || std::ranges::any_of(graph.roots, [&](const ir::Value& root) {
        return bounded.Of(root).varies;
      });
  if (mode == Mode::kOn && copies && (graph.order.size() < kFewestNodes || bounded.makes()))
    return std::nullopt;
  std::vector<ir::Value> roots;
  std::vector<int> places;  // per root of the graph: its index in `roots`, or -1 if it varies
  for (const ir::Value& exact : graph.roots) {
    const BoundedGraph::Result& root = bounded.Of(exact);
    const auto place = std::ranges::find(roots, root.value) - roots.begin();
    places.push_back(root.varies ? -1 : static_cast<int>(place));
    if (static_cast<size_t>(place) == roots.size()) roots.push_back(root.value);
  }
  {
    auto lock = tensor::LockGraph();
    result.graph = tensor::CollectGraph(std::move(roots));
  }
  // An input that is donated to a result of fixed size is donated to the program, too.
  std::unordered_map<const tensor::DeviceData*, int> donated;
  for (size_t i = 0; i < aliases.size(); ++i) {
    if (aliases[i] >= 0)
      donated.emplace(graph.data[i].get(), places[static_cast<size_t>(aliases[i])]);
  }
  for (const tensor::DeviceDataPtr& data : result.graph.data) {
    const auto found = donated.find(data.get());
    if (!aliases.empty()) result.aliases.push_back(found == donated.end() ? -1 : found->second);
  }
  note = Taken(bounded);
  return result;
}

std::shared_ptr<const Binding> Bind(const ir::Hash128& key, const ir::Hash128& program,
                                    const tensor::Graph& graph, int device,
                                    const tensor::DeviceSet* devices, const BoundedGraph& bounded,
                                    const tensor::Graph& bulk) {
  static auto& bindings_made = *new debug::Counter("DynamicSizesBound");
  bindings_made.Add();
  const Bound bound{
      std::make_shared<const Binding>(graph, device, devices, bounded, bulk, &PaddingOf), program,
      &debug::GetCounter("DynamicSizes::" + bounded.family() + "(" + bounded.Bounds() + ")")};
  {
    std::lock_guard lock(structures_mutex);
    auto& bindings = Bindings();
    if (bindings.size() >= kMaxBindings) bindings.clear();
    bindings.insert_or_assign(key, bound);
  }
  if (debug::DebugLevel() >= 1) debug::Report("pt-xla-profiler: " + Taken(bounded).text + "\n");
  return Use(bound);
}

std::optional<Bound> FindBound(const ir::Hash128& key, const tensor::Graph& graph,
                               SizesNote& note) {
  Bound bound;
  {
    std::lock_guard lock(structures_mutex);
    const auto found = Bindings().find(key);
    if (found == Bindings().end()) return std::nullopt;
    bound = found->second;
  }
  if (!bound.binding->Fits(graph)) return std::nullopt;
  if (bound.binding->GivesWay()) {
    note = Kept({"they came often, and much of their bucket's program was padding"});
    return std::nullopt;
  }
  return bound;
}

std::shared_ptr<const Binding> Use(const Bound& bound) {
  static auto& fitted = *new debug::Counter("DynamicSizes");
  static auto& padding = *new debug::Metric("DynamicSizesPadding", debug::Unit::kNumber);
  fitted.Add();
  bound.runs->Add();
  padding.AddSample(bound.binding->padding());
  return bound.binding;
}

SizesNote RefuseBounds(const tensor::Graph& graph, const SizesNote& reason) {
  const ir::Hash128 hash = HashWithoutSizes(graph, ShapesOf(graph));
  std::lock_guard lock(structures_mutex);
  if (const auto found = Structures().find(hash); found != Structures().end()) {
    ++found->second.refusals;
    found->second.refused = reason;
  }
  return Kept(reason);
}

void ForgetSizes() {
  std::lock_guard lock(structures_mutex);
  Structures().clear();
  Bindings().clear();
}

namespace {
thread_local const SizesNote* current_sizes = nullptr;

/// Above this number the oldest marks are forgotten, and buckets bound the sizes of their data.
constexpr size_t kMaxMarked = 1 << 12;
std::mutex marked_mutex;
std::atomic<bool> any_marked{false};
/// The bounds, by the ids of their data.
std::map<uint64_t, ir::ShapeRef>& AllMarked() {
  static auto& marked = *new std::map<uint64_t, ir::ShapeRef>;
  return marked;
}
}  // namespace

SizesScope::SizesScope(const SizesNote& note)
    : outer_(std::exchange(current_sizes, note.text.empty() ? current_sizes : &note)) {}
SizesScope::~SizesScope() { current_sizes = outer_; }
const SizesNote* CurrentSizes() { return current_sizes; }

void MarkSize(const tensor::DeviceDataPtr& data, size_t dim, int64_t bound) {
  if (ModeOf() == Mode::kOff) return;
  std::lock_guard lock(marked_mutex);
  auto& all = AllMarked();
  std::vector<int64_t> bounds(data->shape()->rank());
  ir::ShapeRef& marked = all[data->id()];
  if (marked) bounds.assign(marked->dims.begin(), marked->dims.end());
  bounds.at(dim) = bound;
  marked = ir::GetShape(data->shape()->dtype, bounds);
  if (all.size() > kMaxMarked) all.erase(all.begin());
  any_marked.store(true, std::memory_order_release);
}

ir::ShapeRef MarkedBounds(const tensor::DeviceData& data) {
  if (!any_marked.load(std::memory_order_acquire)) return nullptr;
  std::lock_guard lock(marked_mutex);
  const auto found = AllMarked().find(data.id());
  return found == AllMarked().end() ? nullptr : found->second;
}

}  // namespace torch_xla::sizes
