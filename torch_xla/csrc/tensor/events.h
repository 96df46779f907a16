// What happens to programs, for those who explain it to the user (explain/). The rooms below
// explain/ tell events as plain data and write no text.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "ir/hash.h"
#include "runtime/client.h"
#include "tensor/origin.h"

namespace torch_xla::lazy {

struct Graph;
struct Program;

/// An execution, or another request to a device, that failed.
struct Failed {
  Origin origin{};
  int64_t program = 0;  // the number of its compilation, 0 for none
  int device = 0;
  uint64_t execution = 0;  // as DeviceData::producer(); 0: none was launched
};

/// What an out-of-memory error tells: what was in memory then, and what holds it, which is found
/// out once the error is thrown to the user.
struct MemoryShortage {
  std::string text;
  std::function<std::string()> holders;
};

/// Takes the events; each does nothing unless it is overridden.
class Listener {
 public:
  virtual ~Listener() = default;

  /// A graph was cut and is going to run.
  virtual void Cut(const Graph& /*graph*/, const Origin& /*origin*/) const {}
  /// A program that is not in memory is about to be made; `program` holds all that `key` is made
  /// of. Returns the number of this compilation. May throw, which refuses the program.
  virtual int64_t Compiling(const Graph& /*graph*/, const Program& /*program*/,
                            const ir::Hash128& /*key*/, const Origin& /*origin*/) const {
    return 0;
  }
  /// The program of a compilation was not found on disk, where it was looked for by `key`.
  virtual void MissedOnDisk(int64_t /*compilation*/, const std::string& /*key*/) const noexcept {}
  /// What the compiler says of the memory that the program needs.
  virtual void Compiled(int64_t /*compilation*/,
                        const runtime::Executable::MemoryUse& /*memory*/) const {}
  /// The graph's program was found or made and is queued.
  virtual void Queued(const Graph& /*graph*/, const Origin& /*origin*/) const {}
  /// The calling thread has cut a step.
  virtual void StepEnded() const {}
  /// The calling thread copies what a device computed to the host.
  virtual void Read() const {}
  /// There was no memory for a request.
  virtual MemoryShortage OutOfMemory(const Failed& /*failed*/) const { return {}; }
};

/// The one who listens; nobody until it is set. For static initialization.
void SetListener(const Listener* listener);
const Listener& Events();

}  // namespace torch_xla::lazy
