#include "runtime/large_blocks.h"

#include <cstdlib>  // which says whether it is glibc

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

#include <dlfcn.h>
#include <link.h>
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <mutex>
#include <span>
#include <string_view>

#include "runtime/loaded_library.h"

namespace torch_xla::runtime {
namespace {

constexpr size_t kLarge = 1 << 20;
constexpr size_t kMapped = 32 << 20;  // KeepFreedMemory()'s threshold
constexpr uintptr_t kAlignment = 64;  // of what the library has as memory of programs

// ---------------------------------------------------------------- the blocks

struct Block {
  void* data = nullptr;
  size_t size = 0;
};

/// Does nothing while another thread is in it: in a process that was forked off one where a thread
/// was, it is so for ever.
class KeptBlocks {
 public:
  /// The smallest that fits, without half of it or more being wasted. Where there is none, as much
  /// as is needed is freed, the oldest first: what is kept must not add to it.
  void* Take(size_t size, size_t alignment) {
    std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return nullptr;
    Block* best = nullptr;
    for (Block& block : std::span(blocks_.data(), count_)) {
      const bool fits = block.size >= size && block.size / 2 <= size &&
                        reinterpret_cast<uintptr_t>(block.data) % alignment == 0;
      if (fits && (!best || block.size < best->size)) best = &block;
    }
    if (!best) {
      Free(size);
      return nullptr;
    }
    void* data = best->data;
    std::copy(best + 1, blocks_.data() + count_, best);
    --count_;
    return data;
  }

  /// Whether it is kept, and not to be freed.
  bool Keep(void* data, size_t size) {
    std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return false;
    if (count_ == blocks_.size()) Free(1);
    blocks_[count_++] = {data, size};
    return true;
  }

  void GiveBack() {
    std::unique_lock lock(mutex_, std::try_to_lock);
    if (lock) Free(SIZE_MAX);
  }

 private:
  /// At least so many bytes, if there are.
  void Free(size_t size) {
    size_t freed = 0, blocks = 0;
    for (; blocks < count_ && freed < size; ++blocks) {
      freed += blocks_[blocks].size;
      std::free(blocks_[blocks].data);
    }
    std::copy(blocks_.data() + blocks, blocks_.data() + count_, blocks_.data());
    count_ -= blocks;
  }

  std::mutex mutex_;
  std::array<Block, 64> blocks_;  // the oldest first
  size_t count_ = 0;
};

KeptBlocks& Kept() {
  static auto& kept = *new KeptBlocks;
  return kept;
}

/// Fewer pages fault, and fewer have to be found again, where the system has large ones on demand.
void AskForLargePages(void* data, size_t size) {
  constexpr uintptr_t kPage = 2 << 20;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + kPage - 1) / kPage * kPage;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + size) / kPage * kPage;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

// ---------------------------------------------------------------- what the library calls

int Memalign(void** out, size_t alignment, size_t size) {
  if (size < kLarge) return posix_memalign(out, alignment, size);
  if (void* kept = Kept().Take(size, alignment)) {
    *out = kept;
    return 0;
  }
  const int error = posix_memalign(out, alignment, size);
  if (error == 0 && size >= kMapped) AskForLargePages(*out, size);
  return error;
}

void* AlignedAlloc(size_t alignment, size_t size) {
  void* data = nullptr;
  if (size < kLarge) return std::aligned_alloc(alignment, size);
  errno = Memalign(&data, std::max(alignment, sizeof(void*)), size);
  return errno == 0 ? data : nullptr;
}

void Free(void* data) {
  if (data && reinterpret_cast<uintptr_t>(data) % kAlignment == 0) {
    const size_t size = malloc_usable_size(data);
    if (size >= kLarge && Kept().Keep(data, size)) return;
  }
  std::free(data);
}

// ---------------------------------------------------------------- how it comes to call that

struct Replacement {
  std::string_view name;
  void *original, *replacement;
};

/// Whether the dynamic linker has made it read-only.
bool IsReadOnly(const link_map& library, const void* address) {
  const auto* header = reinterpret_cast<const ElfW(Ehdr)*>(library.l_addr);
  const auto* segments = reinterpret_cast<const ElfW(Phdr)*>(library.l_addr + header->e_phoff);
  const uintptr_t offset = reinterpret_cast<uintptr_t>(address) - library.l_addr;
  return std::any_of(segments, segments + header->e_phnum, [&](const ElfW(Phdr) & segment) {
    return segment.p_type == PT_GNU_RELRO && offset - segment.p_vaddr < segment.p_memsz;
  });
}

void Write(const link_map& library, void** slot, void* value) {
  const uintptr_t page = sysconf(_SC_PAGESIZE);
  void* start = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(slot) / page * page);
  const bool read_only = IsReadOnly(library, slot);
  if (read_only && mprotect(start, page, PROT_READ | PROT_WRITE) != 0) return;
  *slot = value;
  if (read_only) mprotect(start, page, PROT_READ);
}

/// Replaces what a loaded library imports.
void Rebind(const link_map& library, std::span<const Replacement> replacements) {
  const ElfW(Sym)* symbols = nullptr;
  const char* strings = nullptr;
  const ElfW(Rela)* calls = nullptr;
  size_t size = 0;
  for (const ElfW(Dyn)* entry = library.l_ld; entry->d_tag != DT_NULL; ++entry) {
    const auto address = entry->d_un.d_ptr;  // glibc has added where the library lies
    if (entry->d_tag == DT_SYMTAB) symbols = reinterpret_cast<const ElfW(Sym)*>(address);
    if (entry->d_tag == DT_STRTAB) strings = reinterpret_cast<const char*>(address);
    if (entry->d_tag == DT_JMPREL) calls = reinterpret_cast<const ElfW(Rela)*>(address);
    if (entry->d_tag == DT_PLTRELSZ) size = entry->d_un.d_val;
  }
  if (!symbols || !strings || !calls) return;
  for (const ElfW(Rela) & call : std::span(calls, size / sizeof(ElfW(Rela)))) {
    const std::string_view name = strings + symbols[ELF64_R_SYM(call.r_info)].st_name;
    auto** slot = reinterpret_cast<void**>(library.l_addr + call.r_offset);
    for (const Replacement& wanted : replacements) {
      // Another malloc has other sizes and does not map large blocks.
      if (name == wanted.name && *slot == wanted.original) Write(library, slot, wanted.replacement);
    }
  }
}

}  // namespace

void KeepLargeBlocks(const void* address) {
  const link_map* library = LibraryOf(address);
  // Our own calls of free() have to reach it.
  if (!library || library == LibraryOf(reinterpret_cast<const void*>(&KeepLargeBlocks))) return;
  void* libc = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
  if (!libc) return;
  const Replacement replacements[] = {
      {"posix_memalign", dlsym(libc, "posix_memalign"), reinterpret_cast<void*>(&Memalign)},
      {"aligned_alloc", dlsym(libc, "aligned_alloc"), reinterpret_cast<void*>(&AlignedAlloc)},
      {"free", dlsym(libc, "free"), reinterpret_cast<void*>(&Free)}};
  Rebind(*library, replacements);
}

void GiveBackLargeBlocks() { Kept().GiveBack(); }

}  // namespace torch_xla::runtime

#else

namespace torch_xla::runtime {

void KeepLargeBlocks(const void*) {}
void GiveBackLargeBlocks() {}

}  // namespace torch_xla::runtime

#endif
