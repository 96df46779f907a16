#include "distributed/collective.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <sstream>

#include "ir/hash.h"

namespace torch_xla::distributed {
namespace {

constexpr std::array kKindNames = {"all_reduce",     "all_gather",         "all_to_all",
                                   "reduce_scatter", "collective_permute", "broadcast",
                                   "transfer"};
constexpr std::array kReductionNames = {"sum", "mul", "and", "or", "xor", "min", "max"};
static_assert(kKindNames.size() == kCollectiveKinds);

// A longer text costs more to compare than it is worth; the omitted part is hashed.
constexpr size_t kMaxDescription = 400;

template <typename Items, typename Append>
void AppendList(std::string& text, const Items& items, Append append) {
  text += '[';
  bool first = true;
  for (const auto& item : items) {
    if (!first) text += ',';
    first = false;
    append(item);
  }
  text += ']';
}

int64_t CheckedDim(const char* name, const char* what, int64_t dim, size_t rank) {
  TORCH_CHECK_INDEX(dim >= 0 && dim < static_cast<int64_t>(rank), name, ": expected `", what,
                    "` from 0 to ", static_cast<int64_t>(rank) - 1, " (the tensor has ", rank,
                    " dimensions), got ", dim);
  return dim;
}

int64_t Divided(const char* name, const char* what, c10::IntArrayRef dims, int64_t dim,
                int64_t group_size) {
  TORCH_CHECK_VALUE(dims[dim] % group_size == 0, name, ": expected the size of dimension ", dim,
                    " (`", what, "`) to be divisible by the ", group_size,
                    " replicas of a group, got a tensor of shape ", dims);
  return dims[dim] / group_size;
}

}  // namespace

const char* Name(CollectiveKind kind) { return kKindNames[static_cast<size_t>(kind)]; }
const char* Name(Reduction reduction) { return kReductionNames[static_cast<size_t>(reduction)]; }

Reduction ReductionNamed(std::string_view name) {
  for (size_t i = 0; i < kReductionNames.size(); ++i) {
    if (name == kReductionNames[i]) return static_cast<Reduction>(i);
  }
  TORCH_CHECK_VALUE(false, "expected a reduce_type of 'sum', 'mul', 'and', 'or', 'min' or 'max', ",
                    "got '", std::string(name), "'");
}

CollectiveKind CollectiveNamed(std::string_view name) {
  for (size_t i = 0; i < kKindNames.size(); ++i) {
    if (name == kKindNames[i]) return static_cast<CollectiveKind>(i);
  }
  TORCH_CHECK_VALUE(false, "there is no collective '", std::string(name), "'");
}

std::vector<int64_t> Collective::GroupOf(int64_t rank, int64_t size) const {
  if (groups.empty()) {
    std::vector<int64_t> all(static_cast<size_t>(size));
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
  for (const std::vector<int64_t>& group : groups) {
    if (std::find(group.begin(), group.end(), rank) != group.end()) return group;
  }
  TORCH_CHECK_VALUE(false, Name(kind), ": replica ", rank, " is in none of the groups");
}

std::vector<int64_t> Encode(const Collective& collective) {
  std::vector<int64_t> encoded = {static_cast<int64_t>(collective.kind),
                                  static_cast<int64_t>(collective.reduction),
                                  static_cast<int64_t>(collective.groups.size())};
  for (const std::vector<int64_t>& group : collective.groups) {
    encoded.push_back(static_cast<int64_t>(group.size()));
    encoded.insert(encoded.end(), group.begin(), group.end());
  }
  encoded.insert(encoded.end(), collective.arguments.begin(), collective.arguments.end());
  return encoded;
}

Collective Decode(std::span<const int64_t> encoded) {
  Collective collective{static_cast<CollectiveKind>(encoded[0]),
                        static_cast<Reduction>(encoded[1])};
  const auto count = static_cast<size_t>(encoded[2]);
  auto next = encoded.begin() + 3;
  for (size_t i = 0; i < count; ++i) {
    const int64_t size = *next++;
    collective.groups.emplace_back(next, next + size);
    next += size;
  }
  collective.arguments.assign(next, encoded.end());
  return collective;
}

std::string Describe(const Collective& collective, c10::ArrayRef<ir::ShapeRef> shapes) {
  std::string text = std::string(Name(collective.kind)) + '(';
  if (collective.kind == CollectiveKind::kAllReduce ||
      collective.kind == CollectiveKind::kReduceScatter) {
    text += std::string(Name(collective.reduction)) + ", ";
  }
  // Compared between processes, which may have other standard libraries: no std::hash.
  ir::Hasher hasher;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const std::string shape = shapes[i]->ToString();
    for (const char letter : shape) hasher.Add(static_cast<uint64_t>(letter));
    if (text.size() + shape.size() < kMaxDescription) text += shape + ", ";
  }
  if (shapes.size() > 1) {
    text +=
        std::to_string(shapes.size()) + " arrays (" + std::to_string(hasher.Finish().low) + "), ";
  }
  auto append_number = [&](int64_t number) { text += std::to_string(number); };
  if (!collective.arguments.empty()) {
    text += "arguments=";
    AppendList(text, collective.arguments, append_number);
    text += ", ";
  }
  text += "groups=";
  if (collective.groups.empty()) {
    text += "all";
  } else {
    AppendList(text, collective.groups,
               [&](const auto& group) { AppendList(text, group, append_number); });
  }
  return text + ')';
}

std::vector<int64_t> ResultDims(const Collective& collective, c10::IntArrayRef dims) {
  std::vector<int64_t> result = dims.vec();
  const char* name = Name(collective.kind);
  const std::vector<int64_t>& arguments = collective.arguments;
  const int64_t group_size = arguments.empty() ? 1 : arguments.back();
  switch (collective.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kPermute:
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kTransfer:
      break;
    case CollectiveKind::kAllGather:
      result[CheckedDim(name, "dim", arguments[0], dims.size())] *= group_size;
      break;
    case CollectiveKind::kReduceScatter: {
      const int64_t dim = CheckedDim(name, "scatter_dim", arguments[0], dims.size());
      result[dim] = Divided(name, "scatter_dim", dims, dim, group_size);
      break;
    }
    case CollectiveKind::kAllToAll: {
      const int64_t split = CheckedDim(name, "split_dimension", arguments[0], dims.size());
      const int64_t concat = CheckedDim(name, "concat_dimension", arguments[1], dims.size());
      result[split] = Divided(name, "split_dimension", dims, split, group_size);
      result[concat] *= group_size;
      break;
    }
  }
  return result;
}

void CheckReduction(Reduction reduction, c10::ScalarType dtype) {
  TORCH_CHECK_TYPE(!c10::isFloat8Type(dtype), "the reduction '", Name(reduction),
                   "' is not defined for ", c10::toString(dtype), "; convert to a wider dtype");
  const bool ordered = reduction == Reduction::kMin || reduction == Reduction::kMax;
  TORCH_CHECK_TYPE(
      !(IsBitwise(reduction) && (c10::isFloatingType(dtype) || c10::isComplexType(dtype))),
      "the reduction '", Name(reduction), "' is for integers and bool, not for ",
      c10::toString(dtype));
  TORCH_CHECK_TYPE(!(ordered && c10::isComplexType(dtype)), "the reduction '", Name(reduction),
                   "' is not defined for ", c10::toString(dtype));
}

}  // namespace torch_xla::distributed
