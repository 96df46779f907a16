// Where the threads that cut steps spend their time, and what the devices ran: what a summary and
// recordings are made of. Metrics and rings that are always on; a sample is tens of nanoseconds,
// and none is taken of an operation.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

namespace torch_xla::debug {

/// Of the time of a thread that cuts steps. The others' (loaders, workers) is not on the way of the
/// program, and not counted.
enum class HostPart { kSync, kWait, kTransfer, kInput };

/// Adds its life time to the metric of a part (HostSyncTime, HostWaitTime, HostTransferTime,
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

/// This thread cuts a step: adds the time since its last one to the metric StepTime, and what of it
/// is in no part, that of the program itself, to LazyTracing.
void NoteStep();

/// What a device ran.
struct Ran {
  int64_t program;  // its number, see explain/explain.h
  int device;
  int64_t begin_ns, end_ns;  // since 1970
};
void NoteRan(const Ran& ran);
/// The last 1,024, oldest first.
std::vector<Ran> AllRan();

}  // namespace torch_xla::debug
