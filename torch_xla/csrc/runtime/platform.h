// The properties of a platform, by its name in upper case (Client::platform()). Only this file
// compares names; other code asks for a property.
#pragma once

#include <string_view>

namespace torch_xla::runtime {

/// The host itself: XLA:CPU compiles programs, which run in the host's memory.
inline bool IsHost(std::string_view platform) { return platform == "CPU"; }

inline bool IsGpu(std::string_view platform) { return platform == "CUDA" || platform == "ROCM"; }

/// The devices can run collectives, even those of several processes in one program.
inline bool HasInterconnect(std::string_view platform) { return !IsHost(platform); }

/// 64-bit integers are pairs of 32 bits, for which there are no matrix products and not all of the
/// collectives.
inline bool HasLongsInPairs(std::string_view platform) { return platform == "TPU"; }

/// From the documentation; not tested on such a device.
inline bool LacksDouble(std::string_view platform) { return platform == "TPU"; }

/// The kernels of a program are recorded together with the addresses of its arrays, and recorded
/// again, at some cost, if the addresses differ from the previous run.
inline bool RecordsAddresses(std::string_view platform) { return IsGpu(platform); }

/// Products of float matrices use TF32 by default.
inline bool RoundsToTf32(std::string_view platform) { return IsGpu(platform); }

/// By default the compiler removes a conversion of a float to a smaller type and back, so the
/// rounding is lost.
inline bool SkipsRounding(std::string_view platform) {
  return IsGpu(platform) || platform == "TPU";
}

/// The plugin has the custom calls of cuDNN.
inline bool HasCudnn(std::string_view platform) { return platform == "CUDA"; }

/// The command that installs the plugin; empty if it is unknown.
inline std::string_view InstallHint(std::string_view platform) {
  if (platform == "CPU") return "pip install fastatomstruct-xla-cpu";
  if (platform == "CUDA") {
    return "pip install jax-cuda13-pjrt (CUDA 13) or pip install jax-cuda12-pjrt (CUDA 12)";
  }
  if (platform == "ROCM") return "pip install jax-rocm7-pjrt";
  if (platform == "TPU") return "pip install libtpu";
  return {};
}

}  // namespace torch_xla::runtime
