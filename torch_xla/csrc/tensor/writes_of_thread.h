// Which storages this thread has written to since somebody asked.
#pragma once

#include <atomic>
#include <unordered_set>

namespace torch_xla::lazy {

class Storage;

/// Notes the storages that the thread it is made on writes to, as long as it lives: others write to
/// theirs meanwhile. May end on another thread.
class WritesOfThread {
 public:
  WritesOfThread();
  ~WritesOfThread();
  WritesOfThread(const WritesOfThread&) = delete;
  WritesOfThread& operator=(const WritesOfThread&) = delete;

  /// To be called on the thread that it was made on.
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
