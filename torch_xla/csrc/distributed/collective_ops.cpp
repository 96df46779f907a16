#include "distributed/collective_ops.h"

#include <algorithm>
#include <array>

#include "XLAOps.h"

namespace torch_xla::distributed {
namespace {

// In the order of CollectiveKind. In a graph a transfer is a permutation of a single pair.
constexpr std::array<const ir::OpSpec*, kCollectiveKinds> kOps = {
    &ir::ops::all_reduce,        &ir::ops::all_gather,         &ir::ops::all_to_all,
    &ir::ops::reduce_scatter,    &ir::ops::collective_permute, &ir::ops::broadcast,
    &ir::ops::collective_permute};

}  // namespace

const ir::OpSpec& CollectiveOp(CollectiveKind kind) { return *kOps[static_cast<size_t>(kind)]; }

bool IsCollective(const ir::OpSpec& op) {
  return std::find(kOps.begin(), kOps.end(), &op) != kOps.end();
}

}  // namespace torch_xla::distributed
