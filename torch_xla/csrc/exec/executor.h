// Cuts graphs, compiles them once, and runs them behind the tracing thread's back.
#pragma once

#include <string>
#include <vector>

#include "exec/program.h"
#include "tensor/storage.h"

namespace torch_xla::lazy {

/// Gives every pending tensor of `device` its value: hashes the graph, finds or compiles
/// its program and queues it. Returns when it is queued (wait: when it is done). Buffers
/// that the step overwrites are donated. Throws a failure of an earlier queued
/// execution, once.
void SyncDevice(int device, bool wait);

/// Cuts there where the device's StepFinder says that a step has ended: called where an operation
/// begins, before it has read anything.
void CutStep(int device);
inline void CutStepIfDue(int device) {
  if (StepFinderOf(device).due()) [[unlikely]]
    CutStep(device);
}

/// The same behind an optimizer's step.
void OptimizerStepped(int device);

/// All that is pending, like SyncDevice; it is no step.
void RunPending(int device, bool wait);

/// The same for these storages and those whose values theirs are computed from; nothing is donated
/// and the rest of the graph stays.
void SyncStorages(const std::vector<StoragePtr>& storages, bool wait);

/// The leaf that `value` evaluates to, running only what it needs. Its data may still be
/// pending; it stays readable for as long as the leaf is kept.
ir::Value Evaluate(const ir::Value& value, int device);
/// The same for a storage, which keeps the result.
ir::Value Evaluate(const StoragePtr& storage);

/// Blocks until everything queued for the device is done; throws a failure once.
void WaitDevice(int device);

/// What `data`, which was read, failed by: no later sync or wait tells it again. Null where that
/// was told before. Others' failures are kept. Waits for what is queued.
std::exception_ptr TakeFailure(const DeviceData& data);

/// The StableHLO that SyncStorages would compile for these values.
std::string StableHloOf(const std::vector<ir::Value>& values);

/// What SyncDevice would compute, the hash of that graph, and its text.
std::vector<ir::Value> PendingValues(int device);
ir::Hash128 PendingHash(int device);
std::string PendingText(int device);
/// The ids of the data that what is pending will read.
std::vector<uint64_t> PendingInputs(int device);

/// How many programs are kept.
size_t NumPrograms();
/// None from now on.
void ClearPrograms();
/// All of them; those that were used last come last. Those of them that were queued are compiled
/// once WaitDevice returns.
std::vector<ProgramPtr> Programs();

/// Ends the worker threads after what is queued; called at interpreter exit.
void Shutdown();

}  // namespace torch_xla::lazy
