#include "runtime/host_memory.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <mutex>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include "runtime/large_blocks.h"

namespace torch_xla::runtime {
namespace {

using File = std::unique_ptr<std::FILE, decltype([](std::FILE* file) { std::fclose(file); })>;

/// The maximal number of mappings of a process; 0 if the system has no such limit.
int64_t MaxMappings() {
  int64_t count = 0;
  const File file(std::fopen("/proc/sys/vm/max_map_count", "r"));
  return file && std::fscanf(file.get(), "%ld", &count) == 1 ? count : 0;
}

int64_t CountMappings() {
  const File file(std::fopen("/proc/self/maps", "r"));
  if (!file) return 0;
  int64_t lines = 0;
  std::array<char, 1 << 14> text;
  while (const size_t size = std::fread(text.data(), 1, text.size(), file.get())) {
    lines += std::count(text.begin(), text.begin() + size, '\n');
  }
  return lines;
}

}  // namespace

bool MappingsAreScarce() {
  using Clock = std::chrono::steady_clock;
  static const int64_t limit = MaxMappings();
  if (limit == 0) return false;
  static std::mutex mutex;
  static Clock::time_point next = Clock::time_point::min();
  std::lock_guard<std::mutex> lock(mutex);
  const Clock::time_point start = Clock::now();
  if (start < next) return false;
  const int64_t count = CountMappings();
  const Clock::time_point end = Clock::now();
  next = end + 20 * (end - start);
  return count > limit / 2;
}

void KeepFreedMemory(const void* plugin) {
#if defined(__GLIBC__)
  for (const char* name : {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"}) {
    if (std::getenv(name)) return;
  }
  // Above M_MMAP_THRESHOLD glibc makes a mapping for each block; 32 MiB is the largest threshold
  // that it accepts. M_TRIM_THRESHOLD is the size that each arena may keep.
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 512 << 20);
  KeepLargeBlocks(plugin);
#endif
}

void GiveBackFreedMemory() {
  GiveBackLargeBlocks();
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
}

}  // namespace torch_xla::runtime
