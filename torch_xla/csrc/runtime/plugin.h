// Where the plugin of a platform is found.
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
  /// Where set: devices that are not there, by the plugin's own name of how many and which; the
  /// options are the topology's then. See compile_only.h.
  std::optional<std::string> topology = std::nullopt;
};

/// How platforms are spelled: "cuda" is "CUDA".
std::string UpperCase(std::string_view text);

/// Makes `platform` (upper case) known; the last registration wins. The Python
/// package registers what it finds (entry points, wheels) at import.
void AddPlugin(std::string_view platform, PluginSpec spec);

/// The spec for `platform`: PJRT_<NAME>_LIBRARY_PATH first, then what was added.
/// Throws runtime::Error naming what was tried and how to install it.
PluginSpec FindPlugin(std::string_view platform);

/// Platform and library of each candidate that has one, in their order. The files need not be
/// there.
std::vector<std::pair<std::string, std::string>> KnownLibraries();

/// PJRT_DEVICE, else the registered accelerators in order of registration (CPU last).
std::vector<std::string> CandidatePlatforms();

}  // namespace torch_xla::runtime
