// Places that make integers longer and longer: tokens, as a loop generates them. The rounds of such
// a loop have other shapes each, so that no round repeats another one, and StepFinder sees no loop.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "ir/node.h"

namespace torch_xla::lazy {

/// Those of a device, the newest ones.
class Growths {
 public:
  /// Whether operation `now`, which makes `value`, ends a round of such a loop that is cut;
  /// `floor`: the operation of the last cut; `period`: how long the round was where it is the first
  /// one that is cut, else 0.
  bool Grows(const ir::Value& value, uint64_t now, uint64_t floor, uint64_t* period);
  /// What grew until now is part of a step.
  void BackwardBegins();
  /// What was pending has run.
  void Ran();
  /// The user reads a value: a loop that does so is cut there.
  void Read();
  void Forget();

 private:
  struct Growth {
    const void* site = nullptr;
    int64_t numel = 0;    // of what it made last
    uint64_t last = 0;    // when
    uint64_t rounds = 0;  // since the last cut
    uint64_t run = 0;     // rounds since the user has read, or it began anew
    uint64_t spared = 0;  // so many came before a backward pass: they are of one step
    bool found = false;   // is cut at from now on
  };
  Growth& At(const void* site);

  std::mutex mutex_;
  std::array<Growth, 4> places_;
  size_t next_ = 0;
};

Growths& GrowthsOf(int device);

}  // namespace torch_xla::lazy
