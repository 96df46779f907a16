#include "exec/settings.h"

#include <c10/util/Exception.h>

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string>

#include "debug/environment.h"
#include "exec/compile_progress.h"
#include "exec/disk_cache.h"
#include "runtime/errors.h"
#include "tensor/device.h"

namespace torch_xla::exec {
namespace {

void CheckSwitch(const char* name) {
  const char* value = std::getenv(name);
  if (!value || debug::ParseFlag(value)) return;
  throw runtime::InvalidArgument(std::string(name) + " must be 0, 1, true or false, got '" + value +
                                 "'");
}

/// Throws runtime::Error for a variable with an invalid value. Warns if the folder for programs
/// cannot be written to.
void CheckSettings() {
  for (const char* name : {"XLA_USE_SPMD", "XLA_USE_BF16", "XLA_DOWNCAST_BF16", "XLA_IR_DEBUG",
                           "XLA_NO_SPECIAL_SCALARS", "XLA_AUTO_STEP"}) {
    CheckSwitch(name);
  }
  // A variable of older releases, which Lightning's precision="16-true" sets. Fail instead of
  // silently computing in float32.
  if (debug::EnvFlag("XLA_USE_F16")) {
    throw runtime::InvalidArgument(
        "XLA_USE_F16 is not supported: unset it; XLA_USE_BF16=1 holds floats as bfloat16 "
        "(Lightning: precision=\"bf16-true\"), model.half() makes them float16");
  }
  ProgramCacheCapacity();
  CompileProgressSeconds();
  // A folder that cannot be written to is no error, since users with read access only can use it as
  // well.
  if (const auto cache = GetDiskCache()) cache->Check();
}

[[maybe_unused]] const bool checked = [] {
  tensor::CheckBeforeClient(CheckSettings);
  return true;
}();

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

}  // namespace torch_xla::exec
