#include "sizes/rules_common.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "lowering/cpu_kernel.h"
#include "lowering/may_call.h"
#include "tensor/device.h"

namespace torch_xla::sizes::bounded {

[[noreturn]] void Refuse(const char* reason) { throw SizesRefused{reason}; }

BoundedDim Joined(const BoundedDim& a, const BoundedDim& b, bool fits) {
  if (a.empty()) return b;
  if (b.empty() || Same(a, b)) return a;
  if (!fits || SizeOf(a) != SizeOf(b) || !Varies(a) || !Varies(b))
    Refuse("its operands have different sizes that vary");
  return a.size() < b.size() ? b : a;
}

BoundedLayout Broadcast(const BoundedLayout& a, const BoundedLayout& b, bool fits) {
  BoundedLayout longer = a.size() >= b.size() ? a : b;
  const BoundedLayout& other = a.size() >= b.size() ? b : a;
  const size_t more = longer.size() - other.size();
  for (size_t d = 0; d < other.size(); ++d)
    longer[more + d] = Joined(longer[more + d], other[d], fits);
  return longer;
}

void RequireFixed(const BoundedDim& dim, const char* reason) {
  if (Varies(dim)) Refuse(reason);
}

void RequireFixed(const BoundedLayout& layout, const char* reason) {
  if (Varies(layout)) Refuse(reason);
}

void RequireSame(const BoundedLayout& a, const BoundedLayout& b) {
  if (!std::ranges::equal(a, b,
                          [](const BoundedDim& x, const BoundedDim& y) { return Same(x, y); }))
    Refuse("its operands have different sizes that vary");
}

Dims Only(size_t rank, int64_t dim) {
  Dims dims(rank);
  dims.at(static_cast<size_t>(dim)) = true;
  return dims;
}

ir::Value Select(G& g, const ir::Value& of, size_t dim, const ir::Value& index) {
  ir::Words words;
  ir::AttributeWriter(words).Int(static_cast<int64_t>(dim));
  return g.Make(ir::ops::index_select, {of, index}, std::move(words));
}

ir::Value Contiguous(const G& g, const ir::Value& of, const std::vector<int64_t>& sizes) {
  const tensor::Ints strides = tensor::ContiguousStrides(sizes);
  return g.View(of, sizes, {strides.begin(), strides.end()});
}

ir::Value Number(int64_t value, c10::ScalarType dtype) {
  return tensor::MakeScalarParameter(value, dtype, false);
}

ir::Value Add(const G& g, const ir::Value& a, const ir::Value& b) {
  return g.Make(ir::ops::add_Tensor, {a, b, tensor::MakeScalar(int64_t{1})});
}

ir::Value Sum(const G& g, const ir::Value& x, const Dims& dims, bool keepdim) {
  std::vector<int64_t> summed;
  for (size_t d = 0; d < dims.size(); ++d) {
    if (dims[d]) summed.push_back(static_cast<int64_t>(d));
  }
  ir::Words words;
  ir::AttributeWriter writer(words);
  writer.Int(1);
  writer.IntList(summed);
  writer.Int(keepdim);
  writer.Int(0);  // no dtype
  return g.Make(ir::ops::sum_dim_IntList, {x}, std::move(words));
}

ir::Value Places(const G& g, const BoundedLayout& layout, c10::IntArrayRef strides, int64_t offset,
                 c10::ScalarType dtype) {
  std::vector<Factor> factors;
  std::vector<int64_t> steps;
  for (size_t d = 0; d < layout.size(); ++d) {
    int64_t step = strides[d];
    for (const Factor& factor : layout[d]) step *= factor.size;
    for (const Factor& factor : layout[d]) {
      if (factor.size == 0) Refuse("it is empty");
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
    const ir::Value index = tensor::Cast(g.View(g.Iota(factors[i].bound), sizes, ones), dtype);
    place = Add(g, place, g.Make(ir::ops::mul_Tensor, {index, Number(steps[i], dtype)}));
  }
  return g.View(place, {all}, {1});
}

bool IsDense(const BoundedDim& dim) {
  return std::none_of(dim.begin() + (dim.empty() ? 0 : 1), dim.end(),
                      [](const Factor& factor) { return factor.varies; });
}

ir::Value PlaceOf(G& g, ir::Value index, const BoundedDim& all) {
  if (IsDense(all)) return index;
  const c10::ScalarType dtype = index.shape()->dtype;
  const auto times = [&](const ir::Value& value, int64_t stride) {
    return g.Make(ir::ops::mul_Tensor, {value, tensor::MakeConstant(stride, dtype, false)});
  };
  int64_t stride = 1;
  ir::Value place;
  for (size_t i = all.size(); i-- > 1; stride *= all[i].bound) {
    const ir::Value n = all[i].varies ? tensor::Cast(g.SizeOfFactor(all[i]), dtype)
                                      : tensor::MakeConstant(all[i].size, dtype, false);
    const ir::Value part = times(g.Make(ir::ops::remainder_Tensor, {index, n}), stride);
    place = place ? Add(g, place, part) : part;
    index = g.Make(ir::ops::floor_divide, {index, n});
  }
  return Add(g, place, times(index, stride));
}

c10::ScalarType IndexType(int64_t elements) {
  return elements < std::numeric_limits<int32_t>::max() ? c10::ScalarType::Int
                                                        : c10::ScalarType::Long;
}

static ir::Value Reordered(G& g, const ir::Value& of, size_t d, const BoundedDim& from,
                           const BoundedDim& to) {
  if (Same(from, to) || (IsDense(from) && IsDense(to) && BoundOf(from) == BoundOf(to))) return of;
  const ir::Value index = g.Make(
      ir::ops::minimum, {Places(g, {to}, {1}, 0, c10::ScalarType::Long), Number(SizeOf(from) - 1)});
  return Select(g, of, d, PlaceOf(g, index, from));
}

Result Like(G& g, Result of, const BoundedLayout& layout) {
  if (of.layout.size() > layout.size()) return of;
  const size_t more = layout.size() - of.layout.size();
  for (size_t d = 0; d < of.layout.size(); ++d) {
    BoundedDim& from = of.layout[d];
    const BoundedDim& to = layout[more + d];
    if (Same(from, to) || SizeOf(from) != SizeOf(to) || !Varies(from) || !Varies(to)) continue;
    const BoundedDim old = std::exchange(from, to);
    of.value = of.uniform ? g.View(of.value, BoundsOf(of.layout),
                                   std::vector<int64_t>(of.layout.size(), 0))
                          : Reordered(g, of.value, d, old, to);
    of.source.reset(), of.zero = false;
  }
  return of;
}

/// All factors as one.
static BoundedDim Single(const BoundedDim& dim) {
  if (dim.size() < 2) return dim;
  int64_t first = 1;
  for (const Factor& factor : dim) first *= factor.first;
  return {{SizeOf(dim), BoundOf(dim), first, true}};
}

Result Compact(G& g, const Result& of, size_t d) {
  if (of.layout[d].size() < 2) return of;
  Result result{of.value, of.layout, true};
  result.layout[d] = Single(of.layout[d]);
  result.value = Reordered(g, of.value, d, of.layout[d], result.layout[d]);
  return result;
}

ir::Value Spread(G& g, const ir::Value& of, size_t d, const BoundedDim& dim) {
  return Reordered(g, of, d, Single(dim), dim);
}

c10::Scalar NumberOf(Neutral neutral, c10::ScalarType dtype) {
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

BoundedLayout Reduced(const G& g, const BoundedLayout& layout, const Dims& dims) {
  const bool keep = g.Has("keepdim") && g.Int("keepdim") != 0;
  BoundedLayout result;
  for (size_t d = 0; d < layout.size(); ++d) {
    if (!dims[d]) result.push_back(layout[d]);
    if (dims[d] && keep) result.emplace_back();
  }
  return result;
}

bool AnyVaries(const BoundedLayout& layout, const Dims& dims) {
  for (size_t d = 0; d < layout.size(); ++d) {
    if (dims[d] && Varies(layout[d])) return true;
  }
  return false;
}

ir::Value Repeated(G& g, const Result& of, const Dims& dims) {
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

ir::Value Repeated(G& g, const Result& of) { return Repeated(g, of, Dims(of.layout.size(), true)); }

BoundedDim Longer(const G& g, const BoundedDim& dim, size_t d, int64_t more) {
  if (dim.size() > 1) Refuse("it goes along several sizes");
  const Factor& factor = dim[0];
  return {{factor.size + more, factor.bound + more, g.first()->dims[d], true}};
}

void EmitCompact(G& g, size_t d, const c10::Scalar& padding) {
  const BoundedLayout layout = g.In(0).layout;
  const Result in = Compact(g, g.In(0), d);
  ir::Node::Operands operands = g.Values();
  operands[0] = g.Masked(in, padding, Only(layout.size(), static_cast<int64_t>(d)));
  const ir::NodePtr made =
      tensor::MakeOpNode(&g.node().op(), std::move(operands), ir::Words(g.node().attributes()));
  made->set_location(g.node().location());
  for (size_t i = 0; i < g.node().num_outputs(); ++i) {
    if (g.node().shape(i))
      g.Set(i, Spread(g, {made, static_cast<uint32_t>(i)}, d, layout[d]), layout);
  }
}

void Along(G& g) {
  const BoundedLayout in = g.In(0).layout;
  const bool any = g.Has("dim") || g.Has("dims");
  const c10::IntArrayRef named = any ? g.Ints(g.Has("dim") ? "dim" : "dims") : c10::IntArrayRef{};
  Dims dims(in.size(), named.empty() || in.empty());
  for (int64_t dim : in.empty() ? c10::IntArrayRef{} : named)
    dims.at(static_cast<size_t>(g.Dim(dim, in.size()))) = true;
  if (AnyVaries(in, dims)) Refuse("it has no rule along a varying size");
  for (size_t i = 1; i < g.node().operands().size(); ++i) {
    if (g.In(i).layout.size() == in.size()) {
      for (size_t d = 0; d < in.size(); ++d) {
        if (!dims[d]) RequireSame({g.In(i).layout[d]}, {in[d]});
      }
    } else {
      RequireFixed(g.In(i).layout, "its operands have different sizes that vary");
    }
  }
  std::vector<BoundedLayout> layouts;
  for (size_t i = 0; i < g.node().num_outputs(); ++i) {
    const ir::ShapeRef shape = g.node().shape(i);
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
  g.Emit(g.Values(), g.node().attributes(), layouts);
}

ir::NodePtr MakeShaped(const G& g, const ir::OpSpec& op, ir::Node::Operands operands,
                       ir::Words words, const std::vector<BoundedLayout>& layouts) {
  ir::OutputShapes shapes;
  for (size_t i = 0; i < layouts.size(); ++i) {
    const ir::ShapeRef shape = g.node().shape(i);
    shapes.shapes.push_back(shape ? ir::GetShape(shape->dtype, BoundsOf(layouts[i])) : nullptr);
  }
  ir::NodePtr made =
      tensor::MakeOpNode(&op, std::move(operands), std::move(words), [&] { return shapes; });
  made->set_location(g.node().location());
  return made;
}

void Exactly(G& g, BoundedRule otherwise) {
  if (!lowering::HasCpuKernels(tensor::Platform())) return otherwise(g);
  ir::Node::Operands operands, sizes;
  lowering::KernelCall kernel = lowering::KernelOf(g.node());
  const size_t arrays = g.node().operands().size();
  const auto take_part = [&](int64_t buffer, const BoundedLayout& layout) {
    for (size_t d = 0; d < layout.size(); ++d) {
      if (!Varies(layout[d])) continue;
      const auto size = static_cast<int64_t>(arrays + sizes.size());
      kernel.parts.insert(kernel.parts.end(), {buffer, static_cast<int64_t>(d), size});
      sizes.push_back(g.SizeOfFactor(layout[d][0]));
    }
  };
  for (size_t i = 0; i < arrays; ++i) {
    Result in = g.In(i);
    for (size_t d = 0; d < in.layout.size(); ++d) in = Compact(g, in, d);
    take_part(static_cast<int64_t>(i), in.layout);
    operands.push_back(in.value);
  }
  std::vector<BoundedLayout> layouts;
  int64_t buffer = 0;
  for (size_t i = 0; i < g.node().num_outputs(); ++i) {
    const ir::ShapeRef shape = g.node().shape(i);
    BoundedLayout& layout = layouts.emplace_back();
    if (!shape) continue;
    BoundedLayout parts_of;
    layout = g.MadeLayout(i);
    for (size_t d = 0; d < layout.size(); ++d) {
      if (g.ResultVaries(i, d) && !Varies(layout[d]) && shape->dims[d] > 1)
        Refuse("its result has a varying size that no input has");
      parts_of.push_back(Single(layout[d]));
    }
    take_part(~buffer++, parts_of);
  }
  ir::Words call;
  ir::AttributeWriter writer(call);
  writer.String(kernel.op);
  writer.String(kernel.overload);
  for (const auto* list : {&kernel.kinds, &kernel.words, &kernel.parts}) writer.IntList(*list);
  writer.Int(static_cast<int64_t>(operands.size() + sizes.size()));
  operands.append(sizes.begin(), sizes.end());
  const ir::NodePtr made =
      MakeShaped(g, ir::ops::kernel_of_parts, std::move(operands), std::move(call), layouts);
  for (size_t i = 0; i < layouts.size(); ++i) {
    ir::Value value{made, static_cast<uint32_t>(i)};
    if (!g.node().shape(i)) continue;
    for (size_t d = 0; d < layouts[i].size(); ++d) value = Spread(g, value, d, layouts[i][d]);
    g.Set(i, std::move(value), layouts[i]);
  }
}

bool IsHalf(c10::ScalarType dtype) {
  return dtype == c10::ScalarType::Half || dtype == c10::ScalarType::BFloat16;
}

BoundedLayout WithBatch(const G& g, size_t result, const BoundedDim& batch) {
  BoundedLayout layout = FixedLayout(g.node().shape(result)->dims);
  layout[0] = batch;
  return layout;
}

}  // namespace torch_xla::sizes::bounded
