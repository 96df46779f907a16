// What a platform is like, by its name in upper case (Client::platform()). Names are compared here
// and nowhere else: who needs to know something asks for it by what it is.
#pragma once

#include <string_view>

namespace torch_xla::runtime {

/// The host itself: programs, which XLA:CPU compiles, run in its memory.
inline bool IsHost(std::string_view platform) { return platform == "CPU"; }

inline bool IsGpu(std::string_view platform) { return platform == "CUDA" || platform == "ROCM"; }

/// The devices carry collectives themselves, those of several processes in one program.
inline bool HasInterconnect(std::string_view platform) { return !IsHost(platform); }

/// What has 64 bits is a pair of 32 bits: there are neither products of matrices of it nor all of
/// the collectives.
inline bool HasLongsInPairs(std::string_view platform) { return platform == "TPU"; }

/// From documentation: it never ran on one.
inline bool LacksDouble(std::string_view platform) { return platform == "TPU"; }

/// A program's kernels are recorded with the addresses of its arrays, and recorded anew, at some
/// cost, where these are not those of the run before.
inline bool RecordsAddresses(std::string_view platform) { return IsGpu(platform); }

/// Products of float matrices are of TF32, if nothing else is asked for.
inline bool RoundsToTf32(std::string_view platform) { return IsGpu(platform); }

/// Its compiler leaves a float that is rounded to a smaller type, and back, as it was, unless it is
/// told not to.
inline bool SkipsRounding(std::string_view platform) {
  return IsGpu(platform) || platform == "TPU";
}

/// Its plugin has the custom calls of cuDNN.
inline bool HasCudnn(std::string_view platform) { return platform == "CUDA"; }

/// How to get its plugin; empty where nobody knows.
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
