#include "sizes/rules.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <optional>
#include <regex>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "XLAOps.h"
#include "ir/attributes.h"
#include "tensor/node_factory.h"
#include "tensor/view.h"

namespace torch_xla::lazy {

struct BoundedRules {
  using G = BoundedGraph;
  using Result = BoundedGraph::Result;
  using Dims = std::vector<bool>;

  [[noreturn]] static void Refuse(const char* reason) { throw SizesRefused{reason}; }

  static BoundedDim Joined(const BoundedDim& a, const BoundedDim& b) {
    if (a.empty()) return b;
    if (b.empty() || Same(a, b)) return a;
    Refuse("its operands have different sizes that vary");
  }

  static BoundedLayout Broadcast(const BoundedLayout& a, const BoundedLayout& b) {
    BoundedLayout longer = a.size() >= b.size() ? a : b;
    const BoundedLayout& other = a.size() >= b.size() ? b : a;
    const size_t more = longer.size() - other.size();
    for (size_t d = 0; d < other.size(); ++d) longer[more + d] = Joined(longer[more + d], other[d]);
    return longer;
  }

  static void RequireFixed(const BoundedDim& dim, const char* reason) {
    if (Varies(dim)) Refuse(reason);
  }
  static void RequireFixed(const BoundedLayout& layout, const char* reason) {
    if (Varies(layout)) Refuse(reason);
  }

  static void RequireSame(const BoundedLayout& a, const BoundedLayout& b) {
    if (!std::ranges::equal(a, b,
                            [](const BoundedDim& x, const BoundedDim& y) { return Same(x, y); }))
      Refuse("its operands have different sizes that vary");
  }

  static Dims Only(size_t rank, int64_t dim) {
    Dims dims(rank);
    dims.at(static_cast<size_t>(dim)) = true;
    return dims;
  }

  // ---- Element by element --------------------------------------------------------------------

  static void Pointwise(G& g) {
    BoundedLayout layout;
    for (size_t i = 0; i < g.node_->operands().size(); ++i)
      layout = Broadcast(layout, g.In(i).layout);
    g.Emit(g.Values(), g.node_->attributes(),
           std::vector<BoundedLayout>(g.node_->num_outputs(), layout));
  }

  static void Cast(G& g) { g.EmitShaped(g.Values(), {}, g.In(0).layout); }

  // ---- Views ---------------------------------------------------------------------------------

  static ir::Value Select(G& g, const ir::Value& of, size_t dim, const ir::Value& index) {
    ir::Words words;
    ir::AttributeWriter(words).Int(static_cast<int64_t>(dim));
    return g.Make(ir::ops::index_select, {of, index}, std::move(words));
  }

  /// The elements of an array with a dimension for each of its factors, with one dimension indexed.
  static ir::Value TakeAlong(G& g, const ir::Value& value, const BoundedDim& all, size_t along,
                             const ir::Value& index) {
    std::vector<int64_t> bounds(all.size());
    for (size_t i = 0; i < all.size(); ++i) bounds[i] = all[i].bound;
    return Select(g, Contiguous(g, value, bounds), along, index);
  }

  /// The array's elements in other dimensions.
  static ir::Value Contiguous(const G& g, const ir::Value& of, const std::vector<int64_t>& sizes) {
    const Ints strides = ContiguousStrides(sizes);
    return g.View(of, sizes, {strides.begin(), strides.end()});
  }

  static ir::Value Number(int64_t value, c10::ScalarType dtype = c10::ScalarType::Long) {
    return MakeScalarParameter(value, dtype, false);
  }
  static ir::Value Add(const G& g, const ir::Value& a, const ir::Value& b) {
    return g.Make(ir::ops::add_Tensor, {a, b, MakeScalar(int64_t{1})});
  }

  /// For each element of an array that lies like `layout`, the sum of its coordinates in the array
  /// without padding times their strides, as one dimension. Padding gets other numbers.
  static ir::Value Places(const G& g, const BoundedLayout& layout, c10::IntArrayRef strides,
                          int64_t offset, c10::ScalarType dtype) {
    std::vector<Factor> factors;
    std::vector<int64_t> steps;
    for (size_t d = 0; d < layout.size(); ++d) {
      int64_t step = strides[d];
      for (const Factor& factor : layout[d]) step *= factor.size;
      for (const Factor& factor : layout[d]) {
        factors.push_back(factor);
        steps.push_back(step /= factor.size);
      }
    }
    ir::Value place = Number(offset, dtype);
    int64_t all = 1;
    for (size_t i = 0; i < factors.size(); ++i) {
      std::vector<int64_t> sizes(factors.size(), 1), ones(factors.size(), 1);
      sizes[i] = factors[i].bound;
      all *= factors[i].bound;
      const ir::Value index = lazy::Cast(g.View(g.Iota(factors[i].bound), sizes, ones), dtype);
      place = Add(g, place, g.Make(ir::ops::mul_Tensor, {index, Number(steps[i], dtype)}));
    }
    return g.View(place, {all}, {1});
  }

  /// Where the elements lie whose indices in the array without padding are given.
  static ir::Value PlaceOf(G& g, ir::Value index, const BoundedDim& all) {
    if (!std::any_of(all.begin() + (all.empty() ? 0 : 1), all.end(),
                     [](const Factor& factor) { return factor.varies; }))
      return index;
    const c10::ScalarType dtype = index.shape()->dtype;
    const auto times = [&](const ir::Value& value, int64_t stride) {
      return g.Make(ir::ops::mul_Tensor, {value, MakeConstant(stride, dtype, false)});
    };
    int64_t stride = 1;
    ir::Value place;
    for (size_t i = all.size(); i-- > 1; stride *= all[i].bound) {
      const ir::Value n = all[i].varies ? lazy::Cast(g.SizeOfFactor(all[i]), dtype)
                                        : MakeConstant(all[i].size, dtype, false);
      const ir::Value part = times(g.Make(ir::ops::remainder_Tensor, {index, n}), stride);
      place = place ? Add(g, place, part) : part;
      index = g.Make(ir::ops::floor_divide, {index, n});
    }
    return Add(g, place, times(index, stride));
  }

  static c10::ScalarType IndexType(int64_t elements) {
    return elements < std::numeric_limits<int32_t>::max() ? c10::ScalarType::Int
                                                          : c10::ScalarType::Long;
  }

  /// The array with dimension `d` as one factor, whose padding lies at its end.
  static Result Compact(G& g, const Result& of, size_t d) {
    const BoundedDim& dim = of.layout[d];
    if (dim.size() < 2) return of;
    const int64_t size = SizeOf(dim), bound = BoundOf(dim);
    int64_t first = 1;
    for (const Factor& factor : dim) first *= factor.first;
    const ir::Value index = g.Make(ir::ops::minimum, {g.Iota(bound), Number(size - 1)});
    Result result{Select(g, of.value, d, PlaceOf(g, index, dim)), of.layout, true};
    result.layout[d] = {{size, bound, first, true}};
    return result;
  }

  /// The reverse: what was computed along a dimension that was made one factor lies like `dim`.
  static ir::Value Spread(G& g, const ir::Value& of, size_t d, const BoundedDim& dim) {
    if (dim.size() < 2) return of;
    const ir::Value last = MakeConstant(BoundOf(dim) - 1, c10::ScalarType::Long, false);
    const ir::Value index = Places(g, {dim}, {1}, 0, c10::ScalarType::Long);
    return Select(g, of, d, g.Make(ir::ops::minimum, {index, last}));
  }

  /// A view whose elements lie at no regular places takes each by its index.
  static void ViewByIndex(G& g, const Result& base, const StridedView& view,
                          const BoundedLayout& layout) {
    int64_t elements = 1;
    for (int64_t bound : BoundsOf(base.layout)) elements *= bound;
    for (size_t d = 0; d < layout.size(); ++d) {
      if (g.ResultVaries(0, d) && !Varies(layout[d]))
        Refuse("a view is not regular along a varying size");
    }
    const std::vector<int64_t> bounds = BoundsOf(layout);
    int64_t largest = view.offset;
    for (size_t d = 0; d < bounds.size(); ++d) largest += bounds[d] * view.strides[d];
    const c10::ScalarType dtype = IndexType(std::max(largest, elements));
    const int64_t size = SizeOf(AllFactors(base.layout));
    ir::Value index = g.Make(ir::ops::minimum, {Places(g, layout, view.strides, view.offset, dtype),
                                                Number(size - 1, dtype)});
    index = PlaceOf(g, index, AllFactors(base.layout));
    const ir::Value all = Select(g, g.View(base.value, {elements}, {1}), 0, index);
    g.Set(0, Contiguous(g, all, bounds), layout);
  }

  /// If a view has one index of a varying size, such as x[:, -1], takes that index from `base` and
  /// returns true. The index is a parameter of the program, since it differs from size to size.
  static bool TakeIndex(G& g, Result& base, StridedView& view) {
    const BoundedDim all = AllFactors(base.layout);
    int64_t stride = 1;
    for (size_t k = all.size(); k-- > 0; stride *= all[k].size) {
      const Factor factor = all[k];
      if (factor.size == 0) Refuse("it is empty");
      const int64_t outer = stride * factor.size, index = view.offset / stride % factor.size;
      if (!factor.varies || index == 0) {
        if (k == 0) return false;
        continue;
      }
      const bool is_taken = [&] {
        for (size_t d = 0; d < view.sizes.size(); ++d) {
          const int64_t step = view.strides[d];
          if (view.sizes[d] == 1 || step == 0) continue;
          // The dimension moves along this factor, or crosses it from an inner factor.
          if (step < outer && (step >= stride || step * view.sizes[d] > stride)) return true;
          if (step >= outer && step % outer != 0) return true;
        }
        return false;
      }();
      if (is_taken) {
        if (k == 0) return false;
        continue;
      }
      for (size_t d = 0; d < view.sizes.size(); ++d) {
        if (view.sizes[d] != 1 && view.strides[d] >= outer) view.strides[d] /= factor.size;
      }
      view.offset = view.offset / outer * stride + view.offset % stride;
      base.value = TakeAlong(g, base.value, all, k, g.View(Number(index), {1}, {1}));
      base.layout.clear();
      for (size_t i = 0; i < all.size(); ++i)
        base.layout.push_back(i == k ? BoundedDim{} : BoundedDim{all[i]});
      return true;
    }
    return false;
  }

  /// If dimension `d` of a view is a part of a varying size that begins at another place from size
  /// to size, as the gradient of a concatenation is, takes that part, which is like `made`.
  static void TakeRange(G& g, Result& base, StridedView& view, size_t d, const BoundedDim& made,
                        int64_t first) {
    BoundedDim all = AllFactors(base.layout);
    int64_t stride = 1;
    size_t k = all.size();
    while (k > 0 && stride < view.strides[d]) stride *= all[--k].size;
    if (stride != view.strides[d] || k == 0 || made.size() != 1 || view.sizes[d] < 2) return;
    const Factor factor = all[--k];
    const int64_t size = view.sizes[d], start = view.offset / stride % factor.size;
    if (!factor.varies || size >= factor.size || start + size > factor.size ||
        factor.size - size == factor.first - first)
      return;
    const int64_t outer = stride * factor.size;
    std::vector<int64_t> strides = view.strides;
    for (size_t i = 0; i < view.sizes.size(); ++i) {
      if (i == d || view.sizes[i] == 1 || strides[i] == 0) continue;
      if (strides[i] < outer) {
        if (strides[i] * view.sizes[i] > stride) return;  // it moves along the factor, too
        continue;
      }
      if (strides[i] % outer != 0) return;
      strides[i] = strides[i] / outer * stride * size;
    }
    view.strides = std::move(strides);
    view.offset = view.offset / outer * stride * size + view.offset % stride;
    const ir::Value moved = Add(g, g.Iota(made[0].bound), Number(start));
    const ir::Value last = MakeConstant(factor.bound - 1, c10::ScalarType::Long, false);
    base.value = TakeAlong(g, base.value, all, k, g.Make(ir::ops::minimum, {moved, last}));
    all[k] = made[0];
    base.layout.clear();
    for (const Factor& one : all) base.layout.push_back({one});
  }

  static void AsStrided(G& g) {
    const auto sizes = g.Ints("size"), strides = g.Ints("stride");
    c10::SmallVector<bool, 8> varies;
    c10::SmallVector<int64_t, 8> first;
    const ir::ShapeRef shape = g.varying_.first[g.shapes_.begin[g.position_]];
    for (size_t d = 0; d < sizes.size(); ++d) {
      varies.push_back(g.ResultVaries(0, d));
      first.push_back(shape->dims[d]);
    }
    const StridedView given{sizes.vec(), strides.vec(), g.Int("storage_offset")};
    StridedView exact = given;
    Result base = g.In(0);
    const BoundedLayout made = g.MadeLayout(0);
    if (g.node_->shape()->numel == 0) {
      const ir::Value zero = MakeConstant(int64_t{0}, g.node_->shape()->dtype, false);
      g.Set(0, Expand(zero, BoundsOf(made)), made);
      return;
    }
    while (TakeIndex(g, base, exact)) {
    }
    for (size_t d = 0; d < sizes.size(); ++d) {
      if (varies[d]) TakeRange(g, base, exact, d, made[d], first[d]);
    }
    std::optional<BoundedView> regular;
    try {
      regular = ViewOf(base.layout, exact, made, varies, first);
    } catch (const SizesRefused&) {
      return ViewByIndex(g, g.In(0), given, made);
    }
    BoundedView& view = *regular;
    ir::Words words = g.node_->attributes();
    for (size_t d = 0; d < sizes.size(); ++d) {
      words[g.Named("size").word + d] = static_cast<uint64_t>(view.view.sizes[d]);
      words[g.Named("stride").word + d] = static_cast<uint64_t>(view.view.strides[d]);
    }
    words[g.Named("storage_offset").word] = static_cast<uint64_t>(view.view.offset);
    g.EmitShaped({base.value}, std::move(words), view.layout);
  }

  /// A write into a part of an array: padding of what is written leaves the array as it is.
  static void ViewUpdate(G& g) {
    const Result &base = g.In(0), &value = g.In(1);
    const auto sizes = g.Ints("size"), strides = g.Ints("stride");
    if (base.value.shape()->numel == 0) Refuse("it is empty");
    c10::SmallVector<bool, 8> varies;
    c10::SmallVector<int64_t, 8> first;
    for (const BoundedDim& dim : value.layout) {
      varies.push_back(Varies(dim));
      first.push_back(dim.size() == 1 ? dim[0].first : SizeOf(dim));
    }
    const BoundedView view =
        ViewOf(base.layout, {sizes.vec(), strides.vec(), g.Int("storage_offset")}, value.layout,
               varies, first);
    if (std::ranges::find(strides, 0) != strides.end()) Refuse("it writes an element twice");
    RequireSame(view.layout, value.layout);
    ir::Words words = g.node_->attributes();
    for (size_t d = 0; d < sizes.size(); ++d) {
      words[g.Named("size").word + d] = static_cast<uint64_t>(view.view.sizes[d]);
      words[g.Named("stride").word + d] = static_cast<uint64_t>(view.view.strides[d]);
    }
    words[g.Named("storage_offset").word] = static_cast<uint64_t>(view.view.offset);
    ir::Value written = value.value;
    if (value.varies) {
      const ir::Value old = MakeNode(&ir::ops::as_strided, {base.value}, ir::Words(words),
                                     ir::GetShape(base.value.shape()->dtype, view.view.sizes));
      written = g.Make(ir::ops::where_self,
                       {g.Within(value.layout, Dims(value.layout.size(), true)), written, old});
    }
    g.EmitShaped({base.value, written}, std::move(words), base.layout);
  }

  /// Sizes that are the product of an operand's and how often it is repeated; either may vary.
  static void Repeat(G& g) {
    const auto repeats = g.Ints("repeats");
    const ir::ShapeRef first = g.varying_.first[g.shapes_.begin[g.position_]];
    BoundedLayout in = g.In(0).layout, layout;
    in.insert(in.begin(), repeats.size() - in.size(), BoundedDim{});
    ir::Words words = g.node_->attributes();
    for (size_t d = 0; d < repeats.size(); ++d) {
      const int64_t size = SizeOf(in[d]);
      const bool fixed = !Varies(in[d]) && size > 0;
      BoundedDim times = FixedDim(repeats[d]);
      if (fixed && g.ResultVaries(0, d) && first->dims[d] % size == 0)
        times = g.MadeAs({first->dims[d] / size, repeats[d]});
      words[g.Named("repeats").word + d] = static_cast<uint64_t>(BoundOf(times));
      layout.push_back(times);
      for (const Factor& factor : in[d]) AddFactor(layout[d], factor);
    }
    g.Emit(g.Values(), std::move(words), {layout});
  }

  /// Views as another dtype; a number may become two, or two one.
  static void Bitcast(G& g) {
    BoundedLayout layout = g.In(0).layout;
    const auto& sizes = g.node_->shape()->dims;
    if (sizes.size() > layout.size()) layout.push_back(FixedDim(sizes.back()));
    if (sizes.size() < layout.size()) layout.pop_back();
    if (!layout.empty() && SizeOf(layout.back()) != sizes.back()) {
      RequireFixed(layout.back(), "numbers of another width take the place of a varying size");
      layout.back() = FixedDim(sizes.back());
    }
    g.EmitShaped(g.Values(), {}, layout);
  }

  static void ExpandNode(G& g) {
    const BoundedLayout made = g.MadeLayout(0);
    BoundedLayout layout =
        Broadcast(FixedLayout(std::vector<int64_t>(made.size(), 1)), g.In(0).layout);
    for (size_t d = 0; d < layout.size(); ++d) {
      if (layout[d].empty()) layout[d] = made[d];
    }
    g.EmitShaped(g.Values(), {}, layout);
  }

  /// Fills and ranges: a longer array begins with the same elements.
  static void Makes(G& g) { g.EmitShaped(g.Values(), {}, g.MadeLayout(0)); }

  /// A random number depends on its index in the array without padding. So as many numbers are
  /// drawn as the bounded array has elements, and each element takes the number of its index.
  static void Random(G& g) {
    const BoundedLayout layout = g.MadeLayout(0);
    for (const ir::Value& operand : g.node_->operands()) {
      if (operand.shape()->rank() != 0) Refuse("its distribution has parameters of varying sizes");
    }
    if (!Varies(layout)) {
      g.EmitShaped(g.Values(), {}, layout);
      return;
    }
    int64_t bound = 1;
    for (const BoundedDim& dim : layout) bound *= BoundOf(dim);
    const c10::ScalarType dtype = g.node_->shape()->dtype;
    ir::Value drawn = MakeNode(&g.node_->op(), g.Values(), {}, ir::GetShape(dtype, {bound}));
    drawn.node->set_location(g.node_->location());
    const BoundedDim all = AllFactors(layout);
    const bool inner_varies =
        std::any_of(all.begin() + 1, all.end(), [](const Factor& factor) { return factor.varies; });
    if (inner_varies) {
      drawn = Select(g, drawn, 0, Places(g, {all}, {1}, 0, IndexType(bound)));
    }
    g.Set(0, Contiguous(g, drawn, BoundsOf(layout)), layout);
  }

  // ---- Reductions ----------------------------------------------------------------------------

  enum class Neutral { kZero, kOne, kLeast, kMost, kNone };

  static c10::Scalar NumberOf(Neutral neutral, c10::ScalarType dtype) {
    const bool least = neutral == Neutral::kLeast;
    if (neutral == Neutral::kZero || neutral == Neutral::kOne) {
      const int64_t number = neutral == Neutral::kOne;
      if (c10::isIntegralType(dtype, true)) return number;
      return static_cast<double>(number);
    }
    if (c10::isFloatingType(dtype)) {
      const double infinity = std::numeric_limits<double>::infinity();
      return least ? -infinity : infinity;
    }
    switch (dtype) {
      case c10::ScalarType::Bool:
        return int64_t{!least};
      case c10::ScalarType::Byte:
        return int64_t{least ? 0 : 255};
      case c10::ScalarType::Char:
        return int64_t{least ? -128 : 127};
      case c10::ScalarType::Int:
        return least ? int64_t{std::numeric_limits<int32_t>::min()}
                     : int64_t{std::numeric_limits<int32_t>::max()};
      case c10::ScalarType::Long:
        return least ? std::numeric_limits<int64_t>::min() : std::numeric_limits<int64_t>::max();
      default:
        Refuse("its dtype has no rule");
    }
  }

  static Dims ReducedDims(const G& g, size_t rank) {
    if (!g.Has("dim") || !g.Named("dim").given) return Dims(rank, true);
    const auto list = g.Ints("dim");
    if (list.empty()) return Dims(rank, true);
    Dims dims(rank);
    if (rank == 0) return dims;
    for (int64_t dim : list) dims.at(static_cast<size_t>(g.Dim(dim, rank))) = true;
    return dims;
  }

  static BoundedLayout Reduced(const G& g, const BoundedLayout& layout, const Dims& dims) {
    const bool keep = g.Has("keepdim") && g.Int("keepdim") != 0;
    BoundedLayout result;
    for (size_t d = 0; d < layout.size(); ++d) {
      if (!dims[d]) result.push_back(layout[d]);
      if (dims[d] && keep) result.emplace_back();
    }
    return result;
  }

  static bool AnyVaries(const BoundedLayout& layout, const Dims& dims) {
    for (size_t d = 0; d < layout.size(); ++d) {
      if (dims[d] && Varies(layout[d])) return true;
    }
    return false;
  }

  template <Neutral neutral, bool places = false>
  static void Reduce(G& g) {
    Result in = g.In(0);
    const Dims dims = ReducedDims(g, in.layout.size());
    ir::Node::Operands operands = g.Values();
    if (AnyVaries(in.layout, dims)) {
      if (neutral == Neutral::kNone) Refuse("it has no rule along a varying size");
      if (places && g.Has("dim")) {
        // An index must not count padding.
        if (std::count(dims.begin(), dims.end(), true) != 1)
          Refuse("its index counts elements of a varying size");
        in = Compact(g, in, static_cast<size_t>(std::ranges::find(dims, true) - dims.begin()));
      }
      operands[0] = g.Masked(in, NumberOf(neutral, in.value.shape()->dtype), dims);
    }
    const BoundedLayout layout = Reduced(g, in.layout, dims);
    g.Emit(std::move(operands), g.node_->attributes(),
           std::vector<BoundedLayout>(g.node_->num_outputs(), layout));
  }

  static void LeastAndMost(G& g) {
    const Result& in = g.In(0);
    const Dims dims = ReducedDims(g, in.layout.size());
    const BoundedLayout layout = Reduced(g, in.layout, dims);
    ir::Words words;
    ir::AttributeWriter writer(words);
    std::vector<int64_t> list;
    for (size_t d = 0; d < dims.size(); ++d) {
      if (dims[d]) list.push_back(static_cast<int64_t>(d));
    }
    writer.IntList(list);
    writer.Int(g.Int("keepdim"));
    const c10::ScalarType dtype = in.value.shape()->dtype;
    g.Set(0, g.Make(ir::ops::amin, {g.Masked(in, NumberOf(Neutral::kMost, dtype), dims)}, words),
          layout);
    g.Set(1, g.Make(ir::ops::amax, {g.Masked(in, NumberOf(Neutral::kLeast, dtype), dims)}, words),
          layout);
  }

  static bool IsHalf(c10::ScalarType dtype) {
    return dtype == c10::ScalarType::Half || dtype == c10::ScalarType::BFloat16;
  }

  /// A sum that is divided by the number of elements, which is a parameter of the program.
  static void Mean(G& g) {
    const Result& in = g.In(0);
    const Dims dims = ReducedDims(g, in.layout.size());
    const BoundedLayout layout = Reduced(g, in.layout, dims);
    if (!AnyVaries(in.layout, dims)) {
      g.Emit(g.Values(), g.node_->attributes(), {layout});
      return;
    }
    const c10::ScalarType dtype = g.node_->shape()->dtype;
    ir::Value masked = g.Masked(in, NumberOf(Neutral::kZero, in.value.shape()->dtype), dims);
    masked = lazy::Cast(masked, IsHalf(dtype) ? c10::ScalarType::Float : dtype);
    const ir::OpSpec& sum = g.Has("dim") ? ir::ops::sum_dim_IntList : ir::ops::sum;
    ir::Value mean = g.Make(ir::ops::div_Tensor, {g.Make(sum, {masked}, g.node_->attributes()),
                                                  g.Count(in.layout, dims)});
    g.Set(0, lazy::Cast(mean, dtype), layout);
  }

  /// Norms; with a negative exponent an infinite element adds 0.
  static void Norm(G& g) {
    ir::AttributeReader reader(g.node_->attributes());
    const c10::Scalar exponent = reader.Scalar();
    if (exponent.toDouble() < 0) {
      if (!c10::isFloatingType(g.In(0).value.shape()->dtype)) Refuse("its dtype has no rule");
      Reduce<Neutral::kMost>(g);
    } else {
      Reduce<Neutral::kZero>(g);
    }
  }

  /// Variances and standard deviations. The number of elements is a parameter of the program.
  template <bool root>
  static void Variance(G& g) {
    const Result& in = g.In(0);
    const Dims dims = ReducedDims(g, in.layout.size());
    const BoundedLayout layout = Reduced(g, in.layout, dims);
    if (!AnyVaries(in.layout, dims)) {
      g.Emit(g.Values(), g.node_->attributes(),
             std::vector<BoundedLayout>(g.node_->num_outputs(), layout));
      return;
    }
    const c10::ScalarType dtype = in.value.shape()->dtype;
    if (!c10::isFloatingType(dtype)) Refuse("a variance in another dtype has no rule");
    const Result wide{lazy::Cast(in.value, IsHalf(dtype) ? c10::ScalarType::Float : dtype),
                      in.layout, true};
    std::vector<int64_t> summed;
    int64_t count = 1;
    for (size_t d = 0; d < dims.size(); ++d) {
      if (!dims[d]) continue;
      summed.push_back(static_cast<int64_t>(d));
      count *= SizeOf(in.layout[d]);
    }
    const auto number = [](double value) {
      return MakeScalarParameter(value, c10::ScalarType::Double, true);
    };
    ir::Value degrees = number(std::max(0.0, static_cast<double>(count) - 1));
    if (const G::Argument& given = g.Named("correction"); given.given) {
      const ir::Value rest = g.Make(
          ir::ops::sub_Tensor,
          {number(static_cast<double>(count)), g.In(given.operand).value, MakeScalar(int64_t{1})});
      degrees = g.Make(ir::ops::maximum, {rest, MakeConstant(0.0, c10::ScalarType::Double, true)});
    }
    const auto sum = [&](const ir::Value& x, bool keep) {
      ir::Words words;
      ir::AttributeWriter writer(words);
      writer.Int(1);
      writer.IntList(summed);
      writer.Int(keep);
      writer.Int(0);  // no dtype
      return g.Make(ir::ops::sum_dim_IntList, {x}, std::move(words));
    };
    const auto mean_of = [&](bool keep) {
      return g.Make(ir::ops::div_Tensor,
                    {sum(g.Masked(wide, 0.0, dims), keep), number(static_cast<double>(count))});
    };
    const ir::Value centered =
        g.Masked({g.Make(ir::ops::sub_Tensor, {wide.value, mean_of(true), MakeScalar(int64_t{1})}),
                  in.layout, true},
                 0.0, dims);
    ir::Value result = g.Make(
        ir::ops::div_Tensor,
        {sum(g.Make(ir::ops::mul_Tensor, {centered, centered}), g.Int("keepdim") != 0), degrees});
    if (root) result = g.Make(ir::ops::sqrt, {result});
    g.Set(0, lazy::Cast(result, dtype), layout);
    if (g.node_->num_outputs() > 1)
      g.Set(1, lazy::Cast(mean_of(g.Int("keepdim") != 0), dtype), layout);
  }

  /// Makes the node again with its operand's dimension as one factor, whose padding has a value.
  static void EmitCompact(G& g, size_t d, const c10::Scalar& padding) {
    const BoundedLayout layout = g.In(0).layout;
    const Result in = Compact(g, g.In(0), d);
    ir::Node::Operands operands = g.Values();
    operands[0] = g.Masked(in, padding, Only(layout.size(), static_cast<int64_t>(d)));
    const ir::NodePtr made =
        MakeOpNode(&g.node_->op(), std::move(operands), ir::Words(g.node_->attributes()));
    made->set_location(g.node_->location());
    for (size_t i = 0; i < g.node_->num_outputs(); ++i) {
      if (g.node_->shape(i))
        g.Set(i, Spread(g, {made, static_cast<uint32_t>(i)}, d, layout[d]), layout);
    }
  }

  /// Each element depends only on elements before it, and padding lies at the end.
  template <Neutral neutral>
  static void Cumulative(G& g) {
    const Result& in = g.In(0);
    if (in.layout.empty()) Refuse("it has no dimension");
    const auto dim = static_cast<size_t>(g.Dim(g.Int("dim"), in.layout.size()));
    EmitCompact(g, dim, NumberOf(neutral, in.value.shape()->dtype));
  }

  /// Operations along dimensions of fixed size. Slices along the other dimensions are independent.
  static void Along(G& g) {
    const BoundedLayout in = g.In(0).layout;
    const bool any = g.Has("dim") || g.Has("dims");
    const c10::IntArrayRef named = any ? g.Ints(g.Has("dim") ? "dim" : "dims") : c10::IntArrayRef{};
    Dims dims(in.size(), named.empty() || in.empty());
    for (int64_t dim : in.empty() ? c10::IntArrayRef{} : named)
      dims.at(static_cast<size_t>(g.Dim(dim, in.size()))) = true;
    if (AnyVaries(in, dims)) Refuse("it has no rule along a varying size");
    for (size_t i = 1; i < g.node_->operands().size(); ++i) {
      if (g.In(i).layout.size() == in.size()) {
        for (size_t d = 0; d < in.size(); ++d) {
          if (!dims[d]) RequireSame({g.In(i).layout[d]}, {in[d]});
        }
      } else {
        RequireFixed(g.In(i).layout, "its operands have different sizes that vary");
      }
    }
    std::vector<BoundedLayout> layouts;
    for (size_t i = 0; i < g.node_->num_outputs(); ++i) {
      const ir::ShapeRef shape = g.node_->shape(i);
      BoundedLayout& layout = layouts.emplace_back();
      if (!shape) continue;
      const bool keeps = shape->rank() == in.size();
      for (size_t d = 0; d < in.size(); ++d) {
        if (!dims[d]) {
          layout.push_back(in[d]);
        } else if (keeps) {
          layout.push_back(FixedDim(shape->dims[d]));
        }
      }
    }
    g.Emit(g.Values(), g.node_->attributes(), layouts);
  }

  /// Padding sorts behind the elements that count, which come first among equal ones.
  static void Sorted(G& g) {
    const Result& in = g.In(0);
    const BoundedLayout layout = in.layout;
    const auto dim = static_cast<size_t>(g.Dim(g.Int("dim"), layout.size()));
    if (layout.empty() || !Varies(layout[dim])) return Along(g);
    const c10::ScalarType dtype = in.value.shape()->dtype;
    const bool is_least = g.Int("descending") != 0;
    const c10::Scalar last = !is_least && c10::isFloatingType(dtype)
                                 ? c10::Scalar(std::numeric_limits<double>::quiet_NaN())
                                 : NumberOf(is_least ? Neutral::kLeast : Neutral::kMost, dtype);
    EmitCompact(g, dim, last);
  }

  /// Padding lies outside of the bins.
  static void Histogram(G& g) {
    const Result& in = g.In(0);
    ir::AttributeReader reader(g.node_->attributes());
    reader.Int();
    const double least = reader.Scalar().toDouble(), most = reader.Scalar().toDouble();
    if (least == most || !c10::isFloatingType(in.value.shape()->dtype))
      Refuse("its bins depend on its elements");
    g.Emit({g.Masked(in, std::numeric_limits<double>::infinity())}, g.node_->attributes(),
           {FixedLayout(g.node_->shape()->dims)});
  }

  /// A dimension of varying size that has `more` elements more.
  static BoundedDim Longer(const G& g, const BoundedDim& dim, size_t d, int64_t more) {
    if (dim.size() > 1) Refuse("it goes along several sizes");
    const Factor& factor = dim[0];
    return {{factor.size + more, factor.bound + more,
             g.varying_.first[g.shapes_.begin[g.position_]]->dims[d], true}};
  }

  static void Pad(G& g) {
    const Result& in = g.In(0);
    BoundedLayout layout = in.layout;
    const auto pad = g.Ints("pad");
    Dims dims(layout.size());
    for (size_t i = 0; i < pad.size(); i += 2) {
      if (pad[i] == 0 && pad[i + 1] == 0) continue;
      const size_t d = layout.size() - 1 - i / 2;
      dims[d] = pad[i + 1] > 0;
      layout[d] = Varies(layout[d]) ? Longer(g, layout[d], d, pad[i] + pad[i + 1])
                                    : FixedDim(SizeOf(layout[d]) + pad[i] + pad[i + 1]);
    }
    const ir::Value value = g.In(1).value;
    g.Emit({g.Where(in, lazy::Cast(value, in.value.shape()->dtype), dims), value},
           g.node_->attributes(), {layout});
  }

  static void Softmax(G& g) {
    const Result& in = g.In(0);
    if (in.layout.empty()) Refuse("it has no dimension");
    ir::Node::Operands operands = g.Values();
    operands[0] = g.Masked(in, -std::numeric_limits<double>::infinity(),
                           Only(in.layout.size(), g.Dim(g.Int("dim"), in.layout.size())));
    g.Emit(std::move(operands), g.node_->attributes(), {in.layout});
  }

  static void SoftmaxBackward(G& g) {
    const Result &grad = g.In(0), &output = g.In(1);
    const BoundedLayout layout = Broadcast(grad.layout, output.layout);
    if (layout.empty()) Refuse("it has no dimension");
    const Dims dims = Only(layout.size(), g.Dim(g.Int("dim"), layout.size()));
    g.Emit({g.Masked(grad, 0.0, dims), g.Masked(output, 0.0, dims)}, g.node_->attributes(),
           {layout});
  }

  // ---- Products ------------------------------------------------------------------------------

  static void Product(G& g) {
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
    if (rank == 3 && g.node_->shape()->rank() == 2) {  // a sum of products
      of_a[0] = of_b[0] = true;
      layout.erase(layout.begin());
    }
    operands[first] = g.Masked(a, zero, of_a);
    operands[first + 1] = g.Masked(b, zero, of_b);
    if (adds) Broadcast(g.In(0).layout, layout);  // refuses what does not fit
    g.Emit(std::move(operands), g.node_->attributes(), {layout});
  }

  /// Products with a vector.
  static void VectorProduct(G& g) {
    const bool adds = g.Has("beta");
    const size_t first = adds ? 1 : 0;
    const Result &a = g.In(first), &b = g.In(first + 1);
    if (a.layout.empty() || b.layout.size() != 1) Refuse("it has another rank");
    const c10::Scalar zero = NumberOf(Neutral::kZero, a.value.shape()->dtype);
    if (g.node_->shape()->rank() == 2) {  // an outer product
      const BoundedLayout outer{a.layout.at(0), b.layout[0]};
      Broadcast(g.In(0).layout, outer);
      g.Emit(g.Values(), g.node_->attributes(), {outer});
      return;
    }
    RequireSame({a.layout.back()}, b.layout);
    ir::Node::Operands operands = g.Values();
    operands[first] =
        g.Masked(a, zero, Only(a.layout.size(), static_cast<int64_t>(a.layout.size()) - 1));
    operands[first + 1] = g.Masked(b, zero);
    BoundedLayout layout(a.layout.begin(), a.layout.end() - 1);
    if (adds) Broadcast(g.In(0).layout, layout);
    g.Emit(std::move(operands), g.node_->attributes(), {layout});
  }

  /// Attention without dropout, and its gradient: the weights of padded keys and queries are 0.
  static void Attention(G& g) {
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
    ir::Words words = g.node_->attributes();
    const G::Argument& given = g.Named("attn_mask");
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
      if (!Same(rows, columns)) Refuse("a causal mask of different sizes has no rule");
    } else if (Varies(columns)) {
      const c10::ScalarType dtype = query.value.shape()->dtype;
      const ir::Value mask =
          g.Make(ir::ops::where_self,
                 {g.View(g.IsWithin(columns), {1, 1, 1, BoundOf(columns)}, {1, 1, 1, 1}),
                  MakeConstant(0.0, dtype, false), MakeConstant(-infinity, dtype, false)});
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

  // ---- Normalization -------------------------------------------------------------------------

  static void LayerNorm(G& g) {
    const BoundedLayout& in = g.In(0).layout;
    const size_t outer = in.size() - g.Ints("normalized_shape").size();
    BoundedLayout rows = in;
    for (size_t d = outer; d < in.size(); ++d) {
      RequireFixed(in[d], "it normalizes a varying size");
      rows[d] = {};
    }
    g.Emit(g.Values(), g.node_->attributes(), {in, rows, rows});
  }

  static void LayerNormBackward(G& g) {
    const Result& in = *g.Tensor("input");
    const size_t outer = in.layout.size() - g.Ints("normalized_shape").size();
    BoundedLayout weight(in.layout.begin() + static_cast<std::ptrdiff_t>(outer), in.layout.end());
    RequireFixed(weight, "it normalizes a varying size");
    RequireSame(g.Tensor("grad_out")->layout, in.layout);
    for (const char* name : {"mean", "rstd"}) {
      const BoundedLayout& rows = g.Tensor(name)->layout;
      for (size_t d = 0; d < outer; ++d) {
        if (!Same(rows.at(d), in.layout[d])) Refuse("its operands have different sizes that vary");
      }
    }
    ir::Node::Operands operands = g.Values();
    for (const char* name : {"grad_out", "input", "mean", "rstd"}) {
      const size_t operand = g.Named(name).operand;
      operands[operand] = g.Masked(g.In(operand), 0.0);
    }
    g.Emit(std::move(operands), g.node_->attributes(), {in.layout, weight, weight});
  }

  /// Samples are independent, except in the gradients of the weights.
  static void GroupNorm(G& g) {
    const bool backward = g.Has("grad_out");
    const Result& in = *g.Tensor("input");
    if (in.layout.size() < 2) Refuse("it has no channels");
    const BoundedDim samples = in.layout[0];
    for (size_t d = 1; d < in.layout.size(); ++d)
      RequireFixed(in.layout[d], "it normalizes a varying size");
    ir::Node::Operands operands = g.Values();
    if (backward) {
      for (const char* name : {"grad_out", "input", "mean", "rstd"}) {
        const size_t operand = g.Named(name).operand;
        RequireSame({g.In(operand).layout.at(0)}, {samples});
        operands[operand] = g.Masked(g.In(operand), 0.0);
      }
    }
    ir::Words words = g.node_->attributes();
    words[g.Named("N").word] = static_cast<uint64_t>(BoundOf(samples));
    std::vector<BoundedLayout> layouts;
    for (size_t i = 0; i < g.node_->num_outputs(); ++i) {
      if (!g.node_->shape(i)) {
        layouts.emplace_back();
      } else if (i == 0 || !backward) {
        layouts.push_back(WithBatch(g, i, samples));
      } else {
        layouts.push_back(FixedLayout(g.node_->shape(i)->dims));
      }
    }
    g.Emit(std::move(operands), std::move(words), layouts);
  }

  /// Elementwise operations and sums over all dimensions but the channels, for batch normalization.
  struct Channels {
    G& g;
    const BoundedLayout& layout;
    Dims dims;  // all but the channels
    ir::Value count;

    Channels(G& graph, const BoundedLayout& in)
        : g(graph), layout(in), dims(in.size(), true), count() {
      if (in.size() < 2) Refuse("it has no channels");
      RequireFixed(in[1], "the number of channels varies");
      dims[1] = false;
      count = g.Count(in, dims);
    }
    ir::Value Sum(const ir::Value& x) const {
      std::vector<int64_t> summed;
      for (size_t d = 0; d < dims.size(); ++d) {
        if (dims[d]) summed.push_back(static_cast<int64_t>(d));
      }
      ir::Words words;
      ir::AttributeWriter writer(words);
      writer.Int(1);
      writer.IntList(summed);
      writer.Int(0);  // keepdim
      writer.Int(0);  // no dtype
      return g.Make(ir::ops::sum_dim_IntList, {x}, std::move(words));
    }
    /// [channels] as [1, channels, 1, …].
    ir::Value Wide(const ir::Value& x) const {
      std::vector<int64_t> sizes(layout.size(), 1), strides(layout.size(), 1);
      sizes[1] = SizeOf(layout[1]);
      return g.View(x, sizes, strides);
    }
    ir::Value Add(const ir::Value& a, const ir::Value& b) const {
      return BoundedRules::Add(g, a, b);
    }
    ir::Value Sub(const ir::Value& a, const ir::Value& b) const {
      return g.Make(ir::ops::sub_Tensor, {a, b, MakeScalar(int64_t{1})});
    }
    ir::Value Mul(const ir::Value& a, const ir::Value& b) const {
      return g.Make(ir::ops::mul_Tensor, {a, b});
    }
    ir::Value Div(const ir::Value& a, const ir::Value& b) const {
      return g.Make(ir::ops::div_Tensor, {a, b});
    }
    ir::Value Zeroed(const ir::Value& x) const { return g.Masked({x, layout, true}, 0.0); }
  };

  static double Double(const G& g, std::string_view name) {
    return std::bit_cast<double>(g.node_->attributes()[g.Named(name).word]);
  }

  static void BatchNorm(G& g) {
    const Result& in = g.In(0);
    if (g.Has("training") && g.Int("training") == 0) {
      std::vector<BoundedLayout> layouts{in.layout};
      for (size_t i = 1; i < g.node_->num_outputs(); ++i)
        layouts.push_back(FixedLayout(g.node_->shape(i)->dims));
      const Channels checked(g, in.layout);
      g.Emit(g.Values(), g.node_->attributes(), layouts);
      return;
    }
    for (size_t i = 0; i < g.node_->operands().size(); ++i) {
      if (g.In(i).value.shape()->dtype != c10::ScalarType::Float)
        Refuse("batch normalization in another dtype has no rule");
    }
    const Channels c(g, in.layout);
    const ir::Value mean = c.Div(c.Sum(c.Zeroed(in.value)), c.count);
    const ir::Value centered = c.Zeroed(c.Sub(in.value, c.Wide(mean)));
    const ir::Value variance = c.Div(c.Sum(c.Mul(centered, centered)), c.count);
    const ir::Value inverse =
        g.Make(ir::ops::rsqrt, {c.Add(variance, MakeScalar(Double(g, "eps")))});
    ir::Value out = c.Mul(centered, c.Wide(inverse));
    if (const Result* weight = g.Tensor("weight")) out = c.Mul(out, c.Wide(weight->value));
    if (const Result* bias = g.Tensor("bias")) out = c.Add(out, c.Wide(bias->value));
    const BoundedLayout channels{in.layout[1]};
    g.Set(0, out, in.layout);
    g.Set(1, mean, channels);
    g.Set(2, inverse, channels);
    if (g.Has("training")) return;
    const double momentum = Double(g, "momentum");
    size_t next = 3;
    const auto move = [&](const Result* running, const ir::Value& to) {
      if (!running) return;
      g.Set(next++,
            c.Add(c.Mul(running->value, MakeScalar(1 - momentum)), c.Mul(to, MakeScalar(momentum))),
            channels);
    };
    double n = 1;
    for (size_t d = 0; d < in.layout.size(); ++d) {
      if (d != 1) n *= static_cast<double>(SizeOf(in.layout[d]));
    }
    move(g.Tensor("running_mean"), mean);
    move(g.Tensor("running_var"),
         c.Mul(variance, MakeScalarParameter(n / (n - 1), c10::ScalarType::Double, true)));
  }

  static void BatchNormBackward(G& g) {
    const Result &grad = *g.Tensor("grad_out"), &in = *g.Tensor("input");
    if (g.Int("train") == 0 || !g.Tensor("save_mean") || !g.Tensor("save_invstd"))
      Refuse("the gradient of batch normalization that does not train has no rule");
    for (size_t d = 0; d < in.layout.size(); ++d) {
      if (!Same(in.layout[d], grad.layout.at(d)))
        Refuse("its operands have different sizes that vary");
    }
    for (size_t i = 0; i < g.node_->operands().size(); ++i) {
      if (g.In(i).value.shape()->dtype != c10::ScalarType::Float)
        Refuse("batch normalization in another dtype has no rule");
    }
    const Channels c(g, in.layout);
    const ir::Value inverse = g.Tensor("save_invstd")->value;
    const ir::Value given = c.Zeroed(grad.value);
    const ir::Value normal =
        c.Zeroed(c.Mul(c.Sub(in.value, c.Wide(g.Tensor("save_mean")->value)), c.Wide(inverse)));
    const ir::Value of_bias = c.Sum(given), of_weight = c.Sum(c.Mul(given, normal));
    ir::Value scale = inverse;
    if (const Result* weight = g.Tensor("weight")) scale = c.Mul(scale, weight->value);
    const ir::Value of_input = c.Mul(c.Sub(c.Sub(given, c.Wide(c.Div(of_bias, c.count))),
                                           c.Mul(normal, c.Wide(c.Div(of_weight, c.count)))),
                                     c.Wide(scale));
    const BoundedLayout channels{in.layout[1]};
    if (g.node_->shape(0)) g.Set(0, of_input, in.layout);
    if (g.node_->shape(1)) g.Set(1, of_weight, channels);
    if (g.node_->shape(2)) g.Set(2, of_bias, channels);
  }

  // ---- Indices -------------------------------------------------------------------------------

  static void Embedding(G& g) {
    RequireFixed(g.In(0).layout, "the table's size varies");
    BoundedLayout layout = g.In(1).layout;
    layout.push_back(g.In(0).layout.at(1));
    g.Emit({g.In(0).value, g.Masked(g.In(1), int64_t{0})}, g.node_->attributes(), {layout});
  }

  static void EmbeddingBackward(G& g) {
    if (g.Int("scale_grad_by_freq") != 0) Refuse("it counts how often an index comes");
    const BoundedLayout& grad = g.In(0).layout;
    RequireFixed(grad.back(), "the table's size varies");
    RequireSame({grad.begin(), grad.end() - 1}, g.In(1).layout);
    g.Emit({g.Masked(g.In(0), 0.0), g.Masked(g.In(1), int64_t{0})}, g.node_->attributes(),
           {{FixedDim(g.Int("num_weights")), grad.back()}});
  }

  /// The layout of the elements of `self` that an index along the argument `dim` chooses.
  static BoundedLayout Chosen(G& g, const Result& self, const Result& index) {
    if (self.layout.empty() || index.layout.size() != 1) Refuse("it has another rank");
    const auto dim = static_cast<size_t>(g.Dim(g.Int("dim"), self.layout.size()));
    BoundedLayout layout = self.layout;
    layout[dim] = index.layout[0];
    return layout;
  }

  /// The dimension of the node's first operand along which its index counts.
  static const BoundedDim& Counted(G& g) {
    const BoundedLayout& layout = g.In(0).layout;
    return layout.at(static_cast<size_t>(g.Dim(g.Int("dim"), layout.size())));
  }

  static void IndexSelect(G& g) {
    const BoundedLayout chosen = Chosen(g, g.In(0), g.In(1));
    g.Emit({g.In(0).value, PlaceOf(g, g.Masked(g.In(1), int64_t{0}), Counted(g))},
           g.node_->attributes(), {chosen});
  }

  /// Padding is masked, so that it adds 0.
  static void IndexAdd(G& g) {
    const Result &self = g.In(0), &index = *g.Tensor("index"), &source = *g.Tensor("source");
    const BoundedLayout chosen = Chosen(g, self, index);
    RequireSame(source.layout, chosen);
    ir::Node::Operands operands = g.Values();
    operands[g.Named("index").operand] = PlaceOf(g, g.Masked(index, int64_t{0}), Counted(g));
    operands[g.Named("source").operand] =
        g.Masked(source, NumberOf(Neutral::kZero, source.value.shape()->dtype));
    g.Emit(std::move(operands), g.node_->attributes(), {self.layout});
  }

  /// The boundaries' padding lies above all numbers; an infinite one is counted again.
  static void Bucketize(G& g) {
    const size_t at = g.Named(g.Has("boundaries") ? "boundaries" : "sorted_sequence").operand;
    const Result &boundaries = g.In(at), &self = g.In(g.Named("self").operand);
    const BoundedLayout& in = boundaries.layout;
    if (in.size() > 1)
      RequireSame({in.begin(), in.end() - 1}, {self.layout.begin(), self.layout.end() - 1});
    if (!Varies(in.back())) return g.Emit(g.Values(), g.node_->attributes(), {self.layout});
    if (g.Has("sorter") && g.Tensor("sorter")) Refuse("a sorter has no rule");
    ir::Node::Operands operands = g.Values();
    operands[at] = g.Masked(Compact(g, boundaries, in.size() - 1),
                            NumberOf(Neutral::kMost, boundaries.value.shape()->dtype),
                            Only(in.size(), static_cast<int64_t>(in.size()) - 1));
    const ir::Value count = g.Make(g.node_->op(), std::move(operands), g.node_->attributes());
    g.Set(0, g.Make(ir::ops::minimum, {count, Number(SizeOf(in.back()), g.node_->shape()->dtype)}),
          self.layout);
  }

  /// The dimension along which an index of the same rank counts. Along the others it may have fewer
  /// elements than `self`: those at the beginning, as long as its bound is no longer.
  static size_t AlongIndex(G& g, const Result& self, const Result& index) {
    const size_t rank = self.layout.size();
    if (rank != index.layout.size() || rank == 0) Refuse("an index of a number has no rule");
    const auto dim = static_cast<size_t>(g.Dim(g.Int("dim"), rank));
    for (size_t d = 0; d < rank; ++d) {
      const BoundedDim &a = self.layout[d], &b = index.layout[d];
      if (d == dim || Same(a, b)) continue;
      if (a.size() > 1 || b.size() > 1 || BoundOf(b) > BoundOf(a))
        Refuse("its operands have different sizes that vary");
    }
    return dim;
  }

  static void Gather(G& g) {
    const Result &self = g.In(0), &index = g.In(1);
    AlongIndex(g, self, index);
    g.Emit({self.value, PlaceOf(g, g.Masked(index, int64_t{0}), Counted(g))}, g.node_->attributes(),
           {index.layout});
  }

  struct Indexed {
    ir::Node::Operands indices;
    BoundedLayout chosen;  // of the indices
    BoundedLayout layout;  // of what they select
  };
  /// Indices of integers for dimensions of `self`, without padding; with `repeats` their last one
  /// is in their padding, so that it is written again.
  static Indexed Indices(G& g, const Result& self, bool repeats = false) {
    const G::Argument& list = g.Named("indices");
    Indexed result;
    if (list.operands == 0) Refuse("it has no index");
    for (size_t i = 0; i < list.operands; ++i)
      result.chosen = Broadcast(result.chosen, g.In(1 + i).layout);
    size_t before = 0, last = 0;  // dimensions before the indices; the last one that has an index
    for (size_t d = 0, i = 0; d < list.present.size(); ++d) {
      if (!list.present[d]) {
        before += i == 0;
        continue;
      }
      const Result& index = g.In(1 + i++);
      if (index.value.shape()->dtype != c10::ScalarType::Long)
        Refuse("only int64 indices have a rule");
      if (d != before + i - 1) Refuse("indices of dimensions that lie apart have no rule");
      last = d;
      ir::Value value = index.value;
      const BoundedDim& dim = self.layout.at(d);
      if (Varies(dim)) {
        // A negative index counts from the end of the exact size, not of its bound.
        const ir::Value zero = MakeConstant(int64_t{0}, c10::ScalarType::Long, false);
        const ir::Value moved =
            Add(g, value, dim.size() == 1 ? g.SizeOfFactor(dim[0]) : Number(SizeOf(dim)));
        value =
            g.Make(ir::ops::where_self, {g.Make(ir::ops::lt_Tensor, {value, zero}), moved, value});
      }
      const Result found{value, index.layout, index.varies};
      result.indices.push_back(
          PlaceOf(g, repeats ? Repeated(g, found) : g.Masked(found, int64_t{0}), dim));
    }
    result.layout.assign(self.layout.begin(),
                         self.layout.begin() + static_cast<std::ptrdiff_t>(before));
    result.layout.insert(result.layout.end(), result.chosen.begin(), result.chosen.end());
    for (size_t d = last + 1; d < self.layout.size(); ++d) result.layout.push_back(self.layout[d]);
    return result;
  }

  static Dims Others(Dims dims) {
    dims.flip();
    return dims;
  }

  /// Writes along a dimension: padding writes the last elements again.
  static void IndexWrite(G& g) {
    const Result &self = g.In(0), &index = *g.Tensor("index");
    const BoundedLayout chosen = Chosen(g, self, index);
    ir::Node::Operands operands = g.Values();
    operands[g.Named("index").operand] = PlaceOf(g, Repeated(g, index), Counted(g));
    if (const Result* source = g.Has("source") ? g.Tensor("source") : nullptr) {
      RequireSame(source->layout, chosen);
      const auto dim = g.Dim(g.Int("dim"), self.layout.size());
      operands[g.Named("source").operand] = Repeated(g, *source, Only(self.layout.size(), dim));
    }
    g.Emit(std::move(operands), g.node_->attributes(), {self.layout});
  }

  /// Padding of an index adds 0, or writes what is there: the last elements again along `dim`, the
  /// elements of `self` elsewhere.
  template <bool adds>
  static void Scatter(G& g) {
    if (g.Has("reduce")) Refuse("it has no rule with a reduction");
    const size_t at = g.Named("index").operand;
    const Result &self = g.In(0), &index = g.In(at);
    const size_t dim = AlongIndex(g, self, index);
    ir::Node::Operands operands = g.Values();
    const Dims along = Only(index.layout.size(), static_cast<int64_t>(dim));
    operands[at] = adds ? index.value : Repeated(g, index, along);
    operands[at] = g.Masked({operands[at], index.layout, index.varies}, int64_t{0},
                            adds ? Dims(along.size(), true) : Others(along));
    operands[at] = PlaceOf(g, operands[at], self.layout[dim]);
    // Padding along another dimension may lie where `self` has elements that count.
    Dims within(along.size());
    for (size_t d = 0; d < within.size(); ++d)
      within[d] = d != dim && !Same(self.layout[d], index.layout[d]);
    if (const Result* source = g.Has("src") ? g.Tensor("src") : nullptr) {
      RequireSame(source->layout, index.layout);
      ir::Value& given = operands[g.Named("src").operand];
      given = adds ? g.Masked(*source, NumberOf(Neutral::kZero, source->value.shape()->dtype))
                   : Repeated(g, *source, along);
      if (!adds && AnyVaries(index.layout, within)) {
        ir::Words words;
        ir::AttributeWriter writer(words);
        writer.Int(static_cast<int64_t>(dim));
        writer.Int(0);  // sparse_grad
        const ir::Value old = g.Make(ir::ops::gather, {self.value, operands[at]}, std::move(words));
        given = g.Where({given, index.layout, true}, old, within);
      }
    } else if (adds || AnyVaries(index.layout, within)) {
      Refuse("what its padding writes has no rule");
    }
    g.Emit(std::move(operands), g.node_->attributes(), {self.layout});
  }

  /// Flips and rolls: an index of each element, with the size as a number of the program.
  static void Moved(G& g) {
    const Result& in = g.In(0);
    const bool rolls = g.Has("shifts");
    const auto dims = g.Ints("dims"), shifts = rolls ? g.Ints("shifts") : c10::IntArrayRef{};
    if (dims.empty()) return Along(g);
    ir::Value value = in.value;
    for (size_t i = 0; i < dims.size(); ++i) {
      const auto dim = static_cast<size_t>(g.Dim(dims[i], in.layout.size()));
      const BoundedDim& along = in.layout.at(dim);
      if (!Varies(along)) {
        ir::Words words;
        ir::AttributeWriter writer(words);
        if (rolls) writer.IntList({shifts[i]});
        writer.IntList({dims[i]});
        value = g.Make(g.node_->op(), {value}, std::move(words));
        continue;
      }
      const ir::Value iota = g.Iota(BoundOf(along)), one = MakeScalar(int64_t{1});
      const ir::Value place =
          rolls ? g.Make(ir::ops::remainder_Tensor,
                         {g.Make(ir::ops::sub_Tensor, {iota, Number(shifts[i]), one}),
                          Number(SizeOf(along))})
                : g.Make(ir::ops::maximum,
                         {g.Make(ir::ops::sub_Tensor, {Number(SizeOf(along) - 1), iota, one}),
                          MakeConstant(int64_t{0}, c10::ScalarType::Long, false)});
      const Result whole = Compact(g, {value, in.layout, true}, dim);
      value = Spread(g, Select(g, whole.value, dim, place), dim, along);
    }
    g.Set(0, value, in.layout);
  }

  /// The array with its last elements in its padding.
  static ir::Value Repeated(G& g, const Result& of, const Dims& dims) {
    BoundedLayout factors;  // a dimension for each
    Dims repeats;
    for (size_t d = 0; d < dims.size(); ++d) {
      if (of.layout[d].empty()) factors.emplace_back();
      for (const Factor& factor : of.layout[d]) factors.push_back({factor});
      repeats.resize(factors.size(), dims[d]);
    }
    const bool splits = factors.size() != dims.size();
    ir::Value value = splits ? Contiguous(g, of.value, BoundsOf(factors)) : of.value;
    for (size_t i = 0; i < factors.size(); ++i) {
      if (!repeats[i] || !Varies(factors[i])) continue;
      const ir::Value last = Number(SizeOf(factors[i]) - 1);
      value = Select(g, value, i, g.Make(ir::ops::minimum, {g.Iota(BoundOf(factors[i])), last}));
    }
    return splits ? Contiguous(g, value, BoundsOf(of.layout)) : value;
  }
  static ir::Value Repeated(G& g, const Result& of) {
    return Repeated(g, of, Dims(of.layout.size(), true));
  }

  /// Linear algebra on the matrices of a batch. Padding repeats the last one, since other matrices
  /// may have no result.
  static void EachMatrix(G& g) {
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
    for (size_t i = 0; i < g.node_->num_outputs(); ++i) {
      const ir::ShapeRef shape = g.node_->shape(i);
      layouts.push_back(shape ? FixedLayout(shape->dims) : BoundedLayout{});
      if (!shape || shape->numel == 0) continue;
      if (layouts[i].size() < batch.size()) Refuse("it has no batch");
      std::ranges::copy(batch, layouts[i].begin());
    }
    g.Emit(std::move(operands), g.node_->attributes(), layouts);
  }

  /// Distances between the rows of two arrays, and their gradient.
  static void Distances(G& g) {
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
    g.Emit(std::move(operands), g.node_->attributes(), {backward ? rows : layout});
  }

  static void Index(G& g) {
    Indexed found = Indices(g, g.In(0));
    found.indices.insert(found.indices.begin(), g.In(0).value);
    g.Emit(std::move(found.indices), g.node_->attributes(), {found.layout});
  }

  /// Padding adds 0, or writes the last elements again.
  static void IndexPut(G& g) {
    const bool adds = g.Int("accumulate") != 0;
    const Result &self = g.In(0), &values = *g.Tensor("values");
    Indexed found = Indices(g, self, !adds);
    const c10::Scalar zero = NumberOf(Neutral::kZero, self.value.shape()->dtype);
    if (values.layout.size() != 0) RequireSame(values.layout, found.layout);
    if (adds && values.layout.empty() && Varies(found.chosen)) Refuse("its values are broadcast");
    found.indices.insert(found.indices.begin(), self.value);
    found.indices.push_back(adds ? g.Masked(values, zero) : Repeated(g, values));
    g.Emit(std::move(found.indices), g.node_->attributes(), {self.layout});
  }

  /// The gradient of x[…, index, …] and of a slice.
  static void PartBackward(G& g) {
    const bool slices = g.Has("start");
    const BoundedLayout made = g.MadeLayout(0);
    const auto dim = static_cast<size_t>(g.Dim(g.Int("dim"), made.size()));
    const Result& grad = g.In(0);
    ir::Words words = g.node_->attributes();
    for (size_t d = 0; d < made.size(); ++d)
      words[g.Named("input_sizes").word + d] = static_cast<uint64_t>(BoundOf(made[d]));
    for (size_t d = 0; d < made.size(); ++d) {
      if (d == dim) continue;
      const BoundedDim& given = grad.layout.at(slices || d < dim ? d : d - 1);
      if (!Same(given, made[d])) Refuse("its gradient has another varying size");
    }
    const int64_t size = SizeOf(made[dim]);
    if (made[dim].size() > 1) Refuse("it takes apart several sizes");
    if (!slices) {
      const int64_t index = g.Int("index");
      if (!Varies(made[dim])) {
        g.Emit(g.Values(), std::move(words), {made});
        return;
      }
      // The index is a parameter of the program, since it may differ from size to size.
      std::vector<int64_t> sizes(made.size(), 1), ones(made.size(), 1);
      sizes[dim] = BoundOf(made[dim]);
      const ir::Value place = Number(index < 0 ? index + size : index);
      const ir::Value is_there =
          g.View(g.Make(ir::ops::eq_Tensor, {g.Iota(sizes[dim]), place}), sizes, ones);
      std::vector<int64_t> bounds = BoundsOf(made);
      const std::vector<int64_t> whole = bounds;
      bounds[dim] = 1;
      g.Set(
          0,
          Expand(g.Make(ir::ops::where_self, {is_there, Contiguous(g, grad.value, bounds),
                                              MakeConstant(0.0, grad.value.shape()->dtype, false)}),
                 whole),
          made);
      return;
    }
    if (g.Int("step") != 1) Refuse("a slice with steps has no rule");
    int64_t start = g.Int("start");
    if (start < 0) start += size;
    start = std::clamp<int64_t>(start, 0, size);
    const int64_t bound = BoundOf(grad.layout[dim]);
    if (start + bound > BoundOf(made[dim])) Refuse("its gradient has another varying size");
    words[g.Named("start").word] = static_cast<uint64_t>(start);
    words[g.Named("end").word] = static_cast<uint64_t>(start + bound);
    // The gradient's padding may fall on valid elements of the result, so it must be 0.
    g.Emit({g.Masked(grad, 0.0, Only(grad.layout.size(), static_cast<int64_t>(dim)))},
           std::move(words), {made});
  }

  /// Concatenates arrays of different varying sizes, such as a cache and its newest tokens: each
  /// element moves forward by the padding of the arrays before it.
  static void Behind(G& g, size_t dim, BoundedLayout layout) {
    if (!g.ResultVaries(0, dim)) Refuse("arrays of varying sizes are put behind each other");
    int64_t bounds = 0;
    for (size_t i : Parts(g)) {
      const BoundedDim& in = g.In(i).layout[dim];
      if (Varies(in) && in.size() > 1) Refuse("arrays of several sizes are put behind each other");
      bounds += BoundOf(in);
    }
    BoundedDim made = g.Made(0, dim);
    if (!Varies(made)) {
      const int64_t size = g.node_->shape()->dims[dim];
      made = {{size, bounds, g.varying_.first[g.shapes_.begin[g.position_]]->dims[dim], true}};
    }
    if (made.size() > 1) Refuse("arrays of several sizes are put behind each other");
    layout[dim] = made;
    const ir::Value place = g.Iota(BoundOf(made));
    ir::Value index = place;
    int64_t size = 0, bound = 0;
    for (size_t i : Parts(g)) {
      const BoundedDim& in = g.In(i).layout[dim];
      if (bound > 0) {
        const ir::Value moved = Add(g, place, Number(bound - size));
        index = g.Make(ir::ops::where_self,
                       {g.Make(ir::ops::lt_Tensor, {place, Number(size)}), index, moved});
      }
      size += SizeOf(in), bound += BoundOf(in);
    }
    const ir::Value last = MakeConstant(bounds - 1, c10::ScalarType::Long, false);
    index = g.Make(ir::ops::minimum, {index, last});
    const ir::Value all = g.Make(ir::ops::cat, g.Values(), g.node_->attributes());
    g.Set(0, Select(g, all, dim, index), layout);
  }

  /// The operands of a concatenation without empty 1-D tensors, which fit tensors of any rank.
  static std::vector<size_t> Parts(const G& g) {
    std::vector<size_t> parts;
    for (size_t i = 0; i < g.node_->operands().size(); ++i) {
      const BoundedLayout& in = g.In(i).layout;
      if (in.size() != 1 || SizeOf(in[0]) != 0 || g.node_->shape()->rank() == 1) parts.push_back(i);
    }
    return parts;
  }

  static void Concatenate(G& g) {
    const std::vector<size_t> parts = Parts(g);
    BoundedLayout layout = g.In(parts.at(0)).layout;
    const auto dim = static_cast<size_t>(g.Dim(g.Int("dim"), layout.size()));
    const BoundedDim one = layout.at(dim);
    int64_t size = 0;
    bool equal = true, varies = false;
    for (size_t i : parts) {
      const BoundedLayout& in = g.In(i).layout;
      if (in.size() != layout.size()) Refuse("it has an operand of another rank");
      for (size_t d = 0; d < in.size(); ++d) {
        if (d != dim && !Same(in[d], layout[d]))
          Refuse("its operands have different sizes that vary");
      }
      varies |= Varies(in[dim]);
      equal &= Same(in[dim], one);
      size += SizeOf(in[dim]);
    }
    if (varies && !equal) return Behind(g, dim, std::move(layout));
    layout[dim] = FixedDim(varies ? static_cast<int64_t>(parts.size()) : size);
    if (varies) {
      for (const Factor& factor : one) AddFactor(layout[dim], factor);
    }
    g.Emit(g.Values(), g.node_->attributes(), {layout});
  }

  /// The last two dimensions must each be one factor, so that indices along them stay valid.
  static void Triangle(G& g) {
    const BoundedLayout& in = g.In(0).layout;
    if (in.size() < 2 || in[in.size() - 1].size() > 1 || in[in.size() - 2].size() > 1)
      Refuse("it goes along several sizes");
    g.Emit(g.Values(), g.node_->attributes(), {in});
  }

  // ---- Losses --------------------------------------------------------------------------------

  static void NllLoss(G& g) {
    const bool backward = g.Has("grad_output");
    ir::Node::Operands operands = g.Values();
    const G::Argument &self = g.Named("self"), &target = g.Named("target");
    const BoundedLayout& in = g.In(self.operand).layout;
    if (in.size() < 2) Refuse("a loss of one row has no rule");
    if (const Result* weight = g.Tensor("weight")) RequireSame(weight->layout, {in[1]});
    BoundedLayout rows = in;
    rows.erase(rows.begin() + 1);
    RequireSame(g.In(target.operand).layout, rows);
    if (const Result* weight = g.Tensor("weight"))
      operands[g.Named("weight").operand] = g.Masked(*weight, 0.0);
    // Padding is a label that is ignored.
    operands[self.operand] = g.Masked(g.In(self.operand), 0.0);
    operands[target.operand] = g.Masked(g.In(target.operand), g.Int("ignore_index"));
    if (backward) {
      if (g.Int("reduction") == 0) {
        RequireSame(g.In(0).layout, rows);
        operands[0] = g.Masked(g.In(0), 0.0);
      }
      g.Emit(std::move(operands), g.node_->attributes(), {in});
      return;
    }
    const BoundedLayout each = g.Int("reduction") == 0 ? rows : BoundedLayout{};
    g.Emit(std::move(operands), g.node_->attributes(), {each, {}});
  }

  /// Elementwise losses that are 0 where both operands are 0.
  static void PairLoss(G& g) {
    const Result &self = *g.Tensor("self"), &target = *g.Tensor("target");
    BoundedLayout layout = Broadcast(self.layout, target.layout);
    if (const Result* weight = g.Has("weight") ? g.Tensor("weight") : nullptr)
      layout = Broadcast(layout, weight->layout);
    const int64_t reduction = g.Int("reduction");
    const size_t a = g.Named("self").operand, b = g.Named("target").operand;
    ir::Node::Operands operands = g.Values();
    if (g.Has("grad_output")) {
      if (reduction == 1) {
        ir::Words words = g.node_->attributes();
        words[g.Named("reduction").word] = 2;
        const c10::ScalarType dtype = operands[0].shape()->dtype;
        operands[0] = lazy::Cast(
            g.Make(ir::ops::div_Tensor, {operands[0], g.Count(layout, Dims(layout.size(), true))}),
            dtype);
        g.Emit(std::move(operands), std::move(words), {layout});
        return;
      }
      if (reduction == 0) Broadcast(g.In(0).layout, layout);
      g.Emit(std::move(operands), g.node_->attributes(), {layout});
      return;
    }
    if (reduction == 0) {
      g.Emit(std::move(operands), g.node_->attributes(), {layout});
      return;
    }
    if (self.layout.size() != target.layout.size()) Refuse("its operands are broadcast");
    for (size_t d = 0; d < layout.size(); ++d) {
      if (!Same(self.layout[d], target.layout[d])) Refuse("its operands are broadcast");
    }
    operands[a] = g.Masked(self, 0.0);
    operands[b] = g.Masked(target, 0.0);
    if (const Result* weight = g.Has("weight") ? g.Tensor("weight") : nullptr)
      operands[g.Named("weight").operand] = g.Masked(*weight, 0.0);
    if (reduction == 2) {
      g.Emit(std::move(operands), g.node_->attributes(), {BoundedLayout{}});
      return;
    }
    const c10::ScalarType dtype = g.node_->shape()->dtype;
    if (IsHalf(dtype)) {
      operands[a] = lazy::Cast(operands[a], c10::ScalarType::Float);
      operands[b] = lazy::Cast(operands[b], c10::ScalarType::Float);
    }
    ir::Words words = g.node_->attributes();
    words[g.Named("reduction").word] = 2;
    const ir::Value sum = g.Make(g.node_->op(), std::move(operands), std::move(words));
    g.Set(0,
          lazy::Cast(g.Make(ir::ops::div_Tensor, {sum, g.Count(layout, Dims(layout.size(), true))}),
                     dtype),
          {});
  }

  // ---- Recurrent layers ----------------------------------------------------------------------

  /// `gates` with its padded time steps replaced: by `gate` in the columns of the second gate, and
  /// by `other` in the columns of the other two or three gates.
  static ir::Value GatesAfterEnd(G& g, const Result& gates, int64_t hidden, double gate,
                                 double other) {
    if (gates.value.shape()->dtype != c10::ScalarType::Float)
      Refuse("recurrent layers in another dtype have no rule");
    const auto number = [](const c10::Scalar& value, c10::ScalarType dtype) {
      return MakeConstant(value, dtype, false);
    };
    const int64_t all = SizeOf(gates.layout[2]);
    const ir::Value place = g.Iota(all);
    const ir::Value second =
        g.Make(ir::ops::logical_and,
               {g.Make(ir::ops::ge_Tensor, {place, number(hidden, c10::ScalarType::Long)}),
                g.Make(ir::ops::lt_Tensor, {place, number(2 * hidden, c10::ScalarType::Long)})});
    const ir::Value padding = g.Make(
        ir::ops::where_self,
        {second, number(gate, c10::ScalarType::Float), number(other, c10::ScalarType::Float)});
    const BoundedDim& time = gates.layout[0];
    const ir::Value within = g.View(g.IsWithin(time), {BoundOf(time), 1, 1}, {1, 1, 1});
    return g.Make(ir::ops::where_self,
                  {within, gates.value, g.View(padding, {1, 1, all}, {1, 1, 1})});
  }

  static constexpr int64_t kLstmCell = 0, kGruCell = 1;

  /// Samples are independent. The gates of padded time steps are set to keep the last state.
  static void RecurrentLayer(G& g) {
    const bool backward = g.Has("grad");
    const size_t first = g.Named(backward ? "grad" : "gates").operand;
    const Result& in = g.In(first);
    const BoundedDim time = in.layout.at(0), samples = in.layout.at(1);
    RequireFixed(in.layout[2], "the number of features varies");
    const int64_t kind = g.Int("kind");
    ir::Node::Operands operands = g.Values();
    for (size_t i = 0; i < operands.size(); ++i) {
      const BoundedLayout& layout = g.In(i).layout;
      const bool is_weight =
          i == g.Named("weight").operand || (!backward && i == g.Named("bias").operand);
      if (is_weight) {
        RequireFixed(layout, "weights vary");
      } else if (layout.size() == 3) {
        RequireSame({layout[0], layout[1]}, {time, samples});
      } else if (!Same(layout.at(0), samples)) {
        Refuse("its operands have different sizes that vary");
      }
    }
    if (Varies(time)) {
      if (g.Int("reverse") != 0) Refuse("it goes backwards along a varying size");
      if (time.size() > 1) Refuse("it goes along several sizes");
      const bool has_gate = kind == kLstmCell || kind == kGruCell;
      const int64_t hidden = g.In(g.Named("hidden").operand).value.shape()->dims[1];
      if (!backward && has_gate)
        operands[first] = GatesAfterEnd(g, in, hidden, /*gate=*/1e9, /*other=*/-1e9);
      for (size_t i = 0; backward && i < operands.size(); ++i) {
        if (g.In(i).layout.size() == 3) operands[i] = g.Masked(g.In(i), 0.0, Only(3, 0));
      }
      if (backward && has_gate) {
        const size_t kept = g.Named("states").operand + 1;
        operands[kept] = GatesAfterEnd(g, g.In(kept), hidden, /*gate=*/1, /*other=*/0);
      }
    }
    ir::OutputShapes shapes;
    std::vector<BoundedLayout> layouts;
    for (size_t i = 0; i < g.node_->num_outputs(); ++i) {
      const ir::ShapeRef shape = g.node_->shape(i);
      if (!shape) Refuse("a result is missing");
      layouts.push_back(shape->rank() == 3 ? BoundedLayout{time, samples, FixedDim(shape->dims[2])}
                                           : BoundedLayout{samples, FixedDim(shape->dims.at(1))});
      shapes.shapes.push_back(ir::GetShape(shape->dtype, BoundsOf(layouts.back())));
    }
    const ir::NodePtr node = MakeOpNode(&g.node_->op(), std::move(operands), g.node_->attributes(),
                                        [&] { return shapes; });
    node->set_location(g.node_->location());
    for (size_t i = 0; i < layouts.size(); ++i)
      g.Set(i, {node, static_cast<uint32_t>(i)}, layouts[i]);
  }

  // ---- StableHLO -----------------------------------------------------------------------------

  /// Whether a line of StableHLO fits any size: it is elementwise, or reads only the first element.
  static bool IsOfAnySize(std::string_view line) {
    static const auto& allowed = *new std::regex(
        "\\s*(module |func\\.func public |return |\\}|$|%[\\d:]+ = \"stablehlo\\."
        "(optimization_barrier\"|compare\"|or\"|select\"|"
        "constant\"\\(\\) \\{value = dense<[-+.\\w]+>|"
        "broadcast_in_dim\"\\(%\\d+\\) \\{broadcast_dimensions = array<i64>\\}|"
        "slice\"\\(%\\w+\\) \\{start_indices = array<i64: 0(, 0)*>, limit_indices = array<i64: 1(, "
        "1)*>|"
        "reshape\"\\(%\\d+\\) : \\(tensor<(1x)+[a-z]\\w*>\\)))");
    line = line.substr(0, 240);  // std::regex recurses by the line's length
    return std::regex_search(line.begin(), line.end(), allowed,
                             std::regex_constants::match_continuous);
  }

  /// StableHLO text such as barriers: the sizes of the operands in it are replaced by their bounds.
  static void Text(G& g) {
    const size_t begin = g.Named("text").word;
    const ir::Words& words = g.node_->attributes();
    const std::string_view text(reinterpret_cast<const char*>(words.data() + begin),
                                words[begin - 1]);
    if (text.find("stablehlo.while") != text.npos) Refuse("a loop on the device is for its sizes");
    for (std::string_view rest = text; !rest.empty();) {
      const size_t end = std::min(rest.find('\n'), rest.size());
      if (!IsOfAnySize(rest.substr(0, end))) Refuse("its text is for one size");
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    const auto join = [](c10::IntArrayRef sizes) {
      std::string joined;
      for (int64_t size : sizes) joined += std::to_string(size) + "x";
      return joined;
    };
    std::unordered_map<std::string, const BoundedLayout*> layouts;
    for (size_t i = 0; i < g.node_->operands().size(); ++i) {
      const BoundedLayout& layout = g.In(i).layout;
      const auto [it, is_new] =
          layouts.emplace(join(g.node_->operands()[i].shape()->dims), &layout);
      if (!is_new) RequireSame(*it->second, layout);
    }
    std::string bounded;
    constexpr std::string_view kTensor = "tensor<";
    for (size_t at = 0; at < text.size();) {
      const size_t found = std::min(text.find(kTensor, at), text.size());
      const size_t dims = std::min(found + kTensor.size(), text.size());
      bounded += text.substr(at, dims - at);
      at = std::min(text.find_first_not_of("0123456789x", dims), text.size());
      const std::string exact(text.substr(dims, at - dims));
      const auto layout = layouts.find(exact);
      bounded += layout == layouts.end() ? exact : join(BoundsOf(*layout->second));
    }
    ir::Words changed;
    ir::AttributeWriter writer(changed);
    writer.String(bounded);
    writer.Int(static_cast<int64_t>(g.node_->operands().size()));
    std::vector<BoundedLayout> results;
    for (size_t i = 0; i < g.node_->num_outputs(); ++i) {
      const auto layout = layouts.find(join(g.node_->shape(i)->dims));
      results.push_back(layout == layouts.end() ? FixedLayout(g.node_->shape(i)->dims)
                                                : *layout->second);
    }
    g.Emit(g.Values(), std::move(changed), results);
  }

  // ---- Images --------------------------------------------------------------------------------

  static void RequireBatch(const BoundedLayout& layout, size_t from = 1) {
    for (size_t d = from; d < layout.size(); ++d)
      RequireFixed(layout[d], "the size of images varies");
  }

  static BoundedLayout WithBatch(const G& g, size_t result, const BoundedDim& batch) {
    BoundedLayout layout = FixedLayout(g.node_->shape(result)->dims);
    layout[0] = batch;
    return layout;
  }

  /// The dimensions of images, which are the last ones.
  static Dims Spatial(const BoundedLayout& layout, size_t from) {
    Dims dims(layout.size());
    std::fill(dims.begin() + static_cast<std::ptrdiff_t>(from), dims.end(), true);
    return dims;
  }

  /// The layout of windows over images of varying sizes: their number in images that are bounded is
  /// the bound.
  static BoundedLayout Windows(const G& g, const ir::Value& made, BoundedLayout layout,
                               size_t from) {
    const ir::ShapeRef exact = g.node_->shape(), bounded = made.shape();
    for (size_t d = from; d < layout.size(); ++d) {
      if (!Varies(layout[d])) {
        layout[d] = FixedDim(exact->dims[d]);
        continue;
      }
      layout[d] = Longer(g, layout[d], d, 0);
      layout[d][0].size = exact->dims[d], layout[d][0].bound = bounded->dims[d];
    }
    return layout;
  }

  static void Convolution(G& g) {
    const Result& in = g.In(0);
    RequireFixed(g.In(1).layout, "the kernel's size varies");
    if (in.layout.size() < 3) Refuse("it has no batch");
    RequireFixed(in.layout[1], "the number of channels varies");
    ir::Node::Operands operands = g.Values();
    operands[0] = g.Masked(in, 0.0, Spatial(in.layout, 2));
    const ir::Value made = g.Make(g.node_->op(), std::move(operands), g.node_->attributes());
    BoundedLayout layout = Windows(g, made, in.layout, 2);
    layout[1] = FixedDim(g.node_->shape()->dims[1]);
    g.Set(0, made, layout);
  }

  static void ConvolutionBackward(G& g) {
    const Result &grad = g.In(0), &in = g.In(1);
    RequireFixed(g.In(2).layout, "the kernel's size varies");
    RequireFixed(in.layout.at(1), "the number of channels varies");
    if (!Same(grad.layout.at(0), in.layout[0]))
      Refuse("its operands have different sizes that vary");
    // The gradient has to lie as the forward's result.
    const ir::Words& words = g.node_->attributes();
    ir::Words forward{0};  // no bias
    for (size_t i = g.Named("stride").word - 1; i <= g.Named("groups").word; ++i)
      forward.push_back(words[i]);
    const ir::Value made =
        g.Make(ir::ops::convolution, {in.value, g.In(2).value}, std::move(forward));
    if (made.shape() != grad.value.shape()) Refuse("its operands have different sizes that vary");
    ir::Node::Operands operands = g.Values();
    operands[0] = g.Masked(grad, 0.0);
    operands[1] = g.Masked(in, 0.0);
    std::vector<BoundedLayout> layouts{in.layout};
    for (size_t i = 1; i < g.node_->num_outputs(); ++i) {
      const ir::ShapeRef shape = g.node_->shape(i);
      layouts.push_back(shape ? FixedLayout(shape->dims) : BoundedLayout{});
    }
    g.Emit(std::move(operands), words, layouts);
  }

  /// Operations on each image, channel by channel.
  template <size_t spatial>
  static void EachImage(G& g) {
    const size_t rank = g.In(0).layout.size();
    if (rank <= spatial || rank > spatial + 2) Refuse("it has no batch");
    // A grid has no channels, and its gradient is a sum over them.
    const size_t lead = g.Has("grid") ? 1 : rank - spatial;
    BoundedLayout batch(lead);
    for (size_t i = 0; i < g.node_->operands().size(); ++i) {
      const BoundedLayout& in = g.In(i).layout;
      if (in.size() != rank) Refuse("it has no batch");
      RequireBatch(in, lead);
      for (size_t d = 0; d < lead; ++d) batch[d] = Joined(batch[d], in[d]);
    }
    std::vector<BoundedLayout> layouts;
    for (size_t i = 0; i < g.node_->num_outputs(); ++i) {
      const ir::ShapeRef shape = g.node_->shape(i);
      layouts.push_back(shape ? FixedLayout(shape->dims) : BoundedLayout{});
      if (shape) std::ranges::copy(batch, layouts[i].begin());
    }
    ir::Node::Operands operands = g.Values();
    if (g.Has("indices")) {
      const size_t indices = g.Named("indices").operand;
      operands[indices] = g.Masked(g.In(indices), int64_t{0});
    }
    ir::Words words = g.node_->attributes();
    for (size_t d = 0; g.Has("input_size") && d < lead; ++d)
      words[g.Named("input_size").word + d] = static_cast<uint64_t>(BoundOf(batch[d]));
    g.Emit(std::move(operands), std::move(words), layouts);
  }

  /// Pools, and their gradients; images may have varying sizes, but for an index that counts along
  /// several dimensions.
  template <size_t spatial, Neutral neutral, const ir::OpSpec& forward>
  static void Pool(G& g) {
    const Result& in = *g.Tensor("self");
    const size_t from = in.layout.size() - spatial;
    const BoundedLayout images(in.layout.begin() + static_cast<std::ptrdiff_t>(from),
                               in.layout.end());
    if (!Varies(images)) return EachImage<spatial>(g);
    if (neutral == Neutral::kZero) {
      // Elsewhere the count of elements depends on where the image ends.
      const bool pads = std::ranges::any_of(g.Ints("padding"), [](int64_t p) { return p != 0; });
      if (!g.Named("divisor_override").given &&
          (g.Int("ceil_mode") != 0 || (pads && g.Int("count_include_pad") == 0)))
        Refuse("it counts the elements of windows at a varying size");
    } else {
      for (size_t d = 1; d < spatial; ++d) {
        if (Varies(images[d]) && SizeOf(images[d - 1]) != 1)
          Refuse("its indices count elements of a varying size");
      }
    }
    const ir::Value masked =
        g.Masked(in, NumberOf(neutral, in.value.shape()->dtype), Spatial(in.layout, from));
    const ir::NodePtr made = MakeOpNode(&forward, {masked}, g.node_->attributes());
    made->set_location(g.node_->location());
    if (g.Has("grad_output")) {
      // The gradient has to lie as the forward's result.
      if (made->shape(0) != g.In(0).value.shape())
        Refuse("its operands have different sizes that vary");
      ir::Node::Operands operands = g.Values();
      for (size_t i = 0; i < operands.size(); ++i) {
        if (&g.In(i) != &in)
          operands[i] = g.Masked(g.In(i), NumberOf(Neutral::kZero, operands[i].shape()->dtype));
      }
      g.Emit(std::move(operands), g.node_->attributes(), {in.layout});
      return;
    }
    const BoundedLayout layout = Windows(g, {made, 0}, in.layout, from);
    for (size_t i = 0; i < g.node_->num_outputs(); ++i)
      g.Set(i, {made, static_cast<uint32_t>(i)}, layout);
  }

  /// Blocks of images as columns, and the reverse.
  static void Columns(G& g) {
    const BoundedLayout& in = g.In(0).layout;
    if (in.size() + g.node_->shape()->rank() != 7) Refuse("it has no batch");
    RequireBatch(in);
    g.Emit(g.Values(), g.node_->attributes(), {WithBatch(g, 0, in[0])});
  }
};

namespace {

using Rules = std::unordered_map<std::string_view, BoundedRule>;

using Row = std::pair<BoundedRule, std::initializer_list<std::string_view>>;

Rules ByName(std::initializer_list<Row> table) {
  Rules rules;
  for (const auto& [rule, names] : table) {
    for (std::string_view name : names) rules.emplace(name, rule);
  }
  return rules;
}

const Rules& AllRules() {
  using R = BoundedRules;
  using N = R::Neutral;
  static const auto& rules = *new Rules(ByName({
      {&R::Cast, {"xla::cast"}},
      {&R::AsStrided, {"aten::as_strided"}},
      {&R::ExpandNode, {"aten::expand"}},
      {&R::Repeat, {"aten::repeat"}},
      {&R::Bitcast, {"xla::bitcast"}},
      {&R::ViewUpdate, {"xla::as_strided_view_update"}},
      {&R::Reduce<N::kZero>, {"aten::sum", "aten::any"}},
      {&R::Reduce<N::kOne>, {"aten::prod", "aten::all"}},
      {&R::Reduce<N::kLeast>, {"aten::amax", "aten::logsumexp"}},
      {&R::Reduce<N::kMost>, {"aten::amin"}},
      {&R::LeastAndMost, {"aten::aminmax"}},
      {&R::Reduce<N::kLeast, true>, {"aten::max", "aten::argmax"}},
      {&R::Reduce<N::kMost, true>, {"aten::min", "aten::argmin"}},
      {&R::Mean, {"aten::mean"}},
      {&R::Norm, {"aten::linalg_vector_norm"}},
      {&R::Variance<false>, {"aten::var", "aten::var_mean"}},
      {&R::Variance<true>, {"aten::std", "aten::std_mean"}},
      {&R::Cumulative<N::kZero>, {"aten::cumsum"}},
      {&R::Cumulative<N::kOne>, {"aten::cumprod"}},
      {&R::Cumulative<N::kLeast>, {"aten::cummax", "aten::logcumsumexp"}},
      {&R::Cumulative<N::kMost>, {"aten::cummin"}},
      {&R::Sorted, {"aten::sort"}},
      {&R::Histogram, {"aten::histc"}},
      {&R::Along,
       {"aten::topk", "aten::kthvalue", "aten::median", "aten::nanmedian", "aten::mode",
        "aten::_fft_c2c", "aten::_fft_r2c", "aten::_fft_c2r", "aten::glu", "aten::glu_backward"}},
      {&R::Moved, {"aten::roll", "aten::flip"}},
      {&R::Pad, {"aten::constant_pad_nd"}},
      {&R::Softmax, {"aten::_softmax", "aten::_safe_softmax", "aten::_log_softmax"}},
      {&R::SoftmaxBackward, {"aten::_softmax_backward_data", "aten::_log_softmax_backward_data"}},
      {&R::Product, {"aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm", "aten::addbmm"}},
      {&R::VectorProduct, {"aten::mv", "aten::addmv", "aten::addr", "aten::dot", "aten::vdot"}},
      {&R::Attention,
       {"aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward"}},
      {&R::LayerNorm, {"aten::native_layer_norm"}},
      {&R::LayerNormBackward, {"aten::native_layer_norm_backward"}},
      {&R::GroupNorm, {"aten::native_group_norm", "aten::native_group_norm_backward"}},
      {&R::BatchNorm, {"xla::batch_norm", "aten::native_batch_norm"}},
      {&R::BatchNormBackward, {"aten::native_batch_norm_backward"}},
      {&R::Embedding, {"aten::embedding"}},
      {&R::EmbeddingBackward, {"aten::embedding_dense_backward"}},
      {&R::IndexSelect, {"aten::index_select"}},
      {&R::IndexAdd, {"aten::index_add"}},
      {&R::IndexWrite, {"aten::index_copy", "aten::index_fill"}},
      {&R::Bucketize, {"aten::bucketize", "aten::searchsorted"}},
      {&R::Gather, {"aten::gather"}},
      {&R::Index, {"aten::index"}},
      {&R::IndexPut, {"aten::index_put"}},
      {&R::Scatter<false>, {"aten::scatter"}},
      {&R::Scatter<true>, {"aten::scatter_add"}},
      {&R::PartBackward, {"aten::select_backward", "aten::slice_backward"}},
      {&R::Concatenate, {"aten::cat"}},
      {&R::Triangle, {"aten::tril", "aten::triu"}},
      {&R::NllLoss,
       {"aten::nll_loss_forward", "aten::nll_loss_backward", "aten::nll_loss2d_forward",
        "aten::nll_loss2d_backward"}},
      {&R::PairLoss,
       {"aten::binary_cross_entropy", "aten::binary_cross_entropy_backward", "aten::mse_loss",
        "aten::mse_loss_backward", "aten::smooth_l1_loss", "aten::smooth_l1_loss_backward",
        "aten::huber_loss", "aten::huber_loss_backward"}},
      {&R::Text, {"torch_xla::stablehlo"}},
      {&R::Distances, {"aten::_cdist_forward", "aten::_cdist_backward"}},
      {&R::EachMatrix,
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
      {&R::RecurrentLayer, {"xla::recurrent", "xla::recurrent_backward"}},
      {&R::Columns, {"aten::im2col", "aten::col2im"}},
      {&R::Convolution, {"aten::convolution"}},
      {&R::ConvolutionBackward, {"aten::convolution_backward"}},
      {&R::Pool<2, N::kLeast, ir::ops::max_pool2d_with_indices>,
       {"aten::max_pool2d_with_indices", "aten::max_pool2d_with_indices_backward"}},
      {&R::Pool<2, N::kZero, ir::ops::avg_pool2d>,
       {"aten::avg_pool2d", "aten::avg_pool2d_backward"}},
      {&R::EachImage<2>,
       {"aten::_adaptive_avg_pool2d",
        "aten::_adaptive_avg_pool2d_backward",
        "aten::adaptive_max_pool2d",
        "aten::adaptive_max_pool2d_backward",
        "aten::grid_sampler_2d",
        "aten::upsample_nearest2d",
        "aten::_upsample_nearest_exact2d",
        "aten::upsample_bilinear2d",
        "aten::upsample_bicubic2d",
        "aten::reflection_pad2d",
        "aten::replication_pad2d",
        "aten::grid_sampler_2d_backward",
        "aten::upsample_nearest2d_backward",
        "aten::upsample_bilinear2d_backward",
        "aten::upsample_bicubic2d_backward",
        "aten::_upsample_nearest_exact2d_backward",
        "aten::_upsample_bilinear2d_aa",
        "aten::_upsample_bilinear2d_aa_backward",
        "aten::_upsample_bicubic2d_aa",
        "aten::_upsample_bicubic2d_aa_backward",
        "aten::_upsample_lanczos2d_aa",
        "aten::_upsample_lanczos2d_aa_backward",
        "aten::reflection_pad2d_backward",
        "aten::replication_pad2d_backward"}},
      {&R::EachImage<1>,
       {"aten::upsample_nearest1d", "aten::_upsample_nearest_exact1d", "aten::upsample_linear1d",
        "aten::reflection_pad1d", "aten::replication_pad1d", "aten::upsample_nearest1d_backward",
        "aten::upsample_linear1d_backward", "aten::_upsample_nearest_exact1d_backward",
        "aten::reflection_pad1d_backward", "aten::replication_pad1d_backward"}},
      {&R::Pool<3, N::kZero, ir::ops::avg_pool3d>,
       {"aten::avg_pool3d", "aten::avg_pool3d_backward"}},
      {&R::Pool<3, N::kLeast, ir::ops::max_pool3d_with_indices>,
       {"aten::max_pool3d_with_indices", "aten::max_pool3d_with_indices_backward"}},
      {&R::EachImage<3>,
       {"aten::_adaptive_avg_pool3d", "aten::_adaptive_avg_pool3d_backward",
        "aten::adaptive_max_pool3d", "aten::adaptive_max_pool3d_backward", "aten::grid_sampler_3d",
        "aten::grid_sampler_3d_backward", "aten::upsample_trilinear3d_backward",
        "aten::upsample_nearest3d_backward", "aten::upsample_nearest3d",
        "aten::upsample_trilinear3d", "aten::_upsample_nearest_exact3d_backward",
        "aten::_upsample_nearest_exact3d", "aten::reflection_pad3d",
        "aten::reflection_pad3d_backward", "aten::replication_pad3d",
        "aten::replication_pad3d_backward"}},
  }));
  return rules;
}

/// Rules of operations whose results may have varying sizes although no operand has any.
const Rules& MakingRules() {
  using R = BoundedRules;
  static const auto& rules = *new Rules(ByName({
      {&R::AsStrided, {"aten::as_strided"}},
      {&R::ExpandNode, {"aten::expand"}},
      {&R::Repeat, {"aten::repeat"}},
      {&R::Makes, {"aten::eye", "xla::fill", "aten::arange"}},
      {&R::Random,
       {"aten::random", "aten::exponential", "aten::bernoulli", "aten::uniform", "aten::normal"}},
      {&R::PartBackward, {"aten::select_backward", "aten::slice_backward"}},
  }));
  return rules;
}

/// Whether an operation is elementwise: PyTorch has a tag for most, but not for the others here.
bool IsPointwise(const ir::OpSpec& op) {
  // `equal` compares whole tensors, and a polynomial loops as often as one of its elements says.
  const std::string_view name = op.name;
  if (name == "aten::equal" || name.find("_polynomial_") != name.npos) return false;
  static const auto& others = *new std::unordered_set<std::string_view>{
      "aten::elu_backward",
      "aten::floor_divide",
      "aten::masked_fill",
      "aten::rsub",
      "aten::hardshrink_backward",
      "aten::hardsigmoid_backward",
      "aten::hardswish",
      "aten::hardswish_backward",
      "aten::hardtanh_backward",
      "aten::leaky_relu_backward",
      "aten::log_sigmoid_backward",
      "aten::log_sigmoid_forward",
      "aten::mish_backward",
      "aten::softplus_backward",
      "aten::softshrink_backward",
      "aten::_prelu_kernel",
      "aten::_prelu_kernel_backward",
      "aten::complex",
      "aten::polar",
  };
  if (others.contains(name)) return true;
  const auto found = c10::Dispatcher::singleton().findSchema({op.name, op.overload});
  return found && found->hasTag(at::Tag::pointwise);
}

}  // namespace

BoundedRule RuleOf(const ir::OpSpec& op, bool makes) {
  const Rules& rules = makes ? MakingRules() : AllRules();
  if (const auto found = rules.find(op.name); found != rules.end()) return found->second;
  return !makes && IsPointwise(op) ? &BoundedRules::Pointwise : nullptr;
}

}  // namespace torch_xla::lazy
