// What is kept of a graph once it is gone, so that a later one can be compared with it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "exec/graph.h"

namespace torch_xla::lazy {

class GraphRecord {
 public:
  explicit GraphRecord(const Graph& graph);

  /// Operands, attributes and results are those of the nodes; a leaf that is a number of the
  /// program, or filled with one, has that as its attributes.
  struct Node {
    const ir::OpSpec* op;
    const ir::SourceLocation* location;
    uint64_t hash;
    uint32_t shapes_end, operands_end, words_end;
    uint32_t parameters;  // which of the words are parameters of the program: these are 0
  };

  size_t size() const { return nodes_.size(); }
  const Node& node(size_t i) const { return nodes_[i]; }
  /// Position and result, as `position << 4 | index`.
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
  size_t num_inputs() const { return num_inputs_; }
  size_t num_outputs() const { return roots_.size(); }
  /// In memory.
  size_t bytes() const;
  /// Whether it is data, a number or a fill rather than the result of an operation.
  bool IsLeaf(size_t i) const;

 private:
  template <typename T>
  static std::span<const T> Slice(const std::vector<T>& all, size_t begin, size_t end) {
    return std::span(all).subspan(begin, end - begin);
  }
  ir::Hash128 hash_;
  size_t num_inputs_;
  std::vector<Node> nodes_;
  std::vector<ir::ShapeRef> shapes_;
  std::vector<uint32_t> operands_, roots_;
  std::vector<uint64_t> words_;
};

using GraphRecordPtr = std::shared_ptr<const GraphRecord>;

enum class Change : uint8_t {
  kShape,      // of an input, or of what an operation is asked to make
  kCount,      // likewise: a list of indices is longer or shorter
  kDtype,      // likewise
  kConstant,   // a number that is part of the program
  kSpecial,    // a number that was 0 or 1, or is now
  kNumber,     // likewise, until it is made a parameter
  kArgument,   // of an operation, no tensor
  kOperation,  // there is another one, or one less or more
  kWiring,     // an operation takes another value
  kOutputs,    // other values are asked for
  kDonation,   // other inputs may be overwritten
  kSharding,
  kSettings,  // of the compiler, or the devices
  kEvicted,   // it was there before
  kNew,       // nothing was like it
};

/// "shape", "dtype", …
const char* NameOf(Change change);
/// What the user can do about it.
const char* RemedyOf(Change change);

struct Difference {
  Change change;
  std::string text;  // "input f32[5,4], was f32[3,4]"
  const ir::SourceLocation* location;
};

struct Comparison {
  size_t changed = 0;             // nodes that are not the same
  size_t added = 0, removed = 0;  // of these
  bool bounded = false;           // there may be more
  bool same_lines = false;        // an operation that both have was traced by one line
  /// The first ones that do not follow from others.
  std::vector<Difference> differences;

  /// Whether these two are one program that changed, rather than two programs.
  bool IsNear(size_t nodes) const;
};

Comparison Compare(const GraphRecord& now, const GraphRecord& before);

/// The one that most resembles `now`; null where there is none.
GraphRecordPtr FindNearest(const GraphRecord& now, std::span<const GraphRecordPtr> others);

}  // namespace torch_xla::lazy
