#include "runtime/host_memory.h"

#include <cstdlib>
#include <initializer_list>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace torch_xla::runtime {

void KeepFreedMemory() {
#if defined(__GLIBC__)
  for (const char* name : {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"}) {
    if (std::getenv(name)) return;
  }
  // Above the first, glibc maps each block by itself; 32 MiB is the most that it takes. The
  // second is how much each arena may keep.
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 512 << 20);
#endif
}

}  // namespace torch_xla::runtime
