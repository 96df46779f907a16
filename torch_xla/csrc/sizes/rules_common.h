// What rules of several subjects need (sizes/rules.h): layouts of results, masks, and indices of
// elements.
#pragma once

#include <string_view>
#include <vector>

#include "XLAOps.h"
#include "ir/attributes.h"
#include "sizes/bounded_graph.h"
#include "tensor/node_factory.h"
#include "tensor/view.h"

namespace torch_xla::sizes::bounded {

using G = BoundedGraph;
using Result = BoundedGraph::Result;
using Dims = std::vector<bool>;

/// A rule, and the operations that it is for.
struct Row {
  BoundedRule rule;
  std::vector<std::string_view> names;
  /// Whether results may have varying sizes although no operand has any.
  bool makes = false;
};
using Table = std::vector<Row>;
// Each file of rules ends with its table.
Table ViewRules();
Table JoinRules();
Table ReductionRules();
Table OrderRules();
Table ProductRules();
Table NormalizationRules();
Table IndexRules();
Table LossRules();
Table RecurrentRules();
Table TextRules();
Table ImageRules();

enum class Neutral { kZero, kOne, kLeast, kMost, kNone };
[[noreturn]] void Refuse(const char* reason);
/// With `fits` sizes may be equal products of other factors.
BoundedDim Joined(const BoundedDim& a, const BoundedDim& b, bool fits = false);
BoundedLayout Broadcast(const BoundedLayout& a, const BoundedLayout& b, bool fits = false);
/// Whether all elements that count lie before all padding.
bool IsDense(const BoundedDim& dim);
void RequireFixed(const BoundedDim& dim, const char* reason);
void RequireFixed(const BoundedLayout& layout, const char* reason);
void RequireSame(const BoundedLayout& a, const BoundedLayout& b);
Dims Only(size_t rank, int64_t dim);
ir::Value Select(G& g, const ir::Value& of, size_t dim, const ir::Value& index);
/// The array's elements in other dimensions.
ir::Value Contiguous(const G& g, const ir::Value& of, const std::vector<int64_t>& sizes);
ir::Value Number(int64_t value, c10::ScalarType dtype = c10::ScalarType::Long);
ir::Value Add(const G& g, const ir::Value& a, const ir::Value& b);
ir::Value Sum(const G& g, const ir::Value& x, const Dims& dims, bool keepdim = false);
/// For each element of an array that lies like `layout`, the sum of its coordinates in the array
/// without padding times their strides, as one dimension. Padding gets other numbers.
ir::Value Places(const G& g, const BoundedLayout& layout, c10::IntArrayRef strides, int64_t offset,
                 c10::ScalarType dtype);
/// Where the elements lie whose indices in the array without padding are given.
ir::Value PlaceOf(G& g, ir::Value index, const BoundedDim& all);
c10::ScalarType IndexType(int64_t elements);
/// The array with the order of factors that `layout` has, where the sizes are equal. A fill has any
/// order; of other arrays each element is taken by its index.
Result Like(G& g, Result of, const BoundedLayout& layout);
/// The array with dimension `d` as one factor, whose padding lies at its end.
Result Compact(G& g, const Result& of, size_t d);
/// The reverse: what was computed along a dimension that was made one factor lies like `dim`.
ir::Value Spread(G& g, const ir::Value& of, size_t d, const BoundedDim& dim);
c10::Scalar NumberOf(Neutral neutral, c10::ScalarType dtype);
BoundedLayout Reduced(const G& g, const BoundedLayout& layout, const Dims& dims);
bool AnyVaries(const BoundedLayout& layout, const Dims& dims);
/// The array with its last elements in its padding.
ir::Value Repeated(G& g, const Result& of, const Dims& dims);
ir::Value Repeated(G& g, const Result& of);
/// A dimension of varying size that has `more` elements more.
BoundedDim Longer(const G& g, const BoundedDim& dim, size_t d, int64_t more);
/// Makes the node again with its operand's dimension as one factor, whose padding has a value.
void EmitCompact(G& g, size_t d, const c10::Scalar& padding);
/// Makes a node for this one whose results lie like `layouts`, which PyTorch's kernel would not
/// infer. A layout has to follow from the operands and `words`. Missing results stay missing.
ir::NodePtr MakeShaped(const G& g, const ir::OpSpec& op, ir::Node::Operands operands,
                       ir::Words words, const std::vector<BoundedLayout>& layouts);
/// Operations along dimensions of fixed size. Slices along the other dimensions are independent.
void Along(G& g);
/// Where the device is the host, calls PyTorch's kernel with the arrays in their exact sizes, which
/// are operands of the call. So its results are those of the exact program to the bit.
void Exactly(G& g, BoundedRule otherwise);
template <BoundedRule otherwise>
void Exactly(G& g) {
  Exactly(g, otherwise);
}
/// A result of the node whose first dimension is the batch.
BoundedLayout WithBatch(const G& g, size_t result, const BoundedDim& batch);
bool IsHalf(c10::ScalarType dtype);

}  // namespace torch_xla::sizes::bounded
