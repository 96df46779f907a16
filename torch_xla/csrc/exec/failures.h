// The failures of a device's executions that have not been reported yet.
#pragma once

#include <cstdint>
#include <exception>
#include <set>
#include <vector>

#include "c10/util/SmallVector.h"

namespace torch_xla::exec {

/// Numbers of executions; see DeviceData::producer().
using Executions = c10::SmallVector<uint64_t, 4>;

/// Not thread-safe: the worker's mutex guards it.
class Failures {
 public:
  /// Notes that `execution` failed with `error`. `sources` are the executions whose results it
  /// needed. Plugins report the ends of executions in any order.
  void Note(uint64_t execution, const Executions& sources,
            const std::exception_ptr& error) noexcept;
  bool empty() const { return failures_.empty(); }
  /// Forgets all failures and returns the failure of the earliest execution, or null if there is
  /// none. The earliest one is the cause: for executions that needed its results a plugin only says
  /// that their inputs are missing.
  std::exception_ptr TakeAll();
  /// Returns the earliest failure that caused execution `producer` to fail, or null if it was
  /// reported before. Forgets that failure, and every failure that has the same cause.
  std::exception_ptr Take(uint64_t producer);

 private:
  struct Failure {
    uint64_t execution;
    Executions sources;
    std::exception_ptr error;
  };
  const Failure* Find(uint64_t execution) const;
  /// The failed executions without a failed source that the failure of `failed` comes from.
  std::set<uint64_t> RootsOf(uint64_t failed) const;

  std::vector<Failure> failures_;
};

}  // namespace torch_xla::exec
