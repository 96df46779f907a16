#include "lazy/settings.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>

#include "debug/environment.h"
#include "lazy/compile_progress.h"
#include "runtime/errors.h"

namespace torch_xla::lazy {
namespace {

void CheckSwitch(const char* name) {
  const char* value = std::getenv(name);
  const std::string_view text = value ? value : "";
  for (std::string_view known : {"", "0", "1", "false", "true"}) {
    if (text == known) return;
  }
  throw runtime::InvalidArgument(std::string(name) + " must be 0, 1, true or false, got '" + value +
                                 "'");
}

/// A folder that others fill is only looked for; one that cannot be written is no error, so that it
/// serves those who may only read it.
void CheckCacheFolder() {
  const char* folder = std::getenv("XLA_PERSISTENT_CACHE_PATH");
  // That of a remote folder is mirrored (torch_xla/_internal/remote_cache.py).
  if (!folder || !*folder || std::strstr(folder, "://")) return;
  std::error_code error;
  const bool read_only = debug::EnvFlag("XLA_PERSISTENT_CACHE_READ_ONLY");
  if (!read_only) std::filesystem::create_directories(folder, error);
  if (!error && !std::filesystem::is_directory(folder, error) && !error) {
    error = std::make_error_code(std::errc::not_a_directory);
  }
  const int mode = read_only ? R_OK | X_OK : W_OK | X_OK;
  if (!error && access(folder, mode) != 0) error.assign(errno, std::generic_category());
  if (error) {
    TORCH_WARN("XLA_PERSISTENT_CACHE_PATH: compiled programs cannot be ",
               read_only ? "read from '" : "written to '", folder, "': ", error.message());
  }
}

}  // namespace

size_t ProgramCacheCapacity() {
  constexpr size_t kDefault = 2048;
  const char* text = std::getenv("XLA_COMPILATION_CACHE_SIZE");
  if (!text || !*text) return kDefault;
  size_t size = 0;
  const char* end = text + std::strlen(text);
  const auto [rest, failure] = std::from_chars(text, end, size);
  if (failure != std::errc() || rest != end || size < 1) {
    throw runtime::InvalidArgument("XLA_COMPILATION_CACHE_SIZE must be a positive integer, got '" +
                                   std::string(text) + "'");
  }
  return size;
}

void CheckSettings() {
  for (const char* name : {"XLA_USE_SPMD", "XLA_USE_BF16", "XLA_DOWNCAST_BF16", "XLA_IR_DEBUG",
                           "XLA_NO_SPECIAL_SCALARS", "XLA_AUTO_STEP"}) {
    CheckSwitch(name);
  }
  ProgramCacheCapacity();
  CompileProgressSeconds();
  CheckCacheFolder();
}

}  // namespace torch_xla::lazy
