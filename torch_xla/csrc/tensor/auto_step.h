// Finds the steps of a loop that does not call mark_step: where the operations that a device traces
// repeat, and where to cut them. See docs/architecture.md.
//
// Every decision follows only from the order of operations, writes, uploads and optimizers' steps.
// It never depends on time, on reads, on computed values or on the lifetime of a tensor.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "ir/node.h"

namespace torch_xla::tensor {

/// A field that several threads may use, with plain loads and stores. A lost update only means that
/// a repetition may not be found.
template <typename T>
class Relaxed {
 public:
  Relaxed() = default;
  Relaxed(const Relaxed&) = delete;
  void operator=(const Relaxed& other) { *this = static_cast<T>(other); }
  operator T() const { return value_.load(std::memory_order_relaxed); }
  void operator=(T value) { value_.store(value, std::memory_order_relaxed); }

 private:
  std::atomic<T> value_{};
};

/// What a storage remembers: indices of its device's operations.
struct StorageHistory {
  Relaxed<uint64_t> born;
  Relaxed<uint64_t> written;  // last in-place write; 0: never
};

class StepFinder {
 public:
  explicit StepFinder(int device) : device_(device) {}

  /// Notes a new storage that holds `value`, the result of an operation or data.
  void Born(StorageHistory& history, const ir::Value& value);
  /// Notes that `value` overwrites `storage`.
  void Written(StorageHistory& history, const void* storage, const ir::Value& value);

  /// Notes the upload of an array of this many bytes from the host.
  void Uploaded(uint64_t bytes);

  /// Whether the last traced operation ends a step: the graph must be cut before the next operation
  /// reads anything.
  bool due() const { return due_.load(std::memory_order_relaxed) != Due::kNot; }
  /// Whether to cut now. Only one of several threads gets true. Returns false while the user's own
  /// cuts are expected.
  bool TakeDue();
  /// Notes that an optimizer's step has returned. Returns whether to cut at once.
  bool OptimizerStepped();
  /// What was found since the last call: the number of operations in a round of a loop that is cut
  /// from now on; or kOptimizer, once; or 0 for nothing.
  static constexpr uint64_t kOptimizer = ~uint64_t{0};
  uint64_t TakeNews() { return news_.exchange(0, std::memory_order_relaxed); }

  /// Notes that the user has cut the graph.
  void Synced();
  /// Notes that a loader will cut for the user after every `rounds` rounds; 0: the loader has
  /// ended.
  void ExpectSyncs(uint64_t rounds);
  /// Notes that all pending operations ran for another reason.
  void Ran();
  /// Between Hold and Release nothing is recorded and no cut is due, so that a traced function
  /// stays whole.
  void Hold();
  void Release();
  /// Forgets everything, as if nothing had been traced yet.
  void Forget();

 private:
  enum class Due : uint8_t { kNot, kStep, kSize };
  enum class Syncs : uint8_t { kUnknown, kNone, kExpected };
  struct Entry {
    Relaxed<uint64_t> hash;      // of all operations up to this one
    Relaxed<uintptr_t> written;  // the storage that was written in place
    Relaxed<uint64_t> born;      // when that storage was born
    Relaxed<bool> updates;  // an in-place write that autograd does not record: by an optimizer, to
                            // a counter
    Relaxed<bool> before_data;  // whether data is uploaded before the next operation
  };
  /// Where to cut: behind a window of operations.
  struct Place {
    uint64_t last;          // the last operation of the window
    uint64_t length, hash;  // of the window
    uint64_t least;         // least number of operations between two cuts
    bool state;             // whether the loop overwrites tensors that live longer than a round
    uint64_t seen = 0;      // times reached since the user's last cut
    uint64_t spared = 0;    // most rounds that the user has let pass between two cuts
  };

  void Record(const StorageHistory& history, const ir::Value& value, const void* written);
  Entry* Start();
  Entry& At(uint64_t i) const { return memory_[i & (kRing - 1)]; }
  uint64_t EventAt(uint64_t i) const { return At(i).hash - At(i - 1).hash * kBase; }
  uint64_t HashOf(uint64_t end, uint64_t length) const;
  bool Repeats(uint64_t now, uint64_t period, uint64_t length) const;
  void TryPeriod(uint64_t now, uint64_t period);
  void TryLongLoop(uint64_t now);
  void TryHeavyLoop(uint64_t now);
  void Accept(uint64_t now, uint64_t period, uint64_t least);
  bool IsStateWrite(uint64_t i, uint64_t now, uint64_t period) const;
  uint64_t BestEnd(uint64_t now, uint64_t period) const;
  void Match(uint64_t now, uint64_t event);
  void Reach(Place& place, uint64_t now);
  void CutAt(uint64_t now);
  bool IsEnd();

  static constexpr uint64_t kBase = 0x9E3779B97F4A7C15ull;
  /// The number of operations that are remembered; a round of a loop may have half of them.
  static constexpr uint64_t kRing = 1 << 16;
  /// Up to this many rounds between two cuts by the user count as the user's steps.
  static constexpr uint64_t kUsersRounds = 8;

  const int device_;
  std::atomic<Entry*> ring_{nullptr};  // null: nothing is recorded
  Relaxed<uint64_t> count_;
  Relaxed<uint64_t> hash_;
  Relaxed<uint64_t> filter_;    // a bit set of all Place::last
  Relaxed<bool> backward_;      // whether the last operation belonged to a backward pass
  Relaxed<uint64_t> switched_;  // when `backward_` changed
  Relaxed<uint64_t> began_;     // when the last backward pass began
  Relaxed<uint64_t> between_;   // operations between the beginnings of the last two
  Relaxed<uint64_t> floor_;     // the last cut; operations before it do not count
  Relaxed<uint64_t> retry_;     // no period is tried before this operation
  Relaxed<uint64_t> bytes_;     // bytes uploaded since the last cut
  Relaxed<uint64_t> looked_;    // value of `bytes_` when a loop was last looked for
  std::atomic<Due> due_{Due::kNot};
  std::atomic<uint64_t> news_{0};
  std::atomic<bool> told_{false};

  std::mutex mutex_;         // guards the following fields, and changes of ring_ and filter_
  Entry* memory_ = nullptr;  // allocated once; read by whoever has seen ring_
  int held_ = 0;
  std::vector<Place> places_;
  Syncs syncs_ = Syncs::kUnknown;
  uint64_t patience_ = kUsersRounds;  // number of rounds that may be one step of the user
  uint64_t usual_ = kUsersRounds;     // rounds that the user let pass before; patience_: unknown
  bool loader_ = false;               // whether a loader cuts for the user
  uint64_t rounds_ = 0;               // rounds since the user's last cut
};

/// Sets the function that tells whether the loop that the user's program is in calls torch_xla.sync
/// or a similar function. Set by the bindings.
void SetSyncsInLoop(bool (*function)());

extern StepFinder* const* const step_finders;
inline StepFinder& StepFinderOf(int device) { return *step_finders[static_cast<uint8_t>(device)]; }

}  // namespace torch_xla::tensor
