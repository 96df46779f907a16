// A record of a graph that outlives the graph, so that later graphs can be compared with it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tensor/graph.h"

namespace torch_xla::explain {

class GraphSnapshot {
 public:
  explicit GraphSnapshot(const tensor::Graph& graph);

  /// Operands, attributes and results are those of the node. A leaf that is a constant number, or
  /// is filled with a number, has the number as its attributes.
  struct Node {
    const ir::OpSpec* op;
    const ir::SourceLocation* location;
    uint64_t hash;
    uint32_t shapes_end, operands_end, words_end;
    uint32_t parameters;  // bit set of the words that are parameters; these words are 0
  };

  size_t size() const { return nodes_.size(); }
  const Node& node(size_t i) const { return nodes_[i]; }
  /// Each operand as `position << 4 | result index`.
  std::span<const uint32_t> operands(size_t i) const {
    return Slice(operands_, i ? nodes_[i - 1].operands_end : 0, nodes_[i].operands_end);
  }
  std::span<const uint64_t> words(size_t i) const {
    return Slice(words_, i ? nodes_[i - 1].words_end : 0, nodes_[i].words_end);
  }
  std::span<const ir::ShapeRef> shapes(size_t i) const {
    return Slice(shapes_, i ? nodes_[i - 1].shapes_end : 0, nodes_[i].shapes_end);
  }
  const std::vector<uint32_t>& roots() const { return roots_; }
  const ir::Hash128& hash() const { return hash_; }
  size_t num_outputs() const { return roots_.size(); }
  /// The memory of the record.
  size_t bytes() const;
  /// Whether the node is data, a number or a fill, rather than the result of an operation.
  bool IsLeaf(size_t i) const;

 private:
  template <typename T>
  static std::span<const T> Slice(const std::vector<T>& all, size_t begin, size_t end) {
    return std::span(all).subspan(begin, end - begin);
  }
  ir::Hash128 hash_;
  std::vector<Node> nodes_;
  std::vector<ir::ShapeRef> shapes_;
  std::vector<uint32_t> operands_, roots_;
  std::vector<uint64_t> words_;
};

using GraphSnapshotPtr = std::shared_ptr<const GraphSnapshot>;

enum class Change : uint8_t {
  kShape,      // of an input, or of the result of an operation
  kCount,      // likewise, a list of indices became longer or shorter
  kDtype,      // of an input or a result
  kConstant,   // a number that is a constant of the program
  kSpecial,    // a number that was or became 0 or 1
  kNumber,     // a constant number that will become a parameter
  kArgument,   // an argument of an operation that is no tensor
  kOperation,  // an operation was added, removed or replaced
  kWiring,     // an operation uses another value
  kOutputs,    // other values are results
  kDonation,   // other inputs may be overwritten
  kSharding,
  kSettings,  // of the compiler, or the devices
  kEvicted,   // the program was compiled before and dropped
  kNew,       // no earlier graph is similar
};

/// "shape", "dtype", …
const char* NameOf(Change change);
/// The advice to the user.
const char* RemedyOf(Change change);

struct Difference {
  Change change;
  std::string text;  // "input f32[5,4], was f32[3,4]"
  const ir::SourceLocation* location;
};

struct Comparison {
  size_t changed = 0;             // number of nodes that differ
  size_t added = 0, removed = 0;  // of the differing nodes
  bool bounded = false;           // the alignment was given up, so the counts are upper bounds
  bool same_lines = false;        // an operation of both graphs was traced by the same line
  /// The first differences that do not follow from other differences.
  std::vector<Difference> differences;

  /// Whether these are two versions of one program, rather than two unrelated programs.
  bool IsNear(size_t nodes) const;
};

Comparison Compare(const GraphSnapshot& now, const GraphSnapshot& before);

/// The record most similar to `now`; null if there is none.
GraphSnapshotPtr FindNearest(const GraphSnapshot& now, std::span<const GraphSnapshotPtr> others);

}  // namespace torch_xla::explain
