// Steps of a loop that calls no mark_step: finds where what a device traces repeats, and says where
// to cut. docs/architecture.md tells how.
//
// All that is decided follows from the order of operations, writes, uploads and optimizers' steps,
// never from time, from reads, from what was computed or from how long a tensor lives.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "ir/node.h"

namespace torch_xla::lazy {

/// A field that threads may meet at: plain loads and stores. What one loses of another's is no more
/// than a repetition that is not found.
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

/// What a storage remembers of the operations of its device, by their numbers.
struct StorageHistory {
  Relaxed<uint64_t> born;
  Relaxed<uint64_t> written;  // last in place; 0: never
};

class StepFinder {
 public:
  explicit StepFinder(int device) : device_(device) {}

  /// A storage begins with `value`: the result of an operation, or data.
  void Born(StorageHistory& history, const ir::Value& value);
  /// `storage` is overwritten by `value`.
  void Written(StorageHistory& history, const void* storage, const ir::Value& value);

  /// An array of so many bytes came from the host.
  void Uploaded(uint64_t bytes);

  /// What was traced last ends a step: cut before the next operation reads anything.
  bool due() const { return due_.load(std::memory_order_relaxed) != Due::kNot; }
  /// Whether to cut. Of several threads one gets it; the user's own cuts are waited for.
  bool TakeDue();
  /// An optimizer's step has returned. Whether to cut at once.
  bool OptimizerStepped();
  /// How many operations a round of a loop has that is cut from now on, or kOptimizer: once; 0:
  /// none.
  static constexpr uint64_t kOptimizer = ~uint64_t{0};
  uint64_t TakeNews() { return news_.exchange(0, std::memory_order_relaxed); }

  /// The user has cut here.
  void Synced();
  /// A loader is going to cut for the user after so many rounds, every time; 0: it has ended.
  void ExpectSyncs(uint64_t rounds);
  /// All that was pending ran for another reason.
  void Ran();
  /// In between nothing is recorded and nothing is due: what is traced stays whole.
  void Hold();
  void Release();
  /// As if nothing had been traced yet.
  void Forget();

 private:
  enum class Due : uint8_t { kNot, kStep, kSize };
  enum class Syncs : uint8_t { kUnknown, kNone, kExpected };
  struct Entry {
    Relaxed<uint64_t> hash;      // of all operations up to this one
    Relaxed<uintptr_t> written;  // the storage, where it was in place
    Relaxed<uint64_t> born;      // when that was born
    Relaxed<bool> updates;       // in place, and autograd records nothing: an optimizer, a counter
    Relaxed<bool> before_data;   // data comes from the host before the next operation
  };
  /// Where to cut: behind a window of operations.
  struct Place {
    uint64_t last;          // the last of them
    uint64_t length, hash;  // of the window
    uint64_t least;         // operations between two cuts
    bool state;             // whether the loop changes tensors that live longer than a round
    uint64_t seen = 0;      // since the user's last cut
    uint64_t spared = 0;    // how many rounds the user has been seen to cut at once
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
  /// How many operations are remembered: a round of a loop may have half of them.
  static constexpr uint64_t kRing = 1 << 16;
  /// Fewer rounds between two cuts of the user's are his steps.
  static constexpr uint64_t kUsersRounds = 8;

  const int device_;
  std::atomic<Entry*> ring_{nullptr};  // null: nothing is recorded
  Relaxed<uint64_t> count_;
  Relaxed<uint64_t> hash_;
  Relaxed<uint64_t> filter_;    // which Place::last there are, by their high bits
  Relaxed<bool> backward_;      // whether the last one was of a backward pass
  Relaxed<uint64_t> switched_;  // when that changed
  Relaxed<uint64_t> began_;     // when the last backward pass began
  Relaxed<uint64_t> between_;   // operations between the begins of the last two
  Relaxed<uint64_t> floor_;     // the last cut: what was before does not count
  Relaxed<uint64_t> retry_;     // no period is tried before that
  Relaxed<uint64_t> bytes_;     // of data that came since the last cut
  Relaxed<uint64_t> looked_;    // of these: when a loop was looked for
  std::atomic<Due> due_{Due::kNot};
  std::atomic<uint64_t> news_{0};
  std::atomic<bool> told_{false};

  std::mutex mutex_;         // of what follows, and of changes of ring_ and filter_
  Entry* memory_ = nullptr;  // made once, and read by whoever has seen ring_
  int held_ = 0;
  std::vector<Place> places_;
  Syncs syncs_ = Syncs::kUnknown;
  uint64_t patience_ = kUsersRounds;  // so many rounds may be the user's
  uint64_t usual_ = kUsersRounds;     // so many he let pass; patience_: not known
  bool loader_ = false;               // cuts for him
  uint64_t rounds_ = 0;               // since his last cut
};

/// Whether the loop of the user's program that runs now calls torch_xla.sync or its like. What is
/// called for that is set by the bindings.
void SetSyncsInLoop(bool (*function)());

extern StepFinder* const* const step_finders;
inline StepFinder& StepFinderOf(int device) { return *step_finders[static_cast<uint8_t>(device)]; }

}  // namespace torch_xla::lazy
