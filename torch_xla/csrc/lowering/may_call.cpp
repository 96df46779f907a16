#include "lowering/may_call.h"

#include <mutex>
#include <set>

#include "debug/environment.h"

namespace torch_xla::lowering {
namespace {

thread_local bool calls_allowed = false;

struct Platforms {
  std::mutex mutex;
  std::set<std::string, std::less<>> names;
};

Platforms& Enabled() {
  static auto& platforms = *new Platforms;
  return platforms;
}

}  // namespace

bool HasCpuKernels(std::string_view platform) {
  std::lock_guard<std::mutex> lock(Enabled().mutex);
  return Enabled().names.contains(platform);
}

void EnableCpuKernels(std::string platform) {
  if (!debug::EnvFlag("XLA_CPU_KERNELS", /*otherwise=*/true)) return;
  std::lock_guard<std::mutex> lock(Enabled().mutex);
  Enabled().names.insert(std::move(platform));
}

LibraryCalls::LibraryCalls(bool allowed) : before_(calls_allowed) { calls_allowed = allowed; }
LibraryCalls::~LibraryCalls() { calls_allowed = before_; }

bool LibraryCalls::Allowed() { return calls_allowed; }

bool MayCallLibraries(std::string_view platform) {
  return calls_allowed && HasCpuKernels(platform);
}

}  // namespace torch_xla::lowering
