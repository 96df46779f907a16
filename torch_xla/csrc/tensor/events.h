// Events of programs, for the code that explains them to the user (explain/). The folders below
// explain/ report events as plain data and write no text.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "ir/hash.h"
#include "runtime/client.h"
#include "tensor/origin.h"

namespace torch_xla::exec {
struct Program;
}  // namespace torch_xla::exec

namespace torch_xla::tensor {

struct Graph;

/// A failed execution, or another failed request to a device.
struct Failed {
  Origin origin{};
  int64_t program = 0;  // the number of its compilation; 0: none
  int device = 0;
  uint64_t execution = 0;  // as DeviceData::producer(); 0: none was launched
};

/// The content of an out-of-memory error: what was in memory at that time, and a function that
/// finds the holders of the memory, which is called when the error is thrown to the user.
struct MemoryShortage {
  std::string text;
  std::function<std::string()> holders;
};

/// Receives the events; each method does nothing unless it is overridden.
class Listener {
 public:
  virtual ~Listener() = default;

  /// A graph was cut and is going to run.
  virtual void Cut(const Graph& /*graph*/, const Origin& /*origin*/) const {}
  /// A program that is not in memory is about to be made. `program` holds everything that `key`
  /// covers. Returns the number of this compilation. May throw to refuse the program.
  virtual int64_t Compiling(const Graph& /*graph*/, const exec::Program& /*program*/,
                            const ir::Hash128& /*key*/, const Origin& /*origin*/) const {
    return 0;
  }
  /// The program of a compilation was not found on disk under `key`.
  virtual void MissedOnDisk(int64_t /*compilation*/, const std::string& /*key*/) const noexcept {}
  /// The compiler's statistics of the memory that the program needs.
  virtual void Compiled(int64_t /*compilation*/,
                        const runtime::Executable::MemoryUse& /*memory*/) const {}
  /// The program of the graph was found or made, and is queued.
  virtual void Queued(const Graph& /*graph*/, const Origin& /*origin*/) const {}
  /// The calling thread has ended a step.
  virtual void StepEnded() const {}
  /// The calling thread copies computed data to the host.
  virtual void Read() const {}
  /// There was no memory for a request.
  virtual MemoryShortage OutOfMemory(const Failed& /*failed*/) const { return {}; }
};

/// Sets the only listener. Without one, events are dropped. For static initialization.
void SetListener(const Listener* listener);
const Listener& Events();

}  // namespace torch_xla::tensor
