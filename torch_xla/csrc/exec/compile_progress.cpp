#include "exec/compile_progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "runtime/errors.h"

namespace torch_xla::exec {
namespace {

/// The width to use. A line that wraps around in the terminal could not be erased, so the last
/// column stays free.
size_t Columns() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1 : 79;
}

void Put(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
    if (written <= 0) return;
    text.remove_prefix(static_cast<size_t>(written));
  }
}

constexpr std::string_view kErase = "\r\x1b[K";

}  // namespace

double CompileProgressSeconds() {
  const char* text = std::getenv("XLA_COMPILE_PROGRESS");
  if (!text || !*text) return 5;
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  if (*end || !(seconds >= 0) || std::isinf(seconds)) {
    throw runtime::InvalidArgument("XLA_COMPILE_PROGRESS must be seconds, 0 or more, got '" +
                                   std::string(text) + "'");
  }
  return seconds;
}

CompileProgress::CompileProgress(std::string description) {
  static const double seconds = CompileProgressSeconds();
  if (seconds <= 0) return;
  try {
    watcher_ = std::thread([this, description = std::move(description)] {
      Watch(description, std::chrono::duration<double>(seconds));
    });
  } catch (const std::system_error&) {
    // The system cannot start a thread, so no progress line is shown.
  }
}

CompileProgress::~CompileProgress() {
  if (!watcher_.joinable()) return;
  {
    std::lock_guard lock(mutex_);
    over_ = true;
  }
  ended_.notify_one();
  watcher_.join();
}

void CompileProgress::Watch(const std::string& description,
                            std::chrono::duration<double> patience) {
  static auto& screen = *new std::mutex;
  const auto over = [this] { return over_; };
  std::unique_lock lock(mutex_);
  if (!isatty(STDERR_FILENO)) {
    // In a notebook or a log file a line cannot be erased, so write a single line.
    if (ended_.wait_for(lock, 2 * patience, over)) return;
    std::ostringstream line;
    line << "torch_xla: " << description << ": " << 2 * patience.count() << " s so far\n";
    Put(line.str());
    return;
  }
  if (ended_.wait_for(lock, patience, over)) return;
  std::unique_lock shown(screen, std::defer_lock);
  do {
    if (!shown.owns_lock() && !shown.try_lock()) continue;
    const auto passed = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - start_);
    const std::string time = " \xe2\x80\xa6 " + std::to_string(passed.count()) + " s";
    const size_t room = Columns() - std::min(Columns(), time.size());
    Put(std::string(kErase) + description.substr(0, room) + time);
  } while (!ended_.wait_for(lock, std::chrono::seconds(1), over));
  if (shown.owns_lock()) Put(kErase);
}

}  // namespace torch_xla::exec
