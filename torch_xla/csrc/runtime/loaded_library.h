// The shared libraries of this process, as the dynamic linker describes them.
#pragma once

#include <atomic>
#include <chrono>
#include <string>

struct link_map;

namespace torch_xla::runtime {

/// The loaded library that contains the address; null if there is none or the system does not tell.
const link_map* LibraryOf(const void* address);

/// The build id of the library at `address` in hexadecimal digits; empty if it has none.
std::string BuildIdOf(const void* address);

/// Whether the dynamic linker wrote to this address of the library and then made it read-only.
bool BecameReadOnly(const link_map* library, const void* address);

/// Returns the pages of the code and constants of the library at `address` to the system, which
/// maps pages from the file again when they are used. Making a client and compiling use tens of
/// megabytes of XLA's and LLVM's code that no step needs.
void GiveBackCode(const void* address);

/// Decides when to give back the code of a compiler: after it has worked for long, or, after
/// shorter work, once programs have been started several times. Thread-safe.
class CompilerCode {
 public:
  /// For the library at `address`.
  explicit CompilerCode(const void* address) : address_(address) {}

  /// Notes that the compiler has compiled or loaded programs for this time.
  void Worked(std::chrono::nanoseconds time);
  /// Notes the start of a program.
  void Started() {
    if (starts_left_.load(std::memory_order_relaxed) > 0) CountStart();
  }

 private:
  void CountStart();

  const void* address_;
  std::atomic<int64_t> worked_ns_ = 0;
  std::atomic<int> starts_left_ = 0;  // 0: there is nothing to give back
};

}  // namespace torch_xla::runtime
