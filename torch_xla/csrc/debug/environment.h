// Reads switches and paths from environment variables.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

namespace torch_xla::debug {

/// The meaning of a switch's text in any case; nothing if the text is no switch.
inline std::optional<bool> ParseFlag(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  for (std::string_view off : {"", "0", "false", "off", "no"}) {
    if (text == off) return false;
  }
  for (std::string_view on : {"1", "true", "on", "yes"}) {
    if (text == on) return true;
  }
  return std::nullopt;
}

/// Whether the variable is set to a text that does not mean off; `otherwise` if it is not set.
inline bool EnvFlag(const char* name, bool otherwise = false) {
  const char* value = std::getenv(name);
  return value ? ParseFlag(value).value_or(true) : otherwise;
}

/// The path in a variable, with a leading "~" replaced by the user's home folder; empty if it is
/// not set.
inline std::string EnvPath(const char* name) {
  const char* value = std::getenv(name);
  const std::string path = value ? value : "";
  const char* home = std::getenv("HOME");
  const bool at_home = path == "~" || path.starts_with("~/");
  return at_home && home ? home + path.substr(1) : path;
}

}  // namespace torch_xla::debug
