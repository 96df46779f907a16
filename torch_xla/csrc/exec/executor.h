// Cuts graphs, compiles each once, and runs them asynchronously to the tracing thread.
#pragma once

#include <string>
#include <vector>

#include "exec/program.h"
#include "tensor/storage.h"

namespace torch_xla::exec {

/// Gives every pending tensor of `device` its value: hashes the graph, finds or compiles its
/// program and queues it. Returns when the program is queued, or with `wait` when it has finished.
/// Buffers that the step overwrites are donated. Throws the failure of an earlier queued execution,
/// once.
void SyncDevice(int device, bool wait);

/// Cuts the graph if the device's StepFinder says that a step has ended. Must be called where an
/// operation begins, before the operation has read anything.
void CutStep(int device);
inline void CutStepIfDue(int device) {
  if (tensor::StepFinderOf(device).due()) [[unlikely]]
    CutStep(device);
}

/// Tells the StepFinder that an optimizer's step has ended, and cuts the graph if that ends a step
/// of the loop.
void OptimizerStepped(int device);

/// Runs all that is pending, like SyncDevice, but does not count as a step.
void RunPending(int device, bool wait);

/// Runs these storages, and the storages whose values they are computed from. Donates nothing and
/// leaves the rest of the graph pending.
void SyncStorages(const std::vector<tensor::StoragePtr>& storages, bool wait);

/// The leaf that `value` evaluates to. Runs only the nodes that the value needs. The leaf's data
/// may still be pending; it stays readable as long as the leaf is kept.
ir::Value Evaluate(const ir::Value& value, int device);
/// The same for a storage, which then holds the result.
ir::Value Evaluate(const tensor::StoragePtr& storage);

/// Blocks until everything that is queued for the device has finished. Throws a failure, once.
void WaitDevice(int device);

/// The failure that the failed `data` comes from, or null if it was reported before. A later sync
/// or wait does not report it again; unrelated failures are kept. Waits for queued executions.
std::exception_ptr TakeFailure(const tensor::DeviceData& data);

/// The StableHLO that SyncStorages would compile for these values.
std::string StableHloOf(const std::vector<ir::Value>& values);

/// The values that SyncDevice would compute, the hash of their graph, and its text.
std::vector<ir::Value> PendingValues(int device);
ir::Hash128 PendingHash(int device);
std::string PendingText(int device);
/// The ids of the data that pending operations will read.
std::vector<uint64_t> PendingInputs(int device);

/// The number of programs in the cache.
size_t NumPrograms();
/// Empties the cache of programs.
void ClearPrograms();
/// All programs of the cache, most recently used last. Queued programs are compiled once WaitDevice
/// returns.
std::vector<ProgramPtr> Programs();

/// Ends the worker threads after the queued executions. Called when the interpreter exits.
void Shutdown();

}  // namespace torch_xla::exec
