#include "exec/bounded_cut.h"

#include <c10/core/DefaultDtype.h>

#include <cstdlib>
#include <limits>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "XLAOps.h"
#include "debug/metrics.h"
#include "debug/report.h"
#include "exec/bounded_graph.h"
#include "exec/bounded_rules.h"
#include "exec/cut_log.h"
#include "ir/attributes.h"
#include "tensor/device_data.h"
#include "tensor/node_factory.h"
#include "tensor/view.h"

namespace torch_xla::lazy {
namespace {

/// Smaller graphs are compiled faster than sizes are found out. With poison all graphs are bounded.
constexpr size_t kFewestNodes = 16;
/// Above this number all structures are forgotten; at worst a program more is compiled for each.
constexpr size_t kMaxStructures = 1 << 10;
/// A structure that was refused this often is not tried again.
constexpr int kMaxRefusals = 4;

enum class Mode { kOff, kOn, kPoison };

/// XLA_DYNAMIC_SIZES: 1, or "poison", which fills all padding with NaN and with indices that are
/// out of bounds, so that tests see whether results depend on it.
Mode ModeOf() {
  static const Mode mode = [] {
    const char* text = std::getenv("XLA_DYNAMIC_SIZES");
    const std::string given = text ? text : "";
    if (given == "poison") return Mode::kPoison;
    return given.empty() || given == "0" ? Mode::kOff : Mode::kOn;
  }();
  return mode;
}

struct Structure {
  VaryingSizes sizes;
  bool varies = false;
  int refusals = 0;
};

std::mutex structures_mutex;
std::unordered_map<ir::Hash128, Structure, ir::Hash128Hasher>& Structures() {
  static auto& structures = *new std::unordered_map<ir::Hash128, Structure, ir::Hash128Hasher>;
  return structures;
}

/// The hash of a graph without its sizes and attributes. Graphs that are equal by it may still be
/// different programs; it only says whose sizes are compared.
ir::Hash128 HashWithoutSizes(const Graph& graph) {
  std::unordered_map<const ir::Node*, uint64_t> positions;
  positions.reserve(graph.order.size());
  ir::Hasher hasher;
  for (const ir::Node* node : graph.order) {
    hasher.Add(node->op().id);
    hasher.Add(node->attributes().size());
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

/// Notes the sizes of this graph. Returns what varies among the graphs of its structure; nothing if
/// no input varies.
std::optional<VaryingSizes> Learn(const Graph& graph) {
  const ir::Hash128 hash = HashWithoutSizes(graph);
  ResultShapes shapes = ShapesOf(graph);
  std::lock_guard lock(structures_mutex);
  auto& structures = Structures();
  if (structures.size() >= kMaxStructures) structures.clear();
  const auto [it, is_new] = structures.try_emplace(hash);
  Structure& structure = it->second;
  VaryingSizes& sizes = structure.sizes;
  if (is_new) {
    sizes.varies.resize(shapes.shapes.size());
    sizes.first = std::move(shapes.shapes);
    return std::nullopt;
  }
  for (size_t i = 0; i < sizes.first.size(); ++i) {
    const ir::ShapeRef first = sizes.first[i], now = shapes.shapes[i];
    if (first == now || !first || !now) continue;
    for (size_t d = 0; d < now->rank() && d < 64; ++d) {
      if (first->dims[d] != now->dims[d]) sizes.varies[i] |= uint64_t{1} << d;
    }
  }
  for (uint32_t position : graph.data_positions)
    structure.varies |= sizes.varies[shapes.begin[position]] != 0;
  if (!structure.varies || structure.refusals >= kMaxRefusals) return std::nullopt;
  return sizes;
}

void Note(const std::string& text) {
  if (debug::DebugLevel() >= 1) debug::Report("pt-xla-profiler: " + text + "\n");
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

ir::Value Strided(const ir::Value& of, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  ir::Words words;
  ir::AttributeWriter writer(words);
  writer.IntList(sizes);
  writer.IntList(strides);
  writer.Int(0);
  return MakeNode(&ir::ops::as_strided, {of}, std::move(words),
                  ir::GetShape(of.shape()->dtype, sizes));
}

/// Sizes and strides of the factors of a layout: those without padding in the bounded array.
struct Factors {
  std::vector<int64_t> sizes;
  Ints strides;
};
Factors FactorsOf(const BoundedLayout& layout) {
  Factors factors;
  std::vector<int64_t> bounds;
  for (const BoundedDim& dim : layout) {
    for (const Factor& factor : dim) {
      factors.sizes.push_back(factor.size);
      bounds.push_back(factor.bound);
    }
  }
  factors.strides = ContiguousStrides(bounds);
  return factors;
}

}  // namespace

std::optional<Bulk> BoundCut(const Cut& cut) {
  static auto& fitted = *new debug::Counter("DynamicSizes");
  static auto& refused = *new debug::Counter("DynamicSizesRefused");
  const Graph& graph = cut.graph;
  if (ModeOf() == Mode::kOff || cut.is_bulk || cut.devices->size() > 1 || CurrentCutLog() ||
      (ModeOf() == Mode::kOn && graph.order.size() < kFewestNodes) ||
      !CurrentSettings()->name.empty() ||
      c10::get_default_dtype_as_scalartype() != c10::ScalarType::Float ||
      HasCollective(graph.order)) {
    return std::nullopt;
  }
  const std::optional<VaryingSizes> varying = Learn(graph);
  if (!varying) return std::nullopt;
  BoundedGraph bounded(graph, *varying, cut.device, cut.devices);
  try {
    bounded.Rewrite(&RuleOf);
  } catch (const SizesRefused& refusal) {
    refused.Add();
    RefuseBounds(cut, bounded.Where() + refusal.reason);
    return std::nullopt;
  } catch (const c10::Error& error) {
    refused.Add();
    RefuseBounds(cut, bounded.Where() + error.what_without_backtrace());
    return std::nullopt;
  } catch (const std::exception& error) {
    refused.Add();
    RefuseBounds(cut, bounded.Where() + error.what());
    return std::nullopt;
  }
  Cut bulk{.device = cut.device, .devices = cut.devices, .graph = {}, .is_bulk = true};
  auto host = std::make_unique<HostEdges>();
  std::vector<ir::Value> kept;  // HostCalls knows nodes by their addresses
  for (const BoundedGraph::Padded& padded : bounded.padded()) {
    const ir::ShapeRef exact = padded.exact->shape();
    // A factor of an input is a whole dimension.
    ir::Words words;
    std::vector<int64_t> pad;
    for (size_t d = exact->rank(); d-- > 0;)
      pad.insert(pad.end(), {0, BoundOf(padded.layout[d]) - exact->dims[d]});
    ir::AttributeWriter(words).IntList(pad);
    const ir::Value value = MakeConstant(PaddingOf(exact->dtype), exact->dtype, true);
    const ir::Value node = MakeNode(&ir::ops::constant_pad_nd, {MakeLeaf(padded.exact), value},
                                    std::move(words), padded.bounded->shape());
    host->before.Bind(node.node->operands()[0], padded.exact);
    host->before.Add(*node.node);
    host->before.Promise(node, padded.bounded);
    kept.push_back(node);
  }
  std::vector<ir::Value> roots;
  for (size_t i = 0; i < graph.roots.size(); ++i) {
    const BoundedGraph::Result& root = bounded.Of(graph.roots[i]);
    const size_t place = static_cast<size_t>(std::ranges::find(roots, root.value) - roots.begin());
    const bool is_new = place == roots.size();
    const DeviceDataPtr& exact = cut.execution.outputs[i];
    if (is_new) roots.push_back(root.value);
    if (!root.varies) {
      if (is_new) {
        bulk.execution.outputs.push_back(exact);
        continue;
      }
      // Two roots that have become one value.
      RefuseBounds(cut, "two results are the same");
      return std::nullopt;
    }
    if (is_new) {
      auto data = c10::make_intrusive<DeviceData>(root.value.shape(), cut.device, cut.devices,
                                                  distributed::Sharding::Replicated());
      data->set_location(exact->location());
      bulk.execution.outputs.push_back(data);
      host->after.Bind(root.value, data);
    }
    const Factors factors = FactorsOf(root.layout);
    const ir::Value part = Strided(root.value, factors.sizes, factors.strides);
    const auto& dims = exact->shape()->dims;
    const ir::Value whole = Strided(part, dims, ContiguousStrides(dims));
    host->after.Add(*part.node);
    host->after.Add(*whole.node);
    host->after.Promise(whole, exact);
    kept.insert(kept.end(), {part, whole});
  }
  {
    auto lock = LockGraph();
    bulk.graph = CollectGraph(std::move(roots));
  }
  std::unordered_map<const ir::Node*, bool> survives;
  for (size_t i = 0; i < graph.order.size(); ++i) survives.emplace(graph.order[i], cut.survives[i]);
  for (const ir::Node* node : bulk.graph.order) {
    const auto found = survives.find(node);
    bulk.survives.push_back(found != survives.end() && found->second);
  }
  for (const Target& target : cut.targets) {
    const BoundedGraph::Result& root = bounded.Of(graph.roots[target.root]);
    if (root.varies) continue;
    for (size_t i = 0; i < bulk.graph.roots.size(); ++i) {
      if (!(bulk.graph.roots[i] == root.value)) continue;
      bulk.targets.push_back(target);
      bulk.targets.back().root = i;
      break;
    }
  }
  bulk.execution.origin = cut.execution.origin;
  fitted.Add();
  if (debug::DebugLevel() >= 1) Note("sizes are arguments: " + bounded.Description());
  return Bulk{std::move(bulk), std::move(host)};
}

void RefuseBounds(const Cut& cut, const std::string& reason) {
  {
    const ir::Hash128 hash = HashWithoutSizes(cut.graph);
    std::lock_guard lock(structures_mutex);
    if (const auto found = Structures().find(hash); found != Structures().end())
      ++found->second.refusals;
  }
  Note("the sizes of a graph are part of its program: " + reason);
}

}  // namespace torch_xla::lazy
