// Records collectives among the replicas, in a single order for each device.
#pragma once

#include <optional>
#include <vector>

#include "distributed/collective.h"
#include "ir/node.h"
#include "tensor/storage.h"

namespace torch_xla::lazy {

/// Returns the results of a collective over arrays on `device`. all_reduce and broadcast accept any
/// number of arrays of any dtypes, the other collectives a single array. The replicas must be
/// connected. The size of a group is appended to the arguments of collectives that have it.
std::vector<ir::Value> MakeCollective(distributed::Collective collective,
                                      const std::vector<ir::Value>& inputs, int device);

/// Whether a collective on `device` has been traced but not launched yet.
bool CollectivePending(int device);

/// The token of `device`, which each collective reads and writes, so that collectives stay in
/// order. Null before the first collective, unless `make` is set.
StoragePtr CollectiveToken(int device, bool make = false);

/// Undoes all collectives that were traced since the token had the value `before`, or since there
/// was no token if `before` is empty.
void RestoreCollectiveToken(int device, const std::optional<ir::Value>& before);

}  // namespace torch_xla::lazy
