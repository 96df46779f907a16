// What a program may call while it runs: kernels of this process, where the device is the host.
#pragma once

#include <string>
#include <string_view>

namespace torch_xla::lowering {

/// Whether programs for the platform may call CPU kernels.
bool HasCpuKernels(std::string_view platform);
/// The handler is registered with the platform's client.
void EnableCpuKernels(std::string platform);

/// While it lives, programs that this thread lowers may call libraries of this process where these
/// are faster, if `allowed`. That is correct for programs that run in this process on a single
/// device, but not for exported or partitioned programs.
class LibraryCalls {
 public:
  explicit LibraryCalls(bool allowed);
  LibraryCalls(const LibraryCalls&) = delete;
  LibraryCalls& operator=(const LibraryCalls&) = delete;
  ~LibraryCalls();

  /// Whether one lives that allows it.
  static bool Allowed();

 private:
  const bool before_;
};

/// Whether the program that this thread lowers may call this library on this platform.
/// XLA_CPU_KERNELS=0 forbids it.
bool MayCallLibraries(std::string_view platform);

}  // namespace torch_xla::lowering
