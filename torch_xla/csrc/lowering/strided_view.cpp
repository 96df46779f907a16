#include "lowering/strided_view.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <string>

namespace torch_xla::lowering {
namespace {

using stablehlo::Dims;
using stablehlo::ElementType;
using stablehlo::Type;
using stablehlo::Value;

int64_t Product(const Dims& dims) {
  return std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>());
}

/// A dimension of a view: `size` elements at a distance of `stride`.
struct Axis {
  int64_t size, stride;
};

/// The dimensions that move through the root (size > 1, stride > 0), largest stride first.
struct Axes {
  std::vector<Axis> sorted;
  Dims kept;         // their indices in the view, ascending
  Dims permutation;  // sorted[permutation[i]] is the view's dimension kept[i]
  Dims view_dims() const {
    Dims dims;
    for (int64_t i : permutation) dims.push_back(sorted[i].size);
    return dims;
  }
  Dims sorted_dims() const {
    Dims dims;
    for (const Axis& axis : sorted) dims.push_back(axis.size);
    return dims;
  }
};

Axes FindAxes(c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  Axes axes;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] > 1 && strides[i] != 0) axes.kept.push_back(static_cast<int64_t>(i));
  }
  Dims order = axes.kept;
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return strides[a] > strides[b]; });
  for (int64_t i : order) axes.sorted.push_back({sizes[i], strides[i]});
  for (int64_t i : axes.kept) {
    axes.permutation.push_back(std::find(order.begin(), order.end(), i) - order.begin());
  }
  return axes;
}

/// Neighbouring dimensions of the root as a single dimension, with the axes that move through it.
struct Group {
  int64_t size, weight;         // number of elements; their distance in the root
  int64_t start = 0;            // where the view begins
  std::vector<Axis> axes = {};  // strides in units of `weight`, largest first; merged

  /// The last element that the view touches.
  int64_t last() const {
    int64_t index = start;
    for (const Axis& axis : axes) index += (axis.size - 1) * axis.stride;
    return index;
  }
  int64_t step() const { return axes.size() == 1 ? axes[0].stride : 1; }
  /// Whether the view is a slice along the group.
  bool IsSlice() const { return axes.size() <= 1; }
};

std::vector<Group> RootGroups(const Dims& dims) {
  std::vector<Group> groups;
  int64_t weight = 1;
  for (size_t i = dims.size(); i-- > 0;) {
    if (dims[i] > 1) groups.push_back({dims[i], weight});
    weight *= dims[i];
  }
  if (groups.empty()) groups.push_back({1, 1});
  std::reverse(groups.begin(), groups.end());
  return groups;
}

void Join(std::vector<Group>& groups, size_t first) {
  groups[first] = {groups[first].size * groups[first + 1].size, groups[first + 1].weight};
  groups.erase(groups.begin() + static_cast<std::ptrdiff_t>(first) + 1);
}

/// Distributes the axes over the groups. If an axis needs two groups, joins these and returns
/// false.
bool Assign(std::vector<Group>& groups, const std::vector<Axis>& axes, int64_t offset) {
  for (Group& group : groups) {
    group.start = offset / group.weight;
    offset %= group.weight;
    group.axes.clear();
  }
  for (const Axis& axis : axes) {
    size_t j = 0;
    while (groups[j].weight > axis.stride) ++j;
    if (axis.stride % groups[j].weight != 0) {
      Join(groups, j);
      return false;
    }
    groups[j].axes.push_back({axis.size, axis.stride / groups[j].weight});
  }
  for (size_t j = groups.size(); j-- > 1;) {
    if (groups[j].last() >= groups[j].size) {
      Join(groups, j - 1);
      return false;
    }
  }
  return true;
}

/// Finds the groups: the root's own dimensions if the view respects them, else fewer and larger
/// groups, in the end the flat root.
std::vector<Group> FindGroups(const Dims& root_dims, const Axes& axes, int64_t offset) {
  std::vector<Group> groups = RootGroups(root_dims);
  while (!Assign(groups, axes.sorted, offset)) {
  }
  if (offset < 0 || groups[0].last() >= groups[0].size) {
    throw stablehlo::Error("as_strided: the view reaches beyond its base of " +
                           std::to_string(Product(root_dims)) + " elements");
  }
  for (Group& group : groups) {
    std::vector<Axis> merged;
    for (const Axis& axis : group.axes) {
      if (!merged.empty() && merged.back().stride == axis.size * axis.stride) {
        merged.back() = {merged.back().size * axis.size, axis.stride};
      } else {
        merged.push_back(axis);
      }
    }
    group.axes = std::move(merged);
  }
  return groups;
}

/// A mixed-radix numbering of a group in which each axis moves one digit: the elements [begin,
/// limit), padded to `length` and reshaped to `digits`.
struct Radix {
  int64_t begin, limit, length;
  Dims digits, starts, sizes;

  /// Whether it numbers the whole group, wherever the view begins in it.
  bool IsWhole(int64_t size) const { return begin == 0 && limit == size && length == size; }
};

/// Returns nothing if axes overlap or their strides do not divide each other.
std::optional<Radix> FindRadix(const Group& group) {
  if (group.axes.empty()) return Radix{0, group.size, group.size, {group.size}, {group.start}, {1}};
  int64_t outer = group.axes[0].stride;
  Radix radix{0, group.size, group.size, {group.size / outer}, {}, {group.axes[0].size}};
  for (size_t i = 1; i < group.axes.size(); ++i) {
    const Axis &above = group.axes[i - 1], &axis = group.axes[i];
    if (above.stride % axis.stride != 0 || axis.size * axis.stride > above.stride) {
      return std::nullopt;
    }
    radix.digits.push_back(above.stride / axis.stride);
    radix.sizes.push_back(axis.size);
  }
  if (int64_t inner = group.axes.back().stride; inner > 1) {
    radix.digits.push_back(inner);
    radix.sizes.push_back(1);
  }
  bool fits = group.size % outer == 0;
  int64_t rest = group.start;
  for (size_t i = radix.digits.size(); i-- > 0;) {
    int64_t start = rest % radix.digits[i];
    fits = fits && start + radix.sizes[i] <= radix.digits[i];
    radix.starts.insert(radix.starts.begin(), start);
    rest /= radix.digits[i];
  }
  if (fits) return radix;
  // Otherwise the numbering begins at the first element of the view.
  radix.length = radix.sizes[0] * outer;
  radix.digits[0] = radix.sizes[0];
  radix.begin = group.start;
  radix.limit = std::min(group.size, group.start + radix.length);
  std::fill(radix.starts.begin(), radix.starts.end(), 0);
  return radix;
}

/// The numberings of all groups, with their dimension lists concatenated.
struct Plan {
  Dims dims;                   // the root as groups
  Dims begin, limit, padding;  // the part of the root that is numbered, and its padding
  Dims digits, starts, sizes;
  std::vector<size_t> digit_counts;  // per group
  bool is_whole = true;              // whether every group is numbered from end to end
};

std::optional<Plan> FindPlan(const std::vector<Group>& groups) {
  auto append = [](Dims& to, const Dims& from) { to.insert(to.end(), from.begin(), from.end()); };
  Plan plan;
  for (const Group& group : groups) {
    std::optional<Radix> radix = FindRadix(group);
    if (!radix) return std::nullopt;
    plan.dims.push_back(group.size);
    plan.begin.push_back(radix->begin);
    plan.limit.push_back(radix->limit);
    plan.padding.push_back(radix->length - (radix->limit - radix->begin));
    append(plan.digits, radix->digits);
    append(plan.starts, radix->starts);
    append(plan.sizes, radix->sizes);
    plan.digit_counts.push_back(radix->digits.size());
    plan.is_whole &= radix->IsWhole(group.size);
  }
  return plan;
}

Dims Plus(const Dims& a, const Dims& b) {
  Dims sum(a.size());
  std::transform(a.begin(), a.end(), b.begin(), sum.begin(), std::plus<>());
  return sum;
}

/// `x` with `padding` (per dimension) zeros at the ends.
Value PadEnds(Value x, const Dims& padding) {
  if (Product(Plus(x.dims(), padding)) == Product(x.dims())) return x;
  return Pad(x, ScalarLike(x, 0), Dims(padding.size(), 0), padding);
}

/// The numbered part of the root, reshaped to digits.
Value ToDigits(Value root, const Plan& plan) {
  Value part = Slice(Reshape(root, plan.dims), plan.begin, plan.limit);
  return Reshape(PadEnds(part, plan.padding), plan.digits);
}

/// The type for indices of the dimensions of `x`.
ElementType IndexType(Value x) {
  const Dims& dims = x.dims();
  return std::all_of(dims.begin(), dims.end(),
                     [](int64_t d) { return d <= std::numeric_limits<int32_t>::max(); })
             ? ElementType::kS32
             : ElementType::kS64;
}

Value Update(Value x, Value update, const Dims& starts) {
  if (x.dims() == update.dims()) return update;
  std::vector<Value> indices;
  for (int64_t start : starts) indices.push_back(stablehlo::Scalar(x, start, IndexType(x)));
  return DynamicUpdateSlice(x, update, indices, starts);
}

/// The start of the view in each group (int64), for a view that begins at `offset` of the root.
std::vector<Value> GroupStarts(const std::vector<Group>& groups, Value offset) {
  offset = Convert(offset, ElementType::kS64);
  std::vector<Value> starts;
  for (const Group& group : groups) {
    Value start = Divide(offset, ScalarLike(offset, group.weight));
    starts.push_back(starts.empty() ? start : Remainder(start, ScalarLike(start, group.size)));
  }
  return starts;
}

/// The start of the view in each digit of a plan that numbers the whole root.
std::vector<Value> DigitStarts(const std::vector<Group>& groups, const Plan& plan, Value offset) {
  std::vector<Value> starts;
  size_t end = 0;
  for (size_t j = 0; j < groups.size(); ++j) {
    Value rest = GroupStarts(groups, offset)[j];
    const size_t begin = end;
    end += plan.digit_counts[j];
    std::vector<Value> digits;
    for (size_t i = end; i-- > begin;) {
      Value digit = ScalarLike(rest, plan.digits[i]);
      digits.insert(digits.begin(), i > begin ? Remainder(rest, digit) : rest);
      rest = Divide(rest, digit);
    }
    starts.insert(starts.end(), digits.begin(), digits.end());
  }
  return starts;
}

std::vector<Value> Converted(std::vector<Value> values, ElementType element) {
  for (Value& value : values) value = Convert(value, element);
  return values;
}

/// The index in the flat root of each element of the view (axes in sorted order), with shape [...,
/// 1].
Value FlatIndices(Value root, const Axes& axes, const ViewOffset& offset) {
  Dims dims = axes.sorted_dims();
  dims.push_back(1);
  bool narrow = root.type().num_elements() <= std::numeric_limits<int32_t>::max();
  Type type(narrow ? ElementType::kS32 : ElementType::kS64, dims);
  Value indices = offset.parameter
                      ? BroadcastInDim(Convert(*offset.parameter, type.element), dims, {})
                      : Constant(root.builder(), offset.known, type);
  for (size_t i = 0; i < axes.sorted.size(); ++i) {
    Value position = Iota(root.builder(), type, static_cast<int64_t>(i));
    indices = Add(indices, Multiply(position, FullLike(position, axes.sorted[i].stride)));
  }
  return indices;
}

/// At most this many pieces are concatenated to form overlapping windows.
constexpr int64_t kMaxWindowPieces = 16;

/// Reads windows of size w at a distance s < w along one group (unfold), with slices along the
/// others: splits the group into blocks of s and puts each block beside the blocks that follow it.
/// Returns nothing for any other view.
std::optional<Value> ReadWindows(Value root, std::vector<Group> groups) {
  Dims dims;
  std::optional<size_t> windowed;
  for (size_t j = 0; j < groups.size(); ++j) {
    dims.push_back(groups[j].size);
    if (groups[j].IsSlice()) continue;
    if (windowed || groups[j].axes.size() != 2) return std::nullopt;
    windowed = j;
  }
  const auto [count, distance] = groups[*windowed].axes[0];
  const auto [size, step] = groups[*windowed].axes[1];
  int64_t extent = (size - 1) * step + 1;
  int64_t pieces = (extent + distance - 1) / distance;
  if (pieces > kMaxWindowPieces) return std::nullopt;

  Dims starts, limits, strides;
  for (Group& group : groups) {
    starts.push_back(group.start);
    limits.push_back(group.last() + 1);
    strides.push_back(group.IsSlice() ? group.step() : 1);
  }
  Value part = Slice(Reshape(root, dims), starts, limits, strides);
  auto at = static_cast<int64_t>(*windowed);
  Dims padding(dims.size(), 0);
  padding[at] = (count + pieces - 1) * distance - part.dims()[at];
  part = PadEnds(part, padding);
  std::vector<Value> blocks;
  for (int64_t piece = 0; piece < pieces; ++piece) {
    Dims begin(dims.size(), 0), end = part.dims(), block = part.dims();
    begin[at] = piece * distance;
    end[at] = begin[at] + count * distance;
    block[at] = count;
    block.insert(block.begin() + at + 1, distance);
    blocks.push_back(Reshape(Slice(part, begin, end), block));
  }
  Value windows = Concatenate(blocks, at + 1);
  Dims begin(windows.rank(), 0), end = windows.dims(), every(windows.rank(), 1);
  end[at + 1] = extent;
  every[at + 1] = step;
  return Slice(windows, begin, end, every);
}

bool AreSlices(const std::vector<Group>& groups) {
  return std::all_of(groups.begin(), groups.end(), [](const Group& g) { return g.IsSlice(); });
}

/// The elements of the view with axes in sorted order, in any shape.
Value ReadSorted(Value root, const Axes& axes, const ViewOffset& offset) {
  std::vector<Group> groups = FindGroups(root.dims(), axes, offset.known);
  if (AreSlices(groups)) {
    Dims dims, starts, limits, strides;
    for (const Group& group : groups) {
      dims.push_back(group.size);
      starts.push_back(group.start);
      limits.push_back(group.last() + 1);
      strides.push_back(group.step());
    }
    root = Reshape(root, dims);
    if (offset.parameter) {
      auto from = Converted(GroupStarts(groups, *offset.parameter), IndexType(root));
      std::transform(limits.begin(), limits.end(), starts.begin(), limits.begin(), std::minus<>());
      root = DynamicSlice(root, from, limits);
      std::fill(starts.begin(), starts.end(), 0);
    }
    return Slice(root, starts, limits, strides);
  }
  std::optional<Plan> plan = FindPlan(groups);
  if (plan && plan->is_whole && offset.parameter) {
    Value digits = ToDigits(root, *plan);
    auto from = Converted(DigitStarts(groups, *plan, *offset.parameter), IndexType(digits));
    return DynamicSlice(digits, from, plan->sizes);
  }
  if (plan && !offset.parameter) {
    return Slice(ToDigits(root, *plan), plan->starts, Plus(plan->starts, plan->sizes));
  }
  if (!offset.parameter) {
    if (std::optional<Value> windows = ReadWindows(root, groups)) return *windows;
  }
  stablehlo::GatherDimensionNumbers numbers;
  numbers.collapsed_slice_dims = numbers.start_index_map = {0};
  numbers.index_vector_dim = static_cast<int64_t>(axes.sorted.size());
  return Gather(Reshape(root, {root.type().num_elements()}), FlatIndices(root, axes, offset),
                numbers, {1});
}

}  // namespace

Dims InversePermutation(const Dims& permutation) {
  Dims inverse(permutation.size());
  for (size_t i = 0; i < inverse.size(); ++i) inverse[permutation[i]] = static_cast<int64_t>(i);
  return inverse;
}

uint64_t ViewStructure(const Dims& root, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                       int64_t offset, bool written) {
  if (c10::multiply_integers(sizes) == 0) return 0;  // nothing is read, wherever the view begins
  const std::vector<Group> groups = FindGroups(root, FindAxes(sizes, strides), offset);
  bool structured = !written && AreSlices(groups);
  if (!structured) {
    const std::optional<Plan> plan = FindPlan(groups);
    structured = plan && plan->is_whole;
  }
  if (!structured) return 0;  // element by element, wherever the view begins
  uint64_t structure = groups.size();
  for (const Group& group : groups) {
    structure = structure * 0x9E3779B97F4A7C15ull + static_cast<uint64_t>(group.size);
  }
  return structure | 1;
}

bool MayOverlap(c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  const std::vector<Axis> axes = FindAxes(sizes, strides).sorted;
  int64_t last = 0;
  for (size_t i = axes.size(); i-- > 0; last += (axes[i].size - 1) * axes[i].stride) {
    if (axes[i].stride <= last) return true;
  }
  return false;
}

Value ReadStrided(Value root, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                  const ViewOffset& offset) {
  Dims dims = sizes.vec();
  if (Product(dims) == 0) return Constant(root.builder(), 0, Type(root.element(), dims));
  Axes axes = FindAxes(sizes, strides);
  Value sorted = ReadSorted(root, axes, offset);
  // If nothing moves, reshape straight to the result instead of reshaping twice.
  if (Product(axes.sorted_dims()) == Product(dims) &&
      std::is_sorted(axes.permutation.begin(), axes.permutation.end())) {
    return Reshape(sorted, dims);
  }
  Value view = Transpose(Reshape(sorted, axes.sorted_dims()), axes.permutation);
  if (Product(view.dims()) == Product(dims)) return Reshape(view, dims);
  return BroadcastInDim(view, dims, axes.kept);
}

Value WriteStrided(Value root, Value update, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                   const ViewOffset& offset) {
  if (update.type().num_elements() == 0) return root;
  Axes axes = FindAxes(sizes, strides);
  // All elements along an expanded dimension have the same destination; the last one stays.
  Dims starts(update.rank(), 0);
  for (int64_t i = 0; i < update.rank(); ++i) {
    if (strides[i] == 0) starts[i] = update.dims()[i] - 1;
  }
  update = Reshape(Slice(update, starts, update.dims()), axes.view_dims());
  update = Transpose(update, InversePermutation(axes.permutation));

  std::vector<Group> groups = FindGroups(root.dims(), axes, offset.known);
  std::optional<Plan> plan = FindPlan(groups);
  if (plan && plan->is_whole && offset.parameter) {
    Value digits = ToDigits(root, *plan);
    auto from = Converted(DigitStarts(groups, *plan, *offset.parameter), IndexType(digits));
    return Reshape(DynamicUpdateSlice(digits, Reshape(update, plan->sizes), from), root.dims());
  }
  if (plan && !offset.parameter) {
    update = Reshape(update, plan->sizes);
    if (plan->sizes == plan->digits && Product(plan->digits) == Product(root.dims())) {
      return Reshape(update, root.dims());
    }
    Value part = Update(ToDigits(root, *plan), update, plan->starts);
    Dims padded = Plus(plan->limit, plan->padding), size = plan->limit;
    for (size_t i = 0; i < size.size(); ++i) {
      padded[i] -= plan->begin[i];
      size[i] -= plan->begin[i];
    }
    part = Slice(Reshape(part, padded), Dims(size.size(), 0), size);
    return Reshape(Update(Reshape(root, plan->dims), part, plan->begin), root.dims());
  }
  stablehlo::ScatterDimensionNumbers numbers;
  numbers.inserted_window_dims = numbers.scatter_dims_to_operand_dims = {0};
  numbers.index_vector_dim = static_cast<int64_t>(axes.sorted.size());
  Value indices = FlatIndices(root, axes, offset);
  const int64_t size = root.type().num_elements();
  if (MayOverlap(sizes, strides)) {
    // Elements that do not change may be at the place of one that does, and are not written.
    Value before = Reshape(ReadSorted(root, axes, offset), update.dims());
    Value changes =
        Compare(update, before, stablehlo::Direction::kNe, runtime::IsFloat(update.element()));
    indices = Select(Reshape(changes, indices.dims()), indices, FullLike(indices, size));
  }
  Value flat = Scatter(Reshape(root, {size}), indices, update, numbers);
  return Reshape(flat, root.dims());
}

}  // namespace torch_xla::lowering
