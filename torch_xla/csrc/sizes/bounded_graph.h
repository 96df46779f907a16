// Rewrites a graph so that its varying sizes are arguments: arrays have the sizes of their buckets,
// and where an operation would mix padding with elements that count, the padding is masked by a
// comparison with the size, which is a number of the program.
//
// Each node is rewritten by itself, from its own sizes, so that a wrong guess of which sizes vary
// costs a program, never a wrong result. What no rule covers is refused.
#pragma once

#include <atomic>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sizes/layout.h"
#include "sizes/loops.h"
#include "tensor/graph.h"

namespace torch_xla::sizes {

/// The shapes of the results of a graph's nodes, in order; null for results that nobody asked for.
struct ResultShapes {
  struct LoopAt {
    std::shared_ptr<const Loop> loop;
    size_t begin;  // of its functions in `nodes`
  };
  std::vector<const ir::Node*> nodes;  // of the graph, then of the functions of its loops
  std::unordered_map<const ir::Node*, LoopAt> loops;
  std::vector<ir::ShapeRef> shapes;
  std::vector<uint32_t> begin;  // per node: its first result
};
ResultShapes ShapesOf(const tensor::Graph& graph);

/// Results of nodes, by position and index, whose padding is asked for with 0.
using Zeroed = std::map<std::pair<size_t, size_t>, c10::Scalar>;

/// What other graphs of the same structure tell.
struct VaryingSizes {
  std::vector<ir::ShapeRef> first;  // results of the first graph
  std::vector<uint64_t> varies;     // per result: a bit for each dimension that ever differed
  bool grows = false;               // whether inputs grow from graph to graph, as a cache does
  bool makes = false;               // whether sizes of slices and ranges vary, and no input's
  std::string family;               // names the structure in reports
  Zeroed zeroed;                    // what an earlier rewriting asked for
  /// How many sizes came so often that each got a program of its own.
  std::shared_ptr<std::atomic<int>> exact = std::make_shared<std::atomic<int>>(0);
};

/// The bounds of the sizes of marked data: a shape with 0 for each dimension without a bound. Null
/// if nothing is marked.
ir::ShapeRef MarkedBounds(const tensor::DeviceData& data);

/// An argument of a node.
struct Argument {
  std::string_view name;
  size_t operand = 0, operands = 0;  // its tensors
  size_t word = 0, words = 0;        // its words, without flags and lengths
  bool given = true;
  c10::SmallVector<bool, 4> present;  // of a list of optional tensors
};
/// Throws SizesRefused.
std::vector<Argument> ArgumentsOf(const ir::Node& node);

class BoundedGraph;
/// What an operation does with padding.
using BoundedRule = void (*)(BoundedGraph& graph);
/// The rule of an operation; null if there is none. With `makes` only a rule of an operation that
/// makes varying sizes without having any in its operands.
using FindBoundedRule = BoundedRule (*)(const ir::OpSpec& op, bool makes);

class BoundedGraph {
 public:
  static constexpr int64_t kNoBound = std::numeric_limits<int64_t>::max();
  struct Result {
    ir::Value value;
    BoundedLayout layout;
    bool varies = false;
    bool zero = false;     // whether all padding is 0
    bool uniform = false;  // whether all elements are equal
    /// The result of the user's graph that has these elements; of a view of all elements, its base.
    std::optional<std::pair<size_t, size_t>> source{};
  };
  /// An array that is padded before the program runs.
  struct Padded {
    const ir::Node* leaf;
    tensor::DeviceDataPtr exact, bounded;
    BoundedLayout layout;
  };

  /// `shapes` are those of `graph`.
  BoundedGraph(const tensor::Graph& graph, ResultShapes shapes, VaryingSizes varying, int device,
               const tensor::DeviceSet* devices);
  /// Throws SizesRefused.
  void Rewrite(FindBoundedRule rule_of);
  const Zeroed& zeroed() const { return zeroed_; }

  const Result& Of(const ir::Value& value) const;
  const std::vector<Padded>& padded() const { return padded_; }
  /// The numbers of fills whose size varies, with the leaves that they came from.
  const std::vector<std::pair<const ir::Node*, const ir::Node*>>& fills() const { return fills_; }
  const std::string& family() const { return varying_.family; }
  const std::shared_ptr<std::atomic<int>>& exact() const { return varying_.exact; }
  /// "dimension 0 of input 2 is 13, its bound 16; …", for reports.
  std::string Description() const;
  /// "2.0<=16, 2.1<=24" for dimensions of inputs, for the name of a counter.
  std::string Bounds() const;
  /// How much of the inputs is padding, in percent.
  double Padding() const;
  /// The node that was refused, for reports; null if none was.
  const ir::Node* refused() const { return node_; }

  // What follows is for the rule of the node that is rewritten.
  const ir::Node& node() const { return *node_; }
  /// Its first result in the first graph.
  ir::ShapeRef first() const { return varying_.first[shapes_.begin[position_]]; }
  const Argument& Named(std::string_view name) const;
  bool Has(std::string_view name) const;
  int64_t Int(std::string_view name) const;
  c10::IntArrayRef Ints(std::string_view name) const;
  const Result& In(size_t operand) const { return Of(node_->operands()[operand]); }
  /// The tensor of an argument; null if it is not given.
  const Result* Tensor(std::string_view name) const;
  int64_t Dim(int64_t dim, size_t rank) const;

  bool ResultVaries(size_t result, size_t dim) const;
  /// A dimension that the node itself makes: like an input's if it varies like that, or fixed.
  BoundedDim Made(size_t result, size_t dim, int64_t most = kNoBound);
  /// By the size in the first graph and in this one. If no input varies, a new size gets a bucket
  /// of at most `most` elements.
  BoundedDim MadeAs(const std::pair<int64_t, int64_t>& size, int64_t most = kNoBound);
  BoundedLayout MadeLayout(size_t result);
  bool makes() const { return varying_.makes; }

  ir::Value Make(const ir::OpSpec& op, ir::Node::Operands operands, ir::Words words = {}) const;
  ir::Value View(const ir::Value& of, std::vector<int64_t> sizes,
                 std::vector<int64_t> strides) const;
  ir::Value SizeOfFactor(const Factor& factor);
  ir::Value Count(const BoundedLayout& layout, const std::vector<bool>& dims);
  ir::Value Iota(int64_t size) const;
  ir::Value IsWithin(const BoundedDim& dim);
  /// The array with its padding along these dimensions replaced. What is asked for with 0 once has
  /// 0 in its padding for all readers, so that it lies in memory once.
  ir::Value Masked(const Result& of, const c10::Scalar& by, const std::vector<bool>& dims);
  ir::Value Masked(const Result& of, const c10::Scalar& by);
  ir::Value Where(const Result& of, const ir::Value& by, const std::vector<bool>& dims);
  /// Which elements are no padding along these dimensions; null if all are.
  ir::Value Within(const BoundedLayout& layout, const std::vector<bool>& dims);
  void Set(size_t result, ir::Value value, BoundedLayout layout);
  /// Makes the node again and sets its results.
  void Emit(ir::Node::Operands operands, ir::Words words, const std::vector<BoundedLayout>& layouts,
            const ir::OpSpec* op = nullptr);
  void EmitShaped(ir::Node::Operands operands, ir::Words words, const BoundedLayout& layout);
  ir::Node::Operands Values() const;
  /// The loop that the node's text is, or null.
  const ResultShapes::LoopAt* loop() const;
  /// Rewrites a function of the loop, whose nodes begin at `begin`, for these parameters.
  std::vector<Result> Inside(const LoopFunction& function, size_t begin,
                             const std::vector<Result>& parameters);

 private:
  void RewriteOnce();
  void RewriteNode(size_t position);
  /// Replaces padding by 0 if an earlier rewriting asked for it.
  void MaskIfAsked(Result& made);
  void FindMarks();
  void VisitLeaf();
  void Keep();
  /// Calls `visit` with the input's index and the dimension of each size that varies; of inputs
  /// with the same sizes only for the first one.
  template <typename Visit>
  void VisitSizes(const Visit& visit) const;

  const tensor::Graph& graph_;
  const VaryingSizes varying_;
  const ResultShapes shapes_;
  const int device_;
  const tensor::DeviceSet* devices_;
  std::unordered_map<const ir::Node*, c10::SmallVector<Result, 1>> results_;
  std::map<std::pair<int64_t, int64_t>, BoundedDim> made_;  // by (first size, size)
  std::set<std::pair<int64_t, int64_t>> missing_;           // what was not in `made_` when asked
  std::map<std::pair<int64_t, int64_t>, int64_t> marked_;   // bounds, by (first size, size)
  std::map<int64_t, int64_t> least_;                        // bounds that are first sizes, by size
  std::map<std::pair<int64_t, int64_t>, ir::Value> numbers_;  // by (first size, size)
  std::map<std::vector<int64_t>, ir::Value> masks_;
  Zeroed zeroed_;
  std::vector<Padded> padded_;
  std::vector<std::pair<const ir::Node*, const ir::Node*>> fills_;
  const ir::Node* node_ = nullptr;
  size_t position_ = 0;
  std::vector<Argument> arguments_;
  FindBoundedRule rule_of_ = nullptr;
};

}  // namespace torch_xla::sizes
