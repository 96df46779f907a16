// Switches of the environment.
#pragma once

#include <cstdlib>
#include <string_view>

namespace torch_xla::debug {

/// Whether the variable is set to something that does not mean off ("", "0", "false"); `otherwise`
/// where it is not set.
inline bool EnvFlag(const char* name, bool otherwise = false) {
  const char* value = std::getenv(name);
  if (!value) return otherwise;
  const std::string_view text(value);
  return !text.empty() && text != "0" && text != "false";
}

}  // namespace torch_xla::debug
