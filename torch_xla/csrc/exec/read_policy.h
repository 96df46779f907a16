// What is computed when a value is read: it alone, what was computed on the way to it, all that is
// pending, or nothing, since the host can tell.
#pragma once

#include <vector>

#include "tensor/storage.h"

namespace torch_xla::lazy {

/// What a read of some storages of a device runs.
struct ReadPlan {
  /// First all that is pending: to run less would compute the same again in later reads.
  bool all = false;
  /// Then these: the storages that are read, and others that are evaluated with them.
  std::vector<StoragePtr> storages;
};

/// Plans the read, by one walk of the graph. `may_run_all`: one value is read by whoever waits for
/// it, and all that is pending may run with it.
ReadPlan PlanRead(std::vector<StoragePtr> storages, int device, bool may_run_all);

/// Computes a number on the host where that can tell it by itself ("is anything masked?", see
/// HostAlone). Returns whether the storage has its value now.
bool EvaluateOnHost(Storage& storage);

}  // namespace torch_xla::lazy
