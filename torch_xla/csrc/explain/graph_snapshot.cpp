#include "explain/graph_snapshot.h"

#include <algorithm>
#include <array>
#include <unordered_map>

#include "XLAOps.h"
#include "ir/dump.h"

namespace torch_xla::explain {
namespace {

constexpr uint32_t kNone = ~0u;
constexpr size_t kMaxDifferences = 5;
// Longer lists of attribute words (such as the text of a function) are cut off.
constexpr size_t kMaxWords = 24;
// With more insertions and deletions than this two graphs count as unrelated.
constexpr int kMaxEdits = 256;

uint32_t PositionOf(uint32_t operand) { return operand >> 4; }

/// Numbers and data are of one kind, since a tensor of zeros becomes an input once a tensor holds
/// it.
uint64_t KindOf(const GraphSnapshot& record, size_t i) {
  return record.IsLeaf(i) ? 1 : record.node(i).op->id;
}

ir::ShapeRef ShapeOf(const GraphSnapshot& record, uint32_t operand) {
  const auto shapes = record.shapes(PositionOf(operand));
  return shapes[std::min<size_t>(operand & 15, shapes.size() - 1)];
}

std::string TextOf(ir::ShapeRef shape) { return shape ? shape->ToString() : "none"; }

/// For each node of `now` the corresponding node of `before`, found by the kinds of nodes alone.
struct Alignment {
  std::vector<uint32_t> before_of;
  std::vector<bool> kept;  // per node of `before`: whether a node of `now` corresponds to it
  bool bounded = false;
};

/// Aligns the differing middle parts by Myers' algorithm. Returns false if more than kMaxEdits
/// edits are needed.
bool AlignMiddle(const std::vector<uint64_t>& a, const std::vector<uint64_t>& b, size_t begin,
                 size_t a_end, size_t b_end, Alignment& alignment) {
  const int n = static_cast<int>(a_end - begin), m = static_cast<int>(b_end - begin);
  const int limit = std::min(n + m, kMaxEdits);
  std::vector<std::vector<int>> steps;  // for each number of edits: the furthest x on each diagonal
  std::vector<int> furthest(2 * static_cast<size_t>(limit) + 3, 0);
  auto at = [&](int k) -> int& { return furthest[static_cast<size_t>(k + limit + 1)]; };
  int edits = -1;
  for (int d = 0; d <= limit && edits < 0; ++d) {
    steps.push_back(furthest);
    for (int k = -d; k <= d; k += 2) {
      int x = k == -d || (k != d && at(k - 1) < at(k + 1)) ? at(k + 1) : at(k - 1) + 1;
      while (x < n && x - k < m && x - k >= 0 &&
             a[begin + static_cast<size_t>(x)] == b[begin + static_cast<size_t>(x - k)]) {
        ++x;
      }
      at(k) = x;
      if (x >= n && x - k >= m) {
        edits = d;
        break;
      }
    }
  }
  if (edits < 0) return false;
  int x = n, y = m;
  auto match = [&] {
    --x;
    --y;
    alignment.before_of[begin + static_cast<size_t>(x)] =
        static_cast<uint32_t>(begin) + static_cast<uint32_t>(y);
  };
  for (int d = edits; d > 0; --d) {
    furthest = steps[static_cast<size_t>(d)];
    const int k = x - y;
    const int from = k == -d || (k != d && at(k - 1) < at(k + 1)) ? k + 1 : k - 1;
    const int from_x = at(from), from_y = from_x - from;
    while (x > from_x && y > from_y) match();
    x = from_x;
    y = from_y;
  }
  while (x > 0 && y > 0) match();
  return true;
}

Alignment Align(const GraphSnapshot& now, const GraphSnapshot& before) {
  std::vector<uint64_t> a, b;
  for (size_t i = 0; i < now.size(); ++i) a.push_back(KindOf(now, i));
  for (size_t i = 0; i < before.size(); ++i) b.push_back(KindOf(before, i));
  Alignment alignment{std::vector<uint32_t>(a.size(), kNone), std::vector<bool>(b.size())};
  size_t begin = 0, a_end = a.size(), b_end = b.size();
  while (begin < std::min(a_end, b_end) && a[begin] == b[begin]) {
    alignment.before_of[begin] = static_cast<uint32_t>(begin);
    ++begin;
  }
  while (a_end > begin && b_end > begin && a[a_end - 1] == b[b_end - 1]) {
    alignment.before_of[--a_end] = static_cast<uint32_t>(--b_end);
  }
  alignment.bounded = !AlignMiddle(a, b, begin, a_end, b_end, alignment);
  for (uint32_t position : alignment.before_of) {
    if (position != kNone) alignment.kept[position] = true;
  }
  return alignment;
}

class Comparer {
 public:
  Comparer(const GraphSnapshot& now, const GraphSnapshot& before)
      : now_(now), before_(before), alignment_(Align(now, before)) {
    result_.bounded = alignment_.bounded;
    FindUsers();
  }

  Comparison Run() && {
    size_t next = 0;  // next node of `before`, so that removed nodes are reported in place
    for (size_t i = 0; i < now_.size(); ++i) {
      const uint32_t j = alignment_.before_of[i];
      if (j == kNone) {
        ++result_.added;
        ++result_.changed;
        if (!last_was_added_) Operation(now_, i, users_of_now_, " is new");
        last_was_added_ = true;
        continue;
      }
      last_was_added_ = false;
      for (; next < j; ++next) Removed(next);
      next = std::max<size_t>(next, j + 1);
      CompareNodes(i, j);
    }
    for (; next < before_.size(); ++next) Removed(next);
    CompareRoots();
    if (result_.differences.empty() && result_.changed > 0) {
      Add(Change::kWiring, "operations use other values as operands", nullptr);
    }
    return std::move(result_);
  }

 private:
  void FindUsers() {
    auto find = [](const GraphSnapshot& record, std::vector<uint32_t>& users) {
      users.assign(record.size(), kNone);
      for (size_t i = record.size(); i-- > 0;) {
        for (uint32_t operand : record.operands(i))
          users[PositionOf(operand)] = static_cast<uint32_t>(i);
      }
    };
    find(now_, users_of_now_);
    find(before_, users_of_before_);
  }

  void Add(Change change, std::string text, const ir::SourceLocation* location) {
    if (result_.differences.size() >= kMaxDifferences) return;
    // A line that is traced several times (a layer) reports a difference once.
    for (const Difference& known : result_.differences) {
      if (known.change == change && known.location == location && known.text == text) return;
    }
    result_.differences.push_back({change, std::move(text), location});
  }

  /// The line of the node, or of its first user that has one.
  static const ir::SourceLocation* Place(const GraphSnapshot& record, size_t i,
                                         const std::vector<uint32_t>& users) {
    if (const auto* location = record.node(i).location) return location;
    for (uint32_t user = users[i]; user != kNone; user = users[user]) {
      if (const auto* location = record.node(user).location) return location;
    }
    return nullptr;
  }

  static std::string LeafText(const GraphSnapshot& record, size_t i) {
    const GraphSnapshot::Node& node = record.node(i);
    const std::string shape = TextOf(record.shapes(i)[0]);
    if (node.op == &ir::ops::scalar) return "a number " + shape;
    const auto words = record.words(i);
    if (words.empty()) return "input " + shape;
    const ir::Words number(words.begin(), words.end());
    const std::string value = ir::NumberText(ir::AttributeReader(number).Scalar());
    return (node.op == &ir::ops::Constant ? "the constant " + value + " "
                                          : "filled with " + value + ", ") +
           shape;
  }

  void Operation(const GraphSnapshot& record, size_t i, const std::vector<uint32_t>& users,
                 const char* verb) {
    const std::string what = record.IsLeaf(i) ? LeafText(record, i) : record.node(i).op->name;
    const bool sharding = record.node(i).op == &ir::ops::mark_sharding;
    Add(sharding ? Change::kSharding : Change::kOperation, what + verb, Place(record, i, users));
  }

  void Removed(size_t j) {
    if (alignment_.kept[j]) return;
    ++result_.removed;
    ++result_.changed;
    const bool follows = j > 0 && !alignment_.kept[j - 1];
    if (!follows) Operation(before_, j, users_of_before_, " is gone");
  }

  bool SameWords(size_t i, size_t j) const {
    const auto a = now_.words(i), b = before_.words(j);
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  }

  /// Whether the shapes look like results of nonzero: lists of indices that differ only in their
  /// length.
  static bool LooksLikeNonzero(const ir::Shape& shape, const ir::Shape& old) {
    return shape.dtype == c10::kLong && shape.dims.size() == 2 && old.dims.size() == 2 &&
           shape.dims[1] == old.dims[1];
  }

  void CompareLeaves(size_t i, size_t j) {
    const GraphSnapshot::Node &a = now_.node(i), &b = before_.node(j);
    ir::ShapeRef shape = now_.shapes(i)[0], old = before_.shapes(j)[0];
    const std::string text = LeafText(now_, i) + ", was " + LeafText(before_, j);
    const bool number = a.op != &ir::ops::device_data, old_number = b.op != &ir::ops::device_data;
    Change change = Change::kOperation;
    if (shape->dtype != old->dtype) {
      change = Change::kDtype;
    } else if (shape->dims != old->dims) {
      change = LooksLikeNonzero(*shape, *old) ? Change::kCount : Change::kShape;
    } else if (number && old_number) {
      change = a.op == b.op ? Change::kConstant : Change::kSpecial;
    } else if (!now_.words(i).empty() || !before_.words(j).empty()) {
      change = Change::kConstant;
    }
    Add(change, text, Place(now_, i, users_of_now_));
  }

  void CompareNodes(size_t i, size_t j) {
    const GraphSnapshot::Node &a = now_.node(i), &b = before_.node(j);
    if (now_.IsLeaf(i)) {
      if (a.op == b.op && a.hash == b.hash && now_.shapes(i)[0] == before_.shapes(j)[0] &&
          SameWords(i, j)) {
        return;
      }
      ++result_.changed;
      CompareLeaves(i, j);
      return;
    }
    if (!result_.same_lines && a.location && b.location) {
      result_.same_lines =
          a.location->code == b.location->code && a.location->line() == b.location->line();
    }
    const auto operands = now_.operands(i), old_operands = before_.operands(j);
    bool same_wiring = operands.size() == old_operands.size(), same_shapes = same_wiring,
         follows = false;
    for (size_t k = 0; k < std::min(operands.size(), old_operands.size()); ++k) {
      const uint32_t mapped = alignment_.before_of[PositionOf(operands[k])];
      const bool gone = !alignment_.kept[PositionOf(old_operands[k])];
      if (mapped == kNone || gone) follows = true;
      if (mapped != PositionOf(old_operands[k]) || (operands[k] & 15) != (old_operands[k] & 15))
        same_wiring = false;
      same_shapes &= ShapeOf(now_, operands[k]) == ShapeOf(before_, old_operands[k]);
    }
    const bool same_numbers = a.hash != b.hash || SameWords(i, j);
    ir::ShapeRef shape = now_.shapes(i)[0], old = before_.shapes(j)[0];
    // The shape depends on a number that the hash leaves out, such as the amount of padding.
    const bool resized = a.hash == b.hash && shape != old;
    if (a.hash == b.hash && same_wiring && same_numbers && !resized) return;
    ++result_.changed;
    const auto* location = a.location;
    auto add_shapes = [&] {
      const Change change =
          shape && old && shape->dtype != old->dtype ? Change::kDtype : Change::kShape;
      Add(change, std::string(a.op->name) + " makes " + TextOf(shape) + ", was " + TextOf(old),
          location);
    };
    if (resized) {
      add_shapes();
      return;
    }
    if (!same_numbers) {
      const std::string text = a.parameters != b.parameters
                                   ? "a number is a parameter of the program from now on"
                                   : ArgumentText(i, j);
      Add(Change::kNumber, std::string(a.op->name) + ": " + text, location);
      return;
    }
    if (a.hash != b.hash && same_shapes) {
      if (std::string text = ArgumentText(i, j); !text.empty()) {
        const bool sharding = a.op == &ir::ops::mark_sharding;
        Add(sharding ? Change::kSharding : Change::kArgument, std::string(a.op->name) + ": " + text,
            location);
        return;
      }
      if (shape != old) {
        add_shapes();
        return;
      }
    }
    if (a.hash != b.hash && operands.size() != old_operands.size()) {
      Add(Change::kArgument,
          std::string(a.op->name) + ": " + std::to_string(operands.size()) + " operands, were " +
              std::to_string(old_operands.size()),
          location);
    } else if (a.hash == b.hash && !same_wiring && !follows) {
      Add(Change::kWiring, std::string(a.op->name) + " uses another value", location);
    }
  }

  /// The first argument that differs; empty if none does.
  std::string ArgumentText(size_t i, size_t j) const {
    if (SameWords(i, j)) return {};
    auto texts = [](const GraphSnapshot& record, size_t at) {
      const auto words = record.words(at);
      return words.size() >= kMaxWords
                 ? std::vector<std::string>()
                 : ir::AttributeTexts(*record.node(at).op, {words.begin(), words.end()});
    };
    const auto now = texts(now_, i), before = texts(before_, j);
    for (size_t k = 0; k < std::min(now.size(), before.size()); ++k) {
      if (now[k] != before[k]) return now[k] + ", was " + before[k];
    }
    return "other arguments";
  }

  void CompareRoots() {
    // The nodes of `before` that are results.
    std::vector<bool> asked(before_.size());
    for (uint32_t root : before_.roots()) asked[PositionOf(root)] = true;
    std::vector<bool> still(before_.size());
    bool changed = now_.roots().size() != before_.roots().size();
    for (uint32_t root : now_.roots()) {
      const uint32_t j = alignment_.before_of[PositionOf(root)];
      if (j != kNone) still[j] = true;
      if (j == kNone || asked[j]) continue;
      changed = true;
      Add(Change::kOutputs, OutputText(now_, root) + " is kept now, was not",
          Place(now_, PositionOf(root), users_of_now_));
    }
    for (uint32_t root : before_.roots()) {
      if (still[PositionOf(root)] || !alignment_.kept[PositionOf(root)]) continue;
      changed = true;
      Add(Change::kOutputs, OutputText(before_, root) + " was kept, is not now",
          Place(before_, PositionOf(root), users_of_before_));
    }
    if (result_.changed > 0 || !result_.differences.empty()) return;
    Add(Change::kOutputs,
        changed ? "the number of kept results changed" : "results are kept in another order",
        nullptr);
  }

  static std::string OutputText(const GraphSnapshot& record, uint32_t root) {
    return std::string("the result of ") + record.node(PositionOf(root)).op->name;
  }

  const GraphSnapshot& now_;
  const GraphSnapshot& before_;
  const Alignment alignment_;
  std::vector<uint32_t> users_of_now_, users_of_before_;
  bool last_was_added_ = false;
  Comparison result_;
};

}  // namespace

GraphSnapshot::GraphSnapshot(const tensor::Graph& graph) : hash_(graph.hash) {
  std::unordered_map<const ir::Node*, uint32_t> positions;
  positions.reserve(graph.order.size());
  nodes_.reserve(graph.order.size());
  size_t next_data = 0;
  auto number = graph.numbers.begin();
  for (const ir::Node* node : graph.order) {
    const ir::SourceLocation* location = node->location();
    const size_t first_word = words_.size();
    uint32_t parameters = 0;
    const bool is_input = graph.IsParameter(nodes_.size(), next_data);
    ir::Hash128 hash = node->hash();
    if (is_input) {
      hash = tensor::MakeLeaf(graph.data[next_data]).node->hash();
      location = graph.data[next_data++]->location();
    } else if (&node->op() == &ir::ops::device_data) {
      const auto* data = static_cast<const tensor::DeviceData*>(node->payload());
      location = data->location();
      ir::Words words;
      ir::AttributeWriter(words).Scalar(*data->fill());
      words_.insert(words_.end(), words.begin(), words.end());
    } else if (&node->op() != &ir::ops::scalar) {
      const ir::Words& words = node->attributes();
      words_.insert(words_.end(), words.begin(),
                    words.begin() + static_cast<std::ptrdiff_t>(std::min(words.size(), kMaxWords)));
    }
    for (; number != graph.numbers.end() && number->position == nodes_.size(); ++number) {
      if (number->packed < 0 || number->word >= kMaxWords) continue;
      parameters |= 1u << number->word;
      words_[first_word + number->word] = 0;
    }
    for (const ir::Value& operand : node->operands()) {
      if (is_input) break;
      operands_.push_back(positions.at(operand.node.get()) << 4 | std::min(operand.index, 15u));
    }
    // Numbers that are no constants of the program are all treated alike.
    if (words_.size() == first_word && &node->op() == &ir::ops::scalar) location = nullptr;
    positions.emplace(node, static_cast<uint32_t>(nodes_.size()));
    for (size_t i = 0; i < node->num_outputs(); ++i) shapes_.push_back(node->shape(i));
    nodes_.push_back({is_input ? &ir::ops::device_data : &node->op(), location, hash.low,
                      static_cast<uint32_t>(shapes_.size()),
                      static_cast<uint32_t>(operands_.size()), static_cast<uint32_t>(words_.size()),
                      parameters});
  }
  for (const ir::Value& root : graph.roots) {
    roots_.push_back(positions.at(root.node.get()) << 4 | std::min(root.index, 15u));
  }
  shapes_.shrink_to_fit();
  operands_.shrink_to_fit();
  words_.shrink_to_fit();
}

size_t GraphSnapshot::bytes() const {
  return sizeof(*this) + nodes_.capacity() * sizeof(Node) +
         (operands_.capacity() + roots_.capacity()) * sizeof(uint32_t) +
         (shapes_.capacity() + words_.capacity()) * sizeof(uint64_t);
}

bool GraphSnapshot::IsLeaf(size_t i) const {
  const ir::OpSpec* op = nodes_[i].op;
  return op == &ir::ops::device_data || op == &ir::ops::scalar || op == &ir::ops::Constant;
}

bool Comparison::IsNear(size_t nodes) const {
  // Any few operations resemble any other few operations.
  constexpr size_t kFewNodes = 16;
  return !bounded && added + removed <= std::max<size_t>(2, nodes / 8) &&
         (nodes > kFewNodes || same_lines);
}

Comparison Compare(const GraphSnapshot& now, const GraphSnapshot& before) {
  return Comparer(now, before).Run();
}

GraphSnapshotPtr FindNearest(const GraphSnapshot& now, std::span<const GraphSnapshotPtr> others) {
  // A histogram of the kinds of nodes and of the nodes themselves gives a bound of the edits in one
  // pass.
  constexpr size_t kBuckets = 512;
  using Sketch = std::array<int32_t, 2 * kBuckets>;
  auto sketch_of = [](const GraphSnapshot& record) {
    Sketch sketch{};
    for (size_t i = 0; i < record.size(); ++i) {
      ++sketch[KindOf(record, i) * 0x9E3779B97F4A7C15ull >> 55];
      ++sketch[kBuckets + (record.node(i).hash * 0x9E3779B97F4A7C15ull >> 55)];
    }
    return sketch;
  };
  const Sketch own = sketch_of(now);
  GraphSnapshotPtr nearest;
  int64_t least = INT64_MAX;
  for (size_t k = others.size(); k-- > 0;) {  // of equally near graphs, the latest
    const Sketch sketch = sketch_of(*others[k]);
    int64_t kinds = 0, nodes = 0;
    for (size_t i = 0; i < kBuckets; ++i) {
      kinds += std::abs(own[i] - sketch[i]);
      nodes += std::abs(own[kBuckets + i] - sketch[kBuckets + i]);
    }
    const int64_t distance = 4 * kinds + nodes;
    if (distance < least) {
      least = distance;
      nearest = others[k];
    }
  }
  return nearest;
}

namespace {

struct ChangeText {
  const char *name, *remedy;
};

constexpr char kSameOperations[] =
    "trace the same operations in each step (torch.where in place of if, loops of fixed length)";

// In the order of Change.
constexpr ChangeText kChangeTexts[] = {
    {"shape", "pad it to one of a few sizes"},
    {"shape",
     "pad it to one of a few sizes; if it counts what a mask chooses (x[mask], nonzero), "
     "torch.where(mask, x, 0) has one size"},
    {"dtype", "convert it to one dtype"},
    {"constant", "make the number a tensor, or keep it the same"},
    {"constant", "set XLA_NO_SPECIAL_SCALARS=1, or make the number a tensor"},
    {"constant", "nothing need be done: from its third value on it is a parameter of the program"},
    {"argument", "keep the argument the same, or do it with a tensor (torch.where, index_select)"},
    {"operation", kSameOperations},
    {"wiring", kSameOperations},
    {"outputs",
     "keep the same tensors alive at each torch_xla.sync(): read (.item()) or drop the others"},
    {"donation", "hold the old value of the tensor in each step, or in none"},
    {"sharding", "give the tensors the same sharding in each step"},
    {"settings", "set the compiler's options once, before the first step"},
    {"evicted", "set XLA_COMPILATION_CACHE_SIZE higher"},
    {"new", "nothing need be done: every program is compiled once"},
};
static_assert(std::size(kChangeTexts) == static_cast<size_t>(Change::kNew) + 1);

}  // namespace

const char* NameOf(Change change) { return kChangeTexts[static_cast<size_t>(change)].name; }

const char* RemedyOf(Change change) { return kChangeTexts[static_cast<size_t>(change)].remedy; }

}  // namespace torch_xla::explain
