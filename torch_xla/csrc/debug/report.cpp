#include "debug/report.h"

#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "debug/environment.h"

namespace torch_xla::debug {

int DebugLevel() {
  static const int level = [] {
    const char* text = std::getenv("PT_XLA_DEBUG_LEVEL");
    if (text && *text) return std::atoi(text);
    if (!EnvFlag("PT_XLA_DEBUG")) return 0;
    return 2;
  }();
  return level;
}

void Report(std::string_view text) {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  const std::string path = EnvPath("PT_XLA_DEBUG_FILE");
  std::FILE* file = path.empty() ? nullptr : std::fopen(path.c_str(), "a");
  std::FILE* to = file ? file : stderr;
  std::fwrite(text.data(), 1, text.size(), to);
  std::fflush(to);
  if (file) std::fclose(file);
}

}  // namespace torch_xla::debug
