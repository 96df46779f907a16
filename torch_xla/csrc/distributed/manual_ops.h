// The operations of manual regions (shard_map), in which each device computes with arrays of its
// own and says itself what it exchanges with others.
//
// A region is no node: it is what lies between the nodes that take a value apart and those that put
// one together. exec/manual_regions.h finds the regions of a graph.
#pragma once

#include "ir/node.h"
#include "ir/op.h"
#include "tensor/sharding.h"

namespace torch_xla::distributed {

/// (Tensor self, int[] tiles, int[] devices): each device's part of the value, or the whole value
/// of which each device has a part.
extern const ir::OpSpec& kToLocal;
extern const ir::OpSpec& kToWhole;
/// (Tensor self, str kind, int[] arguments, int[] groups): an exchange within groups of devices.
/// The first argument is the size of a group; `groups` lists their members one after the other.
extern const ir::OpSpec& kManualCollective;

ir::Value ToLocal(const ir::Value& whole, const Sharding& sharding);
ir::Value ToWhole(const ir::Value& local, const Sharding& sharding);
ir::Value ManualCollective(const ir::Value& local, std::string_view kind,
                           c10::IntArrayRef arguments, c10::IntArrayRef groups);
/// The dimensions of its result. Throws c10::ValueError for arguments that do not fit.
std::vector<int64_t> CollectiveDims(std::string_view kind, c10::IntArrayRef arguments,
                                    c10::IntArrayRef dims);

/// The sharding that a node of kToLocal, kToWhole or mark_sharding names.
const Sharding* ShardingNamed(const ir::Node& node);
/// Whether a program of this process may have a region.
bool HasManualOps();

}  // namespace torch_xla::distributed
