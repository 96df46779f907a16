#include "runtime/cpu_devices.h"

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

namespace torch_xla::runtime {
namespace {

constexpr const char* kPoolSize = "PJRT_NPROC";

}  // namespace

int64_t CpuDeviceCount() {
  const char* text = std::getenv("CPU_NUM_DEVICES");
  if (text == nullptr || *text == '\0') return 1;
  int count = 0;
  const char* end = text + std::strlen(text);
  const auto [rest, failure] = std::from_chars(text, end, count);
  constexpr int kMost = 128;  // the highest number of devices that torch.device can index
  if (failure != std::errc() || rest != end || count < 1 || count > kMost) {
    throw std::invalid_argument("CPU_NUM_DEVICES must be an integer from 1 to " +
                                std::to_string(kMost) + ", got '" + std::string(text) + "'");
  }
  return count;
}

CpuThreads::CpuThreads(int64_t devices) {
  // The plugin has no create option for it. Threads that wait cost nothing.
  constexpr int64_t kLoops = 16;  // that may wait at the same time
  if (devices == 1 || std::getenv(kPoolSize) != nullptr) return;
  set_ = setenv(kPoolSize, std::to_string(devices * kLoops).c_str(), /*overwrite=*/0) == 0;
}

CpuThreads::~CpuThreads() {
  // A process that this one starts may have another number of devices.
  if (set_) unsetenv(kPoolSize);
}

}  // namespace torch_xla::runtime
