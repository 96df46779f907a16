#include "lazy/auto_step.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <array>
#include <limits>

#include "XLAOps.h"
#include "debug/environment.h"
#include "lazy/device_data.h"

namespace torch_xla::lazy {
namespace {

/// As many operations are never left uncut; they are looked at when their number is a multiple of
/// kBlock.
constexpr uint64_t kMaxPending = 48 * 1024;
constexpr uint64_t kBlock = 1024;
/// A loop without a backward pass has to go on for so long. Layers that are alike are a loop,
/// too, and what they leave for the backward pass had better stay within one program.
constexpr uint64_t kLoop = 256;
constexpr uint64_t kLoopWithGradients = 1024;
constexpr uint64_t kStatelessLoop = 1024;
constexpr uint64_t kStatelessLoopWithGradients = 32 * 1024;
constexpr uint64_t kRounds = 8;
/// And is cut no more often than this.
constexpr uint64_t kLeast = 64;
/// Data that waits for operations: more of it makes any two rounds a loop.
constexpr uint64_t kMaxBytes = uint64_t{1} << 30;
/// Fewer rounds between two cuts of the user's than this are his steps.
constexpr uint64_t kUsersRounds = 8;
constexpr size_t kMaxPlaces = 8;
constexpr uint64_t kShortestWindow = 8;

uint64_t Power(uint64_t base, uint64_t exponent) {
  uint64_t result = 1;
  for (; exponent; exponent >>= 1, base *= base) {
    if (exponent & 1) result *= base;
  }
  return result;
}

uint64_t FilterBit(uint64_t event) { return uint64_t{1} << (event >> 58); }

std::atomic<bool> enabled{debug::EnvFlag("XLA_AUTO_STEP")};

bool InBackward() { return torch::autograd::get_current_graph_task_id() != -1; }

}  // namespace

StepFinder* const* const step_finders = [] {
  auto* all = new std::array<StepFinder*, 256>;
  for (int i = 0; i < 256; ++i) (*all)[i] = new StepFinder(i);
  return all->data();
}();

void SetAutoStep(bool on) {
  enabled = on;
  for (int device = 0; device < 256; ++device) StepFinderOf(device).Forget();
}

void StepFinder::Born(StorageHistory& history, const ir::Value& value) {
  history.born = count_;
  if (!LeafData(value)) Record(history, value, nullptr);
  alive_ = alive_ + 1;
}

void StepFinder::Uploaded(uint64_t bytes) {
  if (count_ == floor_) return;
  bytes_ = bytes_ + bytes;
  if (bytes_ > kMaxBytes) TryHeavyLoop(count_);
}

void StepFinder::Written(StorageHistory& history, const void* storage, const ir::Value& value) {
  if (LeafData(value)) return;
  const uint64_t before = history.written;
  const uint64_t then = count_;
  Record(history, value, storage);
  const uint64_t now = count_;
  if (now == then) return;
  history.written = now;
  if (before > floor_ && now >= retry_) TryPeriod(now, now - before);
}

void StepFinder::Record(const StorageHistory& history, const ir::Value& value,
                        const void* written) {
  if (!ring_.load(std::memory_order_acquire) && !Start()) return;
  // Fills come with the first round of many loops alone: the state of an optimizer, a sum.
  if (&value.node->op() == &ir::ops::fill) return;
  const uint64_t now = count_ + 1;
  const uint64_t event = value.node->hash().low + (value.index * 2 + (written ? 1 : 0));
  const uint64_t hash = hash_ * kBase + event;
  count_ = now;
  hash_ = hash;
  Entry& entry = At(now);
  entry.hash = hash;
  entry.written = reinterpret_cast<uintptr_t>(written);
  entry.born = history.born;
  entry.alive = alive_;
  if (const bool backward = InBackward(); backward != backward_) {
    backward_ = backward;
    switched_ = now;
  }
  if (filter_ & FilterBit(event)) Match(now, event);
  if ((now - floor_) % kBlock == 0) TryLongLoop(now);
}

StepFinder::Entry* StepFinder::Start() {
  if (!enabled.load(std::memory_order_relaxed)) return nullptr;
  std::lock_guard lock(mutex_);
  if (held_ > 0) return nullptr;
  if (!memory_) memory_ = new Entry[kRing];
  ring_.store(memory_, std::memory_order_release);
  return memory_;
}

/// Of the `length` operations that end with `end`.
uint64_t StepFinder::HashOf(uint64_t end, uint64_t length) const {
  return At(end).hash - At(end - length).hash * Power(kBase, length);
}

/// Whether the last `length` operations are those that were a period earlier.
bool StepFinder::Repeats(uint64_t now, uint64_t period, uint64_t length) const {
  const uint64_t power = Power(kBase, length);
  return At(now).hash - At(now - length).hash * power ==
         At(now - period).hash - At(now - period - length).hash * power;
}

/// A storage was written that had been written a period before.
void StepFinder::TryPeriod(uint64_t now, uint64_t period) {
  const uint64_t pending = now - floor_;
  if (2 * period > pending || period > kRing / 2) return;
  // It has a backward pass and more: this is a step of training.
  const bool trains = switched_ > now - period;
  uint64_t length = period, least = 1;
  if (!trains) {
    const uint64_t loop = c10::GradMode::is_enabled() ? kLoopWithGradients : kLoop;
    length = std::max(period, loop - std::min(loop, period));
    if (length + period > pending || InBackward()) return;
    least = kLeast;
  }
  if (!Repeats(now, period, length)) return;
  Accept(now, period, least);
}

/// Many operations wait, and no tensor that is written in place told a period.
void StepFinder::TryLongLoop(uint64_t now) {
  const uint64_t pending = std::min(now - floor_, kMaxPending);
  if (pending == 0 || InBackward()) return;
  const uint64_t loop = c10::GradMode::is_enabled() ? kStatelessLoopWithGradients : kStatelessLoop;
  if (pending >= loop) {
    for (uint64_t period = 1; period * kRounds <= pending; ++period) {
      if (EventAt(now) != EventAt(now - period)) continue;
      if (Repeats(now, period, std::max(loop, kRounds * period) - period)) {
        Accept(now, period, kStatelessLoop);
        return;
      }
    }
  }
  if (pending == kMaxPending) {
    floor_ = now;
    due_ = true;
  }
}

void StepFinder::TryHeavyLoop(uint64_t now) {
  bytes_ = 0;
  if (!ring_.load(std::memory_order_acquire) || InBackward()) return;
  const uint64_t pending = std::min(now - floor_, kMaxPending);
  for (uint64_t period = 1; 2 * period <= pending; ++period) {
    if (EventAt(now) == EventAt(now - period) && Repeats(now, period, period)) {
      Accept(now, period, 1);
      return;
    }
  }
}

/// Whether operation `i` of the last round overwrites a storage that is older than two.
bool StepFinder::IsStateWrite(uint64_t i, uint64_t now, uint64_t period) const {
  return At(i).written && At(i).born <= now - 2 * period;
}

/// The operation of the last round behind which least is alive; where the round changes any state,
/// one that does, of several the one that is followed by the most that do not. Then all that the
/// step leaves is what the next one needs.
uint64_t StepFinder::BestEnd(uint64_t now, uint64_t period) const {
  const uint64_t first = now - period + 1;
  uint64_t states = 0;
  for (uint64_t i = first; i <= now; ++i) states += IsStateWrite(i, now, period);
  uint64_t best = now, best_alive = std::numeric_limits<uint64_t>::max(), best_gap = 0;
  uint64_t gap = 0;
  // Backwards and twice, since the round is a circle.
  for (uint64_t k = 0; k < 2 * period; ++k) {
    const uint64_t i = now - k % period;
    const uint64_t next = i == now ? first : i + 1;
    if (gap > 0 || states == 0) {
      const uint64_t alive = At(next).alive;
      const bool ends = states == 0 || IsStateWrite(i, now, period);
      if (ends && k >= period && (alive < best_alive || (alive == best_alive && gap > best_gap))) {
        best = i, best_alive = alive, best_gap = gap;
      }
    }
    gap = states > 0 && IsStateWrite(i, now, period) ? 0 : gap + 1;
  }
  return best;
}

/// From now on the loop whose last two rounds these are is cut.
void StepFinder::Accept(uint64_t now, uint64_t period, uint64_t least) {
  // A loop changes the same tensors in each round; what changes others is alike only.
  bool state = false;
  for (uint64_t i = now - period + 1; i <= now; ++i) {
    if (!IsStateWrite(i, now, period)) continue;
    state = true;
    if (At(i).written != At(i - period).written) {
      retry_ = now + period;
      return;
    }
  }
  const uint64_t end = BestEnd(now, period);
  uint64_t length = std::min(period, kShortestWindow);
  for (bool unique = false; !unique && length < period;) {
    unique = true;
    for (uint64_t i = now - period + 1; unique && i <= now; ++i) {
      unique = i == end || HashOf(i, length) != HashOf(end, length);
    }
    if (!unique) length = std::min(2 * length, period);
  }
  std::lock_guard lock(mutex_);
  const Place place{EventAt(end), length, HashOf(end, length), least, state};
  auto known = std::find_if(places_.begin(), places_.end(), [&](const Place& other) {
    return other.hash == place.hash && other.length == place.length;
  });
  if (known != places_.end()) {
    known->least = std::min(known->least, least);
  } else {
    if (places_.size() == kMaxPlaces) places_.erase(places_.begin());
    known = places_.insert(places_.end(), place);
    news_ = period;
    filter_ = 0;
    for (const Place& each : places_) filter_ = filter_ | FilterBit(each.last);
  }
  if (end == now) Reach(*known, now);
}

void StepFinder::Match(uint64_t now, uint64_t event) {
  std::lock_guard lock(mutex_);
  for (Place& place : places_) {
    if (place.last == event && now > place.length && HashOf(now, place.length) == place.hash) {
      Reach(place, now);
      return;
    }
  }
}

void StepFinder::Reach(Place& place, uint64_t now) {
  if (now - floor_ < place.least || ++place.seen <= place.spared) return;
  floor_ = now;
  bytes_ = 0;
  due_ = true;
}

void StepFinder::Synced() {
  Ran();
  if (!filter_) return;
  std::lock_guard lock(mutex_);
  for (Place& place : places_) {
    if (!place.state || place.seen < kUsersRounds)
      place.spared = std::max(place.spared, place.seen);
    place.seen = 0;
  }
}

void StepFinder::Ran() {
  due_.store(false, std::memory_order_relaxed);
  floor_ = count_;
  bytes_ = 0;
}

void StepFinder::Hold() {
  std::lock_guard lock(mutex_);
  ++held_;
  ring_.store(nullptr, std::memory_order_relaxed);
  due_.store(false, std::memory_order_relaxed);
}

void StepFinder::Release() {
  std::lock_guard lock(mutex_);
  --held_;
  floor_ = count_;
}

void StepFinder::Forget() {
  std::lock_guard lock(mutex_);
  ring_.store(nullptr, std::memory_order_relaxed);
  due_.store(false, std::memory_order_relaxed);
  floor_ = count_;
  bytes_ = 0;
  retry_ = 0;
  places_.clear();
  filter_ = 0;
}

}  // namespace torch_xla::lazy
