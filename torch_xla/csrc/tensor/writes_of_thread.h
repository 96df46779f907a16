// Records which storages a thread writes to, and what they held before.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <unordered_map>

#include "ir/node.h"

namespace torch_xla::tensor {

class Storage;

/// While it lives, records the storages that its thread writes to; writes of other threads are not
/// recorded. May be destroyed on another thread.
class WritesOfThread {
 public:
  /// What a storage held when it was first written to.
  struct Before {
    // The Storage. While it is here, no new storage gets its address.
    c10::weak_intrusive_ptr<c10::intrusive_ptr_target> storage;
    ir::Value value;
    uint64_t last_data;  // Storage::last_data
  };
  using Map = std::unordered_map<const Storage*, Before>;

  WritesOfThread();
  ~WritesOfThread();
  WritesOfThread(const WritesOfThread&) = delete;
  WritesOfThread& operator=(const WritesOfThread&) = delete;

  /// The storages that were written to. Must be called on the thread that made this object.
  const Map& All() const { return list_->storages; }
  /// Forgets the writes so far. Must be called on the same thread.
  void Forget() { list_->storages.clear(); }

  /// Called by Storage before each write: whether anybody records the writes of this thread, and
  /// if so, the storage's state.
  static bool IsOn() { return open_ != nullptr; }
  static void Note(const Storage* storage, const Before& before);

 private:
  struct List {
    Map storages;
    List* outer;
    std::atomic<bool> ended{false};
  };
  /// Frees this thread's lists that have ended.
  static void DropEnded();

  static thread_local constinit List* open_;
  List* list_;
};

}  // namespace torch_xla::tensor
