// What executions of a device failed by, until somebody is told.
#pragma once

#include <cstdint>
#include <exception>
#include <set>
#include <vector>

#include "c10/util/SmallVector.h"

namespace torch_xla::lazy {

/// Numbers of executions; see DeviceData::producer().
using Executions = c10::SmallVector<uint64_t, 4>;

/// Not safe for threads: the worker's mutex guards it.
class Failures {
 public:
  /// `sources`: the executions whose results `execution` needed. Plugins tell of the end of
  /// executions in any order.
  void Note(uint64_t execution, const Executions& sources,
            const std::exception_ptr& error) noexcept;
  bool empty() const { return failures_.empty(); }
  /// Forgets all. Returns the one of the first execution: of what needed its results a plugin says
  /// only that they are not there. Null where there is none.
  std::exception_ptr TakeAll();
  /// Forgets what execution `producer` failed by: its own failure, and those of executions that
  /// needed the results of one that it needed, too. Returns the one that all came of; null where
  /// that was told before.
  std::exception_ptr Take(uint64_t producer);

 private:
  struct Failure {
    uint64_t execution;
    Executions sources;
    std::exception_ptr error;
  };
  const Failure* Find(uint64_t execution) const;
  /// The failures without an earlier one that execution `failed` comes of.
  std::set<uint64_t> RootsOf(uint64_t failed) const;

  std::vector<Failure> failures_;
};

}  // namespace torch_xla::lazy
