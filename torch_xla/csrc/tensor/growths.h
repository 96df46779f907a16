// Finds lines that make integer tensors longer and longer, as loops that generate tokens do. The
// rounds of such a loop differ in their shapes, so no round repeats another and StepFinder sees no
// loop.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "ir/node.h"

namespace torch_xla::tensor {

/// The most recent growing places of a device. Thread-safe.
class Growths {
 public:
  /// Whether operation `now`, which makes `value`, ends a round of such a loop, so that the graph
  /// is cut there. `floor` is the operation of the last cut. `period` is set to the length of the
  /// round if this is the first cut of the loop, else to 0. Only valid if true is returned.
  bool Grows(const ir::Value& value, uint64_t now, uint64_t floor, uint64_t* period);
  /// Tells that a backward pass begins: what has grown so far is part of a single step.
  void BackwardBegins();
  /// Tells that all pending operations ran.
  void Ran();
  /// Tells that the user reads a value: a loop that reads values is cut there.
  void Read();
  void Forget();

 private:
  struct Growth {
    const void* site = nullptr;
    int64_t numel = 0;    // number of elements at the last time
    uint64_t last = 0;    // the operation that made it
    uint64_t rounds = 0;  // rounds of growth since the last cut
    uint64_t run = 0;     // rounds since the last read or run, or since it was last not longer
    uint64_t spared = 0;  // rounds before a backward pass, which are a single step
    bool found = false;   // whether the loop is cut here from now on
  };
  Growth& At(const void* site);

  std::mutex mutex_;
  std::array<Growth, 4> places_;
  size_t next_ = 0;
};

Growths& GrowthsOf(int device);

}  // namespace torch_xla::tensor
