// The description of a collective: its operation, its participants and its effect on shapes.
#pragma once

#include <c10/util/ArrayRef.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/attributes.h"
#include "ir/shape.h"

namespace torch_xla::distributed {

enum class CollectiveKind : int64_t {
  kAllReduce,      // any number of arrays
  kAllGather,      // arguments: the dimension, the size of a group
  kAllToAll,       // arguments: the dimensions to split and to concatenate, the size of a group
  kReduceScatter,  // arguments: the dimension, the size of a group
  kPermute,        // arguments: source, target, source, target, …
  kBroadcast,      // any number of arrays; argument: the root's rank
  kTransfer,       // one message; arguments: source, target, a tag, its group or channel
};
inline constexpr int kCollectiveKinds = 7;

enum class Reduction : int64_t { kSum, kMul, kAnd, kOr, kXor, kMin, kMax };

inline bool IsBitwise(Reduction reduction) {
  return reduction >= Reduction::kAnd && reduction <= Reduction::kXor;
}

using Groups = std::vector<std::vector<int64_t>>;

struct Collective {
  CollectiveKind kind;
  Reduction reduction = Reduction::kSum;
  Groups groups = {};  // empty: all replicas
  std::vector<int64_t> arguments = {};

  /// The group of `rank` among `size` replicas. Throws if no group contains `rank`.
  std::vector<int64_t> GroupOf(int64_t rank, int64_t size) const;
};

const char* Name(CollectiveKind kind);
const char* Name(Reduction reduction);
/// The reduction for "sum", "mul", "and", "or", "xor", "min" or "max"; throws ValueError for any
/// other name.
Reduction ReductionNamed(std::string_view name);
CollectiveKind CollectiveNamed(std::string_view name);

/// Encodes everything but the shapes as integers, and decodes them.
std::vector<int64_t> Encode(const Collective& collective);
Collective Decode(std::span<const int64_t> encoded);

/// For example "all_reduce(sum, f32[2,3], groups=[[0,1],[2,3]])".
std::string Describe(const Collective& collective, c10::ArrayRef<ir::ShapeRef> shapes);

/// The dimensions of the result for an operand with `dims`. Throws ValueError or IndexError if the
/// shape does not suit the collective.
std::vector<int64_t> ResultDims(const Collective& collective, c10::IntArrayRef dims);

/// Throws TypeError if a reduction is not defined for a dtype.
void CheckReduction(Reduction reduction, c10::ScalarType dtype);

}  // namespace torch_xla::distributed
