#include "tensor/auto_step.h"

#include <c10/core/GradMode.h>
#include <sys/mman.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "XLAOps.h"
#include "debug/environment.h"
#include "tensor/device_data.h"
#include "tensor/growths.h"

namespace torch_xla::tensor {
namespace {

/// The graph is cut at this many operations at the latest, which is checked every kBlock of them.
constexpr uint64_t kMaxPending = 48 * 1024;
constexpr uint64_t kBlock = 1024;
/// The number of operations for which a loop without a backward pass has to repeat. Equal layers of
/// a model look like a loop, too, but the values that they leave for the backward pass should stay
/// within one program.
constexpr uint64_t kLoop = 256;
constexpr uint64_t kLoopWithGradients = 1024;
constexpr uint64_t kStatelessLoop = 1024;
constexpr uint64_t kStatelessLoopWithGradients = 32 * 1024;
constexpr uint64_t kRounds = 8;
/// A loop is cut after at least this many operations.
constexpr uint64_t kLeast = 64;
/// Bytes of uploaded data that wait for operations. Above the first limit any two equal rounds
/// count as a loop; above the second the graph is cut at once.
constexpr uint64_t kManyBytes = uint64_t{1} << 30;
constexpr uint64_t kMaxBytes = uint64_t{4} << 30;
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
uint64_t FilterOf(const auto& places) {
  uint64_t filter = 0;
  for (const auto& place : places) filter |= FilterBit(place.last);
  return filter;
}

const bool enabled = debug::EnvFlag("XLA_AUTO_STEP", /*otherwise=*/true);

std::atomic<bool (*)()> syncs_in_loop{nullptr};

bool InBackward() { return torch::autograd::get_current_graph_task_id() != -1; }

}  // namespace

StepFinder* const* const step_finders = [] {
  auto* all = new std::array<StepFinder*, 256>;
  for (int i = 0; i < 256; ++i) (*all)[i] = new StepFinder(i);
  return all->data();
}();

void SetSyncsInLoop(bool (*function)()) { syncs_in_loop = function; }

void StepFinder::Born(StorageHistory& history, const ir::Value& value) {
  history.born = count_;
  if (!LeafData(value)) Record(history, value, nullptr);
}

void StepFinder::Uploaded(uint64_t bytes) {
  if (!ring_.load(std::memory_order_acquire)) return;
  const uint64_t now = count_;
  At(now).before_data = true;
  if (now == floor_) return;
  bytes_ = bytes_ + bytes;
  if (bytes_ > looked_ + kManyBytes) TryHeavyLoop(now);
}

void StepFinder::Written(StorageHistory& history, const void* storage, const ir::Value& value) {
  if (LeafData(value)) return;
  const uint64_t before = history.written;
  const uint64_t then = count_;
  Record(history, value, storage);
  const uint64_t now = count_;
  if (now == then) return;
  history.written = now;
  if (now < retry_) return;
  if (before > floor_) TryPeriod(now, now - before);
  // Several writes in each round tell no period, or tell it late. So also try the period of the
  // backward passes.
  if (between_ != 0 && floor_ + 2 * between_ <= now) TryPeriod(now, between_);
}

void StepFinder::Record(const StorageHistory& history, const ir::Value& value,
                        const void* written) {
  if (!ring_.load(std::memory_order_acquire) && !Start()) return;
  // Fills are ignored, since many loops have them in their first round only: the state of an
  // optimizer, a sum.
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
  entry.before_data = false;
  const bool backward = InBackward();
  entry.updates = written && !backward && !c10::GradMode::is_enabled();
  if (backward != backward_) {
    backward_ = backward;
    switched_ = now;
    if (backward) {
      between_ = began_ > floor_ ? now - began_ : 0;
      began_ = now;
      GrowthsOf(device_).BackwardBegins();
    }
  }
  if (filter_ & FilterBit(event)) Match(now, event);
  if (&value.node->op() == &ir::ops::cat && !written && !backward &&
      c10::isIntegralType(value.shape()->dtype, /*includeBool=*/false)) {
    uint64_t period = 0;
    if (GrowthsOf(device_).Grows(value, now, floor_, &period)) {
      if (period) news_ = period;
      CutAt(now);
      due_ = Due::kStep;
    }
  }
  if ((now - floor_) % kBlock == 0) TryLongLoop(now);
}

StepFinder::Entry* StepFinder::Start() {
  if (!enabled) return nullptr;
  std::lock_guard lock(mutex_);
  if (held_ > 0) return nullptr;
  // Fresh pages are zero and take no memory until they are written. Most loops are found long
  // before all pages are.
  if (!memory_) {
    void* pages = mmap(nullptr, kRing * sizeof(Entry), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) return nullptr;
    memory_ = static_cast<Entry*>(pages);
  }
  ring_.store(memory_, std::memory_order_release);
  return memory_;
}

/// The hash of the `length` operations that end with `end`.
uint64_t StepFinder::HashOf(uint64_t end, uint64_t length) const {
  return At(end).hash - At(end - length).hash * Power(kBase, length);
}

/// Whether the last `length` operations equal the operations one period earlier.
bool StepFinder::Repeats(uint64_t now, uint64_t period, uint64_t length) const {
  const uint64_t power = Power(kBase, length);
  return At(now).hash - At(now - length).hash * power ==
         At(now - period).hash - At(now - period - length).hash * power;
}

/// Tries `period` as the length of a round: a storage was written now and that many operations
/// before.
void StepFinder::TryPeriod(uint64_t now, uint64_t period) {
  const uint64_t pending = now - floor_;
  if (2 * period > pending || period > kRing / 2) return;
  // A round that contains a backward pass and other operations is a step of training.
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

/// Looks for a period when many operations are pending and no in-place write has told one.
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
    CutAt(now);
    due_ = Due::kSize;
  }
}

void StepFinder::TryHeavyLoop(uint64_t now) {
  if (bytes_ > kMaxBytes) {
    CutAt(now);
    due_ = Due::kSize;
    return;
  }
  looked_ = bytes_;
  if (InBackward()) return;
  const uint64_t pending = std::min(now - floor_, kMaxPending);
  for (uint64_t period = 1; 2 * period <= pending; ++period) {
    if (EventAt(now) == EventAt(now - period) && Repeats(now, period, period)) {
      Accept(now, period, 1);
      return;
    }
  }
}

/// Whether operation `i` of the last round overwrites a storage that is older than two rounds.
bool StepFinder::IsStateWrite(uint64_t i, uint64_t now, uint64_t period) const {
  return At(i).written && At(i).born <= now - 2 * period;
}

/// The operation of the last round behind which to cut:
/// - If the round overwrites state, an operation that does so, so that the step leaves only what
///   the next step needs. Updates by an optimizer are preferred to writes in a forward or backward
///   pass (running means, gradients); of several, the one followed by the most operations that
///   overwrite no state.
/// - Else the last operation before data is uploaded for the next round.
uint64_t StepFinder::BestEnd(uint64_t now, uint64_t period) const {
  const uint64_t first = now - period + 1;
  auto change = [&](uint64_t i) { return IsStateWrite(i, now, period); };
  auto update = [&](uint64_t i) { return At(i).updates && change(i); };
  auto data = [&](uint64_t i) -> bool { return At(i).before_data; };
  uint64_t changes = 0, updates = 0;
  for (uint64_t i = first; i <= now; ++i) changes += change(i), updates += update(i);
  uint64_t best = now, best_gap = 0, gap = 0;
  // Goes backwards through the round twice, since the round is a cycle.
  for (uint64_t k = 0; k < 2 * period; ++k) {
    const uint64_t i = now - k % period;
    const bool stop = changes > 0 ? change(i) : data(i);
    if (stop && k >= period) {
      const bool may = updates == 0 || update(i);
      if (may && gap > best_gap) best = i, best_gap = gap;
    }
    gap = stop ? 0 : gap + 1;
  }
  return best;
}

/// From now on cuts the loop whose last two rounds end at `now`, unless the rounds overwrite
/// different tensors.
void StepFinder::Accept(uint64_t now, uint64_t period, uint64_t least) {
  // A loop overwrites the same tensors in each round; rounds that overwrite different tensors only
  // look alike.
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
    filter_ = FilterOf(places_);
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

void StepFinder::CutAt(uint64_t now) {
  floor_ = now;
  bytes_ = 0;
  looked_ = 0;
}

void StepFinder::Reach(Place& place, uint64_t now) {
  if (now - floor_ < place.least || ++place.seen <= place.spared) return;
  CutAt(now);
  due_ = Due::kStep;
}

/// Called when a round has ended: whether to cut there, because the user is not going to.
bool StepFinder::IsEnd() {
  std::unique_lock lock(mutex_);
  // The user has let one round more pass than ever before, so this may be another loop.
  const bool late = syncs_ == Syncs::kExpected && !loader_ && rounds_ == usual_;
  if (syncs_ == Syncs::kUnknown || late) {
    const Syncs before = syncs_;
    lock.unlock();  // The call enters Python.
    auto* ask = syncs_in_loop.load();
    const bool found = ask && ask();
    lock.lock();
    if (syncs_ == before) syncs_ = found ? Syncs::kExpected : Syncs::kNone;
    usual_ = patience_;  // do not ask again
  }
  return ++rounds_ > patience_ || syncs_ == Syncs::kNone;
}

bool StepFinder::TakeDue() {
  const Due due = due_.exchange(Due::kNot, std::memory_order_relaxed);
  return due == Due::kSize || (due == Due::kStep && IsEnd());
}

bool StepFinder::OptimizerStepped() {
  // Several optimizers may end one step; only the first one after a backward pass counts.
  if (!ring_.load(std::memory_order_acquire) || switched_ <= floor_ || InBackward()) return false;
  const uint64_t now = count_;
  // An optimizer tells the end of a step better than repetition does (several batches may add up
  // their gradients), so look for repetition later.
  retry_ = now + 4 * (now - floor_);
  if (filter_) {
    std::lock_guard lock(mutex_);
    std::erase_if(places_, [](const Place& place) { return place.state && place.least == 1; });
    filter_ = FilterOf(places_);
  }
  due_.store(Due::kNot, std::memory_order_relaxed);
  CutAt(now);
  if (!IsEnd()) return false;
  if (!told_.exchange(true, std::memory_order_relaxed)) news_ = kOptimizer;
  return true;
}

void StepFinder::ExpectSyncs(uint64_t rounds) {
  std::lock_guard lock(mutex_);
  loader_ = rounds != 0;
  if (!loader_) return;
  patience_ = std::max(rounds, kUsersRounds);
  syncs_ = Syncs::kExpected;
}

void StepFinder::Synced() {
  Ran();
  std::lock_guard lock(mutex_);
  if (rounds_ > 0) {
    usual_ = usual_ == patience_ ? rounds_ : std::max(usual_, rounds_);
    syncs_ = rounds_ <= patience_ ? Syncs::kExpected : Syncs::kNone;
  } else if (syncs_ == Syncs::kNone) {
    syncs_ = Syncs::kUnknown;  // another loop may follow
  }
  rounds_ = 0;
  for (Place& place : places_) {
    if (!place.state || place.seen <= patience_) place.spared = std::max(place.spared, place.seen);
    place.seen = 0;
  }
}

void StepFinder::Ran() {
  GrowthsOf(device_).Ran();
  due_.store(Due::kNot, std::memory_order_relaxed);
  CutAt(count_);
}

void StepFinder::Hold() {
  std::lock_guard lock(mutex_);
  ++held_;
  ring_.store(nullptr, std::memory_order_relaxed);
  due_.store(Due::kNot, std::memory_order_relaxed);
}

void StepFinder::Release() {
  std::lock_guard lock(mutex_);
  --held_;
  CutAt(count_);
}

void StepFinder::Forget() {
  GrowthsOf(device_).Forget();
  std::lock_guard lock(mutex_);
  ring_.store(nullptr, std::memory_order_relaxed);
  due_.store(Due::kNot, std::memory_order_relaxed);
  CutAt(count_);
  retry_ = 0;
  places_.clear();
  filter_ = 0;
  syncs_ = Syncs::kUnknown;
  patience_ = kUsersRounds;
  usual_ = kUsersRounds;
  loader_ = false;
  rounds_ = 0;
  told_ = false;
}

}  // namespace torch_xla::tensor
