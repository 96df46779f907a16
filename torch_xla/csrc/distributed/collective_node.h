// Records collectives among the replicas, in one order for each device.
#pragma once

#include <optional>
#include <vector>

#include "distributed/collective.h"
#include "ir/node.h"
#include "tensor/storage.h"

namespace torch_xla::lazy {

/// The results of a collective over arrays on `device` (all_reduce and broadcast: any number
/// of them, of any dtypes; the others: one). The replicas must be connected; the size of a
/// group is added to the arguments of those collectives that have it.
std::vector<ir::Value> MakeCollective(distributed::Collective collective,
                                      const std::vector<ir::Value>& inputs, int device);

/// Whether a collective on `device` has been traced and not yet been launched.
bool CollectivePending(int device);

/// What each collective on `device` reads and writes, which keeps them in order; null before the
/// first one but where it shall be made.
StoragePtr CollectiveToken(int device, bool make = false);

/// Takes back the collectives that were traced since the token had the value `before` (none: since
/// there was no token).
void RestoreCollectiveToken(int device, const std::optional<ir::Value>& before);

}  // namespace torch_xla::lazy
