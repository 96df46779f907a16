// A progress line for a user who waits for a compilation.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace torch_xla::exec {

/// While it lives, and after XLA_COMPILE_PROGRESS seconds (default 5; 0 means never), the last line
/// of the standard error says what is being compiled and for how long: "compiling graph 3 (4,812
/// ops), train.py:12 … 12 s". The line is erased at the end. Of several simultaneous compilations
/// only one shows its line. If the standard error is no terminal, a single permanent line is
/// written after twice that time.
class CompileProgress {
 public:
  /// `description` is the text of the line, for example "compiling graph 3 (4,812 ops),
  /// train.py:12".
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

/// XLA_COMPILE_PROGRESS in seconds. Throws runtime::InvalidArgument if it is not a number of at
/// least 0.
double CompileProgressSeconds();

}  // namespace torch_xla::exec
