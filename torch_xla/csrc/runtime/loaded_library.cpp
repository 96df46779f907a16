#include "runtime/loaded_library.h"

#include <cstdlib>  // defines __GLIBC__

#if defined(__GLIBC__)

#include <dlfcn.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

namespace torch_xla::runtime {
namespace {

/// Whether the linker has written into the code, so that its pages differ from the file.
bool HasRelocatedCode(const link_map& library) {
  for (const ElfW(Dyn)* entry = library.l_ld; entry->d_tag != DT_NULL; ++entry) {
    if (entry->d_tag == DT_TEXTREL) return true;
    if (entry->d_tag == DT_FLAGS && (entry->d_un.d_val & DF_TEXTREL)) return true;
  }
  return false;
}

/// Calls `use` with the address and the description of each segment of the library, if it is not
/// null.
template <typename Use>
void ForEachSegment(const link_map* library, Use use) {
  if (!library) return;
  std::pair<const link_map*, Use&> data(library, use);
  dl_iterate_phdr(
      [](dl_phdr_info* loaded, size_t, void* given) {
        auto& [wanted, use] = *static_cast<decltype(data)*>(given);
        if (loaded->dlpi_addr != wanted->l_addr) return 0;
        for (const ElfW(Phdr) & segment : std::span(loaded->dlpi_phdr, loaded->dlpi_phnum)) {
          use(loaded->dlpi_addr + segment.p_vaddr, segment);
        }
        return 1;
      },
      &data);
}

constexpr std::string_view kGnu("GNU", 4);  // including its terminating zero

constexpr size_t Padded(size_t size) { return (size + 3) / 4 * 4; }

}  // namespace

const link_map* LibraryOf(const void* address) {
  Dl_info info;
  void* library = nullptr;
  return dladdr1(address, &info, &library, RTLD_DL_LINKMAP) ? static_cast<link_map*>(library)
                                                            : nullptr;
}

std::string BuildIdOf(const void* address) {
  std::string id;
  ForEachSegment(LibraryOf(address), [&](uintptr_t begin, const ElfW(Phdr) & segment) {
    // Some linkers put the id into a segment with notes of another alignment. The sizes of these
    // notes are multiples of both alignments.
    if (segment.p_type != PT_NOTE) return;
    for (uintptr_t at = begin; at + sizeof(ElfW(Nhdr)) <= begin + segment.p_memsz;) {
      const auto* note = reinterpret_cast<const ElfW(Nhdr)*>(at);
      const auto* name = reinterpret_cast<const char*>(note + 1);
      const auto* content = reinterpret_cast<const unsigned char*>(name + Padded(note->n_namesz));
      if (note->n_type == NT_GNU_BUILD_ID && std::string_view(name, note->n_namesz) == kGnu) {
        for (const unsigned char byte : std::span(content, note->n_descsz)) {
          for (const int digit : {byte >> 4, byte & 15}) id += "0123456789abcdef"[digit];
        }
      }
      at = reinterpret_cast<uintptr_t>(content + Padded(note->n_descsz));
    }
  });
  return id;
}

bool BecameReadOnly(const link_map* library, const void* address) {
  bool did = false;
  ForEachSegment(library, [&](uintptr_t begin, const ElfW(Phdr) & segment) {
    did |= segment.p_type == PT_GNU_RELRO &&
           reinterpret_cast<uintptr_t>(address) - begin < segment.p_memsz;
  });
  return did;
}

void GiveBackCode(const void* address) {
  const link_map* library = LibraryOf(address);
  if (!library || HasRelocatedCode(*library)) return;
  const uintptr_t page = sysconf(_SC_PAGESIZE);
  ForEachSegment(library, [&](uintptr_t begin, const ElfW(Phdr) & segment) {
    if (segment.p_type != PT_LOAD || (segment.p_flags & PF_W)) return;
    const uintptr_t start = (begin + page - 1) / page * page;
    const uintptr_t end = (begin + segment.p_memsz) / page * page;
    if (start < end) madvise(reinterpret_cast<void*>(start), end - start, MADV_DONTNEED);
  });
}

}  // namespace torch_xla::runtime

#else

namespace torch_xla::runtime {

const link_map* LibraryOf(const void*) { return nullptr; }
std::string BuildIdOf(const void*) { return {}; }
bool BecameReadOnly(const link_map*, const void*) { return false; }
void GiveBackCode(const void*) {}

}  // namespace torch_xla::runtime

#endif

namespace torch_xla::runtime {

// Giving the code back takes one or two milliseconds, so do it rarely.
void CompilerCode::Worked(std::chrono::nanoseconds time) {
  constexpr std::chrono::nanoseconds kLong = std::chrono::milliseconds(100);
  constexpr std::chrono::nanoseconds kShort = std::chrono::milliseconds(10);
  constexpr int kStarts = 8;
  const int64_t worked = worked_ns_.fetch_add(time.count()) + time.count();
  if (worked > kLong.count()) {
    worked_ns_ = 0;
    starts_left_ = 0;
    GiveBackCode(address_);
  } else if (worked > kShort.count()) {
    starts_left_ = kStarts;
  }
}

void CompilerCode::CountStart() {
  if (--starts_left_ != 0) return;
  worked_ns_ = 0;
  GiveBackCode(address_);
}

}  // namespace torch_xla::runtime
