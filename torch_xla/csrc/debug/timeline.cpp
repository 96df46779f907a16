#include "debug/timeline.h"

#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "debug/metrics.h"

namespace torch_xla::debug {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMaxRan = 1024;

Metric& MetricOf(HostPart part) {
  static auto& sync = *new Metric("HostSyncTime", Unit::kTimeNs);
  static auto& wait = *new Metric("HostWaitTime", Unit::kTimeNs);
  static auto& transfer = *new Metric("HostTransferTime", Unit::kTimeNs);
  static auto& input = *new Metric("HostInputTime", Unit::kTimeNs);
  switch (part) {
    case HostPart::kSync:
      return sync;
    case HostPart::kWait:
      return wait;
    case HostPart::kTransfer:
      return transfer;
    case HostPart::kInput:
      break;
  }
  return input;
}

/// The time of this thread's last step, and how much of the time since then was spent in any part.
thread_local std::optional<Clock::time_point> last_step;
thread_local Clock::duration in_parts{};
thread_local bool in_part = false;

struct AllOfThem {
  std::mutex mutex;
  std::deque<Ran> ran;
};

AllOfThem& GetAll() {
  static auto& all = *new AllOfThem;
  return all;
}

}  // namespace

HostTimer::HostTimer(HostPart part)
    : part_(part), counts_(last_step.has_value()), outermost_(!std::exchange(in_part, true)) {
  if (counts_) start_ = Clock::now();
}

HostTimer::~HostTimer() {
  if (outermost_) in_part = false;
  if (counts_) NoteHostTime(part_, Clock::now() - start_);
}

void NoteHostTime(HostPart part, std::chrono::nanoseconds time) {
  if (!last_step) return;
  if (!in_part) in_parts += time;
  MetricOf(part).AddSample(static_cast<double>(time.count()));
}

void NoteStep() {
  static auto& step_time = *new Metric("StepTime", Unit::kTimeNs);
  static auto& tracing = *new Metric("LazyTracing", Unit::kTimeNs);
  const Clock::time_point now = Clock::now();
  if (last_step) {
    const std::chrono::nanoseconds time = now - *last_step;
    step_time.AddSample(static_cast<double>(time.count()));
    tracing.AddSample(static_cast<double>((time - in_parts).count()));
  }
  last_step = now;
  in_parts = {};
}

void NoteRan(const Ran& ran) {
  AllOfThem& all = GetAll();
  std::lock_guard lock(all.mutex);
  if (all.ran.size() == kMaxRan) all.ran.pop_front();
  all.ran.push_back(ran);
}

std::vector<Ran> AllRan() {
  AllOfThem& all = GetAll();
  std::lock_guard lock(all.mutex);
  return {all.ran.begin(), all.ran.end()};
}

}  // namespace torch_xla::debug
