#include "runtime/loaded_library.h"

#include <cstdlib>  // which says whether it is glibc

#if defined(__GLIBC__)

#include <dlfcn.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <span>

namespace torch_xla::runtime {
namespace {

/// Whether the linker has written into the code, too: its pages are not those of the file.
bool HasRelocatedCode(const link_map& library) {
  for (const ElfW(Dyn)* entry = library.l_ld; entry->d_tag != DT_NULL; ++entry) {
    if (entry->d_tag == DT_TEXTREL) return true;
    if (entry->d_tag == DT_FLAGS && (entry->d_un.d_val & DF_TEXTREL)) return true;
  }
  return false;
}

}  // namespace

const link_map* LibraryOf(const void* address) {
  Dl_info info;
  void* library = nullptr;
  return dladdr1(address, &info, &library, RTLD_DL_LINKMAP) ? static_cast<link_map*>(library)
                                                            : nullptr;
}

void GiveBackCode(const void* address) {
  const link_map* library = LibraryOf(address);
  if (!library || HasRelocatedCode(*library)) return;
  dl_iterate_phdr(
      [](dl_phdr_info* loaded, size_t, void* wanted) {
        if (loaded->dlpi_addr != static_cast<const link_map*>(wanted)->l_addr) return 0;
        const uintptr_t page = sysconf(_SC_PAGESIZE);
        for (const ElfW(Phdr) & segment : std::span(loaded->dlpi_phdr, loaded->dlpi_phnum)) {
          if (segment.p_type != PT_LOAD || (segment.p_flags & PF_W)) continue;
          const uintptr_t begin = loaded->dlpi_addr + segment.p_vaddr;
          const uintptr_t start = (begin + page - 1) / page * page;
          const uintptr_t end = (begin + segment.p_memsz) / page * page;
          if (start < end) madvise(reinterpret_cast<void*>(start), end - start, MADV_DONTNEED);
        }
        return 1;
      },
      const_cast<link_map*>(library));
}

}  // namespace torch_xla::runtime

#else

namespace torch_xla::runtime {

const link_map* LibraryOf(const void*) { return nullptr; }
void GiveBackCode(const void*) {}

}  // namespace torch_xla::runtime

#endif
