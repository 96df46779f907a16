// The shared libraries of this process, as the dynamic linker has them.
#pragma once

#include <atomic>
#include <chrono>
#include <string>

struct link_map;

namespace torch_xla::runtime {

/// The loaded library that an address lies in; null for none, and where the system does not tell.
const link_map* LibraryOf(const void* address);

/// What the linker wrote into the library at `address` to tell its content from others', in
/// hexadecimal digits; empty where it wrote nothing.
std::string BuildIdOf(const void* address);

/// Whether the dynamic linker has made an address of the library read-only, having written it.
bool BecameReadOnly(const link_map* library, const void* address);

/// Gives the pages of the code and constants of the library at `address` back to the system, which
/// keeps them as a part of the file and maps those that are used again. Making a client and
/// compiling use code of XLA and LLVM by the tens of megabytes that no step uses.
void GiveBackCode(const void* address);

/// Says when to give back the code of a compiler: once it has worked for long, and once programs
/// run again and again after shorter work. Any thread may call it.
class CompilerCode {
 public:
  /// Of the library at `address`.
  explicit CompilerCode(const void* address) : address_(address) {}

  /// It has compiled or loaded programs for so long.
  void Worked(std::chrono::nanoseconds time);
  /// A program was started.
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
