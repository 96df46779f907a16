// Measures where the threads that cut steps spend their time, and what the devices ran, for
// summaries and recordings. The metrics and rings are always on: a sample is cheap, and there is
// none per operation.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

namespace torch_xla::debug {

/// Parts of the time of a thread that cuts steps. Other threads (loaders, workers) do not delay the
/// program and are not counted.
enum class HostPart { kSync, kWait, kTransfer, kInput };

/// Adds its lifetime to the metric of a part (HostSyncTime, HostWaitTime, HostTransferTime,
/// HostInputTime).
class HostTimer {
 public:
  explicit HostTimer(HostPart part);
  ~HostTimer();
  HostTimer(const HostTimer&) = delete;
  HostTimer& operator=(const HostTimer&) = delete;

 private:
  const HostPart part_;
  const bool counts_;
  const bool outermost_;
  std::chrono::steady_clock::time_point start_;
};

/// The same for a time that was measured elsewhere and ends now.
void NoteHostTime(HostPart part, std::chrono::nanoseconds time);

/// Notes that this thread cuts a step. Adds the time since its last step to the metric StepTime,
/// and the share that was spent in no part, but in the program itself, to LazyTracing.
void NoteStep();

/// A run of a program on a device.
struct Ran {
  int64_t program;  // its number, see explain/explain.h
  int device;
  int64_t begin_ns, end_ns;  // since 1970
};
void NoteRan(const Ran& ran);
/// The last 1,024 runs, oldest first.
std::vector<Ran> AllRan();

}  // namespace torch_xla::debug
