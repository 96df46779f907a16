// A line for the user whom a compilation makes wait.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace torch_xla::lazy {

/// While it lives, and from XLA_COMPILE_PROGRESS seconds on (5 where that is not set, 0: never),
/// the last line of the standard error says what is compiled and for how long: "compiling graph 3
/// (4,812 ops), train.py:12 … 12 s". It is erased at the end. Of several compilations at once one
/// is shown. Where the standard error is no terminal, one line says so after twice as long, and
/// stays.
class CompileProgress {
 public:
  /// `description`: "compiling graph 3 (4,812 ops), train.py:12".
  explicit CompileProgress(std::string description);
  ~CompileProgress();
  CompileProgress(const CompileProgress&) = delete;
  CompileProgress& operator=(const CompileProgress&) = delete;

 private:
  using Clock = std::chrono::steady_clock;

  void Watch(const std::string& description, std::chrono::duration<double> patience);

  const Clock::time_point start_ = Clock::now();
  std::mutex mutex_;
  std::condition_variable ended_;
  bool over_ = false;
  std::thread watcher_;
};

/// XLA_COMPILE_PROGRESS in seconds; throws runtime::InvalidArgument where it is not a number.
double CompileProgressSeconds();

}  // namespace torch_xla::lazy
