// Records which storages a thread writes to.
#pragma once

#include <atomic>
#include <unordered_set>

namespace torch_xla::lazy {

class Storage;

/// While it lives, records the storages that its thread writes to; writes of other threads are not
/// recorded. May be destroyed on another thread.
class WritesOfThread {
 public:
  WritesOfThread();
  ~WritesOfThread();
  WritesOfThread(const WritesOfThread&) = delete;
  WritesOfThread& operator=(const WritesOfThread&) = delete;

  /// Whether the storage was written to. Must be called on the thread that made this object.
  bool Has(const Storage* storage) const;

  /// Called by Storage for each write.
  static void Note(const Storage* storage) {
    if (open_) [[unlikely]]
      Add(storage);
  }

 private:
  struct List {
    std::unordered_set<const Storage*> storages;
    List* outer;
    std::atomic<bool> ended{false};
  };
  static void Add(const Storage* storage);
  /// Frees this thread's lists that have ended.
  static void DropEnded();

  static thread_local constinit List* open_;
  List* list_;
};

}  // namespace torch_xla::lazy
