// Decides what the read of a value computes: the value alone, also the values on the way to it, all
// that is pending, or nothing because the host can compute it.
#pragma once

#include <vector>

#include "tensor/storage.h"

namespace torch_xla::exec {

/// The plan of a read of some storages of a device.
struct ReadPlan {
  /// Whether to run all that is pending first: later reads would otherwise compute the same nodes
  /// again.
  bool all = false;
  /// The storages to run then: the storages that are read, and others that are evaluated with them.
  std::vector<tensor::StoragePtr> storages;
};

/// Plans the read in at most one walk of the graph. `may_run_all` says that the caller waits for a
/// single value and that all that is pending may run with it.
ReadPlan PlanRead(std::vector<tensor::StoragePtr> storages, int device, bool may_run_all);

/// Computes a single number on the host if that needs no device ("is anything masked?", see
/// HostAlone). Returns whether the storage has its value now.
bool EvaluateOnHost(tensor::Storage& storage);

}  // namespace torch_xla::exec
