// Products of matrices and vectors, attention, linear algebra in batches.
#include <algorithm>
#include <limits>

#include "sizes/rules_common.h"

namespace torch_xla::sizes::bounded {
namespace {

void Product(G& g) {
  const bool adds = g.Has("beta");
  const size_t first = adds ? 1 : 0;
  const Result &a = g.In(first), &b = g.In(first + 1);
  const size_t rank = a.layout.size();
  if (rank < 2 || b.layout.size() != rank) Refuse("products of vectors have no rule");
  const c10::Scalar zero = NumberOf(Neutral::kZero, a.value.shape()->dtype);
  if (!Same(a.layout[rank - 1], b.layout[rank - 2]))
    Refuse("its operands have different sizes that vary");
  BoundedLayout layout;
  if (rank == 3) {
    if (!Same(a.layout[0], b.layout[0])) Refuse("its operands have different sizes that vary");
    layout.push_back(a.layout[0]);
  }
  layout.push_back(a.layout[rank - 2]);
  layout.push_back(b.layout[rank - 1]);
  ir::Node::Operands operands = g.Values();
  Dims of_a = Only(rank, static_cast<int64_t>(rank) - 1);
  Dims of_b = Only(rank, static_cast<int64_t>(rank) - 2);
  if (rank == 3 && g.node().shape()->rank() == 2) {  // a sum of products
    of_a[0] = of_b[0] = true;
    layout.erase(layout.begin());
  }
  operands[first] = g.Masked(a, zero, of_a);
  operands[first + 1] = g.Masked(b, zero, of_b);
  if (adds) Broadcast(g.In(0).layout, layout);  // refuses what does not fit
  g.Emit(std::move(operands), g.node().attributes(), {layout});
}

/// Products with a vector.
void VectorProduct(G& g) {
  const bool adds = g.Has("beta");
  const size_t first = adds ? 1 : 0;
  const Result &a = g.In(first), &b = g.In(first + 1);
  if (a.layout.empty() || b.layout.size() != 1) Refuse("it has another rank");
  const c10::Scalar zero = NumberOf(Neutral::kZero, a.value.shape()->dtype);
  if (g.node().shape()->rank() == 2) {  // an outer product
    const BoundedLayout outer{a.layout.at(0), b.layout[0]};
    Broadcast(g.In(0).layout, outer);
    g.Emit(g.Values(), g.node().attributes(), {outer});
    return;
  }
  RequireSame({a.layout.back()}, b.layout);
  ir::Node::Operands operands = g.Values();
  operands[first] =
      g.Masked(a, zero, Only(a.layout.size(), static_cast<int64_t>(a.layout.size()) - 1));
  operands[first + 1] = g.Masked(b, zero);
  BoundedLayout layout(a.layout.begin(), a.layout.end() - 1);
  if (adds) Broadcast(g.In(0).layout, layout);
  g.Emit(std::move(operands), g.node().attributes(), {layout});
}

/// Attention without dropout, and its gradient: the weights of padded keys and queries are 0.
void Attention(G& g) {
  const double infinity = std::numeric_limits<double>::infinity();
  const bool backward = g.Has("grad_out");
  const size_t first = g.Named("query").operand;
  const Result &query = g.In(first), &key = g.In(first + 1), &value = g.In(first + 2);
  for (size_t i = first; i < first + 3; ++i) {
    if (g.In(i).layout.size() != 4) Refuse("it has no heads");
    RequireFixed(g.In(i).layout[1], "the number of heads varies");
    RequireFixed(g.In(i).layout[3], "the width of heads varies");
    if (!Same(g.In(i).layout[0], query.layout[0]))
      Refuse("its operands have different sizes that vary");
  }
  const BoundedDim rows = query.layout[2], columns = key.layout[2];
  if (!Same(value.layout[2], columns)) Refuse("its operands have different sizes that vary");
  BoundedLayout out = query.layout;
  out[3] = value.layout[3];
  const BoundedLayout sums{query.layout[0], query.layout[1], rows};
  ir::Node::Operands operands = g.Values();
  ir::Words words = g.node().attributes();
  const Argument& given = g.Named("attn_mask");
  if (const Result* mask = g.Tensor("attn_mask")) {
    const BoundedLayout& in = mask->layout;
    const BoundedLayout whole{query.layout[0], query.layout[1], rows, columns};
    for (size_t d = 0; d < in.size(); ++d) {
      const BoundedDim& of = whole.at(whole.size() - in.size() + d);
      if (!Same(in[d], of) && (SizeOf(in[d]) != 1 || (d + 1 == in.size() && Varies(columns))))
        Refuse("its mask has another varying size");
    }
    const bool is_bool = mask->value.shape()->dtype == c10::ScalarType::Bool;
    operands[given.operand] =
        g.Masked(*mask, is_bool ? c10::Scalar(int64_t{0}) : c10::Scalar(-infinity),
                 Only(in.size(), static_cast<int64_t>(in.size()) - 1));
  } else if (g.Int("is_causal") != 0) {
    // A causal row reads no later column, so no valid row reads padding.
    if (!Same(rows, columns) || !IsDense(columns))
      Refuse("a causal mask of different sizes has no rule");
  } else if (Varies(columns)) {
    const c10::ScalarType dtype = query.value.shape()->dtype;
    const ir::Value mask = g.Make(
        ir::ops::where_self,
        {g.View(g.IsWithin(columns), {1, 1, 1, BoundOf(columns)}, {1, 1, 1, 1}),
         tensor::MakeConstant(0.0, dtype, false), tensor::MakeConstant(-infinity, dtype, false)});
    operands.push_back(mask);
    words[given.word - 1] = 1;
  }
  operands[first + 1] = g.Masked(key, 0.0, Only(4, 2));
  operands[first + 2] = g.Masked(value, 0.0, Only(4, 2));
  if (!backward) {
    g.Emit(std::move(operands), std::move(words), {out, sums});
    return;
  }
  const size_t of_out = g.Named("out").operand, of_sums = g.Named("logsumexp").operand;
  RequireSame(g.In(0).layout, out);
  RequireSame(g.In(of_out).layout, out);
  RequireSame(g.In(of_sums).layout, sums);
  for (size_t i : {size_t{0}, first, of_out}) operands[i] = g.Masked(g.In(i), 0.0);
  operands[of_sums] = g.Masked(g.In(of_sums), infinity);
  g.Emit(std::move(operands), std::move(words), {query.layout, key.layout, value.layout});
}

/// Linear algebra on the matrices of a batch. Padding repeats the last one, since other matrices
/// may have no result.
void EachMatrix(G& g) {
  BoundedLayout batch = g.In(0).layout;
  if (batch.size() < 2) Refuse("it has no batch");
  batch.resize(batch.size() - 2);
  ir::Node::Operands operands = g.Values();
  for (size_t i = 0; i < operands.size(); ++i) {
    const BoundedLayout& in = g.In(i).layout;
    if (in.empty()) continue;
    if (in.size() < batch.size()) Refuse("its operands are broadcast");
    const auto rest = in.begin() + static_cast<std::ptrdiff_t>(batch.size());
    RequireSame({in.begin(), rest}, batch);
    RequireFixed(BoundedLayout(rest, in.end()), "the size of matrices varies");
    operands[i] = Repeated(g, g.In(i));
  }
  std::vector<BoundedLayout> layouts;
  for (size_t i = 0; i < g.node().num_outputs(); ++i) {
    const ir::ShapeRef shape = g.node().shape(i);
    layouts.push_back(shape ? FixedLayout(shape->dims) : BoundedLayout{});
    if (!shape || shape->numel == 0) continue;
    if (layouts[i].size() < batch.size()) Refuse("it has no batch");
    std::ranges::copy(batch, layouts[i].begin());
  }
  g.Emit(std::move(operands), g.node().attributes(), layouts);
}

/// Distances between the rows of two arrays, and their gradient.
void Distances(G& g) {
  const bool backward = g.Has("grad");
  const BoundedLayout& rows = g.Tensor("x1")->layout;
  const BoundedLayout& columns = g.Tensor("x2")->layout;
  if (rows.size() != columns.size() || rows.size() < 2) Refuse("its operands are broadcast");
  RequireFixed(rows.back(), "the number of coordinates varies");
  BoundedLayout layout = rows;
  layout.back() = columns[columns.size() - 2];
  RequireSame({rows.begin(), rows.end() - 2}, {columns.begin(), columns.end() - 2});
  ir::Node::Operands operands = g.Values();
  for (size_t i = 0; backward && i < operands.size(); ++i) operands[i] = g.Masked(g.In(i), 0.0);
  if (backward) RequireSame(g.In(0).layout, layout);
  g.Emit(std::move(operands), g.node().attributes(), {backward ? rows : layout});
}

void NoRule(G&) { Refuse("no rule says what it does with padding"); }

}  // namespace

Table ProductRules() {
  return {
      {&Product, {"aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm", "aten::addbmm"}},
      {&VectorProduct, {"aten::mv", "aten::addmv", "aten::addr", "aten::dot", "aten::vdot"}},
      {&Attention,
       {"aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward"}},
      {&Distances, {"aten::_cdist_forward", "aten::_cdist_backward"}},
      {&Exactly<NoRule>,
       {"aten::lu_unpack", "aten::linalg_lstsq", "aten::_pdist_forward", "aten::_pdist_backward",
        "aten::channel_shuffle", "aten::masked_scatter"}},
      {&Exactly<EachMatrix>,
       {"aten::cholesky",
        "aten::cholesky_inverse",
        "aten::_cholesky_solve_helper",
        "aten::linalg_cholesky_ex",
        "aten::linalg_inv_ex",
        "aten::linalg_lu",
        "aten::linalg_lu_factor_ex",
        "aten::linalg_lu_solve",
        "aten::_linalg_solve_ex",
        "aten::linalg_solve_triangular",
        "aten::triangular_solve",
        "aten::linalg_qr",
        "aten::geqrf",
        "aten::ormqr",
        "aten::linalg_householder_product",
        "aten::_linalg_svd",
        "aten::_linalg_eigh",
        "aten::linalg_eig",
        "aten::_linalg_eigvals",
        "aten::_linalg_det",
        "aten::_linalg_slogdet",
        "aten::linalg_matrix_exp",
        "aten::linalg_ldl_factor_ex",
        "aten::linalg_ldl_solve",
        "aten::linalg_polar",
        "aten::linalg_matrix_sqrth"}},
  };
}

}  // namespace torch_xla::sizes::bounded
