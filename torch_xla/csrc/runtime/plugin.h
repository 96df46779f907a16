// Finds the plugin of a platform.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace torch_xla::runtime {

using OptionValue = std::variant<std::string, int64_t, bool, float, std::vector<int64_t>>;

struct PluginSpec {
  std::string library;                         // path of the shared library
  std::map<std::string, OptionValue> options;  // PJRT create options
  /// If set, the devices are virtual: the plugin's name of a topology, to which the options then
  /// belong. See compile_only.h.
  std::optional<std::string> topology = std::nullopt;
};

/// The canonical spelling of platforms: "cuda" becomes "CUDA".
std::string UpperCase(std::string_view text);

/// Registers `platform` (upper case); the last registration wins. The Python package registers the
/// plugins that it finds (entry points, wheels) at import.
void AddPlugin(std::string_view platform, PluginSpec spec);

/// The spec of `platform`. PJRT_<NAME>_LIBRARY_PATH overrides the registered library. Throws a
/// runtime::Error that names what was tried and how to install the plugin.
PluginSpec FindPlugin(std::string_view platform);

/// Platform and library of each candidate with a library, in order. The files need not exist.
std::vector<std::pair<std::string, std::string>> KnownLibraries();

/// PJRT_DEVICE, or else the registered accelerators in order of registration, and the CPU last.
std::vector<std::string> CandidatePlatforms();

}  // namespace torch_xla::runtime
