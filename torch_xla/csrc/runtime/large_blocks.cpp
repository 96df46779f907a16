#include "runtime/large_blocks.h"

#include <cstdlib>  // which says whether it is glibc

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

#include <dlfcn.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <new>
#include <span>
#include <string_view>
#include <thread>

#include "runtime/loaded_library.h"

namespace torch_xla::runtime {
namespace {

constexpr size_t kLarge = 1 << 20;
constexpr size_t kHuge = 32 << 20;  // worth asking for large pages

// ---------------------------------------------------------------- the blocks

/// What lies before a block, in its first page. Blocks are mappings of their own: an arena of
/// malloc's keeps what one thread frees, and another's grows by what is needed instead.
struct alignas(64) Block {
  static constexpr uint64_t kMark = 0x6c62'2d61'6c78'5f74;

  uint64_t mark, place;
  size_t room;  // behind this

  static size_t PageSize() {
    static const size_t size = sysconf(_SC_PAGESIZE);
    return size;
  }

  /// Null where the system has none.
  static Block* Map(size_t size) {
    const size_t bytes = (size + sizeof(Block) + PageSize() - 1) / PageSize() * PageSize();
    void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return nullptr;
    if (size >= kHuge) AskForLargePages(at, bytes);
    return new (at) Block{kMark, reinterpret_cast<uintptr_t>(at), bytes - sizeof(Block)};
  }

  /// That of memory which the library frees; null where it had it otherwise.
  static Block* Of(void* data) {
    if (reinterpret_cast<uintptr_t>(data) % PageSize() != sizeof(Block)) return nullptr;
    Block* block = static_cast<Block*>(data) - 1;  // in the same page
    const bool ours = block->mark == kMark && block->place == reinterpret_cast<uintptr_t>(block);
    return ours ? block : nullptr;
  }

  void* data() { return this + 1; }
  void Unmap() { munmap(this, room + sizeof(Block)); }

 private:
  /// Fewer pages fault, and fewer have to be found again, where the system has large ones on
  /// demand.
  static void AskForLargePages(void* at, size_t size) {
    constexpr uintptr_t kPage = 2 << 20;
    const uintptr_t begin = (reinterpret_cast<uintptr_t>(at) + kPage - 1) / kPage * kPage;
    const uintptr_t end = (reinterpret_cast<uintptr_t>(at) + size) / kPage * kPage;
    if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
  }
};

/// Does nothing while another thread is in it: in a process that was forked off one where a thread
/// was, it is so for ever.
class KeptBlocks {
 public:
  /// The smallest that fits, without half of it or more being wasted. Where there is none, as much
  /// as is needed is unmapped, the oldest first: what is kept must not add to it.
  Block* Take(size_t size) {
    for (bool paused = false;; paused = true) {
      {
        std::unique_lock lock(mutex_, std::try_to_lock);
        if (!lock) {
          missed_ += size;
          return nullptr;
        }
        if (Block* block = Find(size)) {
          if (paused) patience_.Succeeded();
          return block;
        }
        if (size > used_ || !patience_.Pauses()) {
          Unmap(size);
          return nullptr;
        }
      }
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }

  /// The library has it.
  void AddUsed(const Block& block) { used_ += block.room; }

  /// Whether it is kept, and not to be unmapped.
  bool Keep(Block* block) {
    used_ -= block->room;
    std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return false;
    Unmap(missed_.exchange(0));
    if (count_ == blocks_.size()) Unmap(1);
    blocks_[count_++] = block;
    return true;
  }

  void GiveBack() {
    std::unique_lock lock(mutex_, std::try_to_lock);
    if (lock) Unmap(SIZE_MAX);
  }

 private:
  /// How long to wait for a block that is about to be freed. A plugin says that a program has run
  /// before it frees the program's memory, and the thread that does may lose its core to the one
  /// that is told, and runs the next: both programs' memory would be there at once, and be kept.
  class Patience {
   public:
    /// Whether to look again a little later.
    bool Pauses() {
      constexpr int kMost = 40;  // of 50 to 100 us
      constexpr Clock::duration kLongestRest = std::chrono::milliseconds(500);
      const Clock::time_point now = Clock::now();
      if (now >= next_) {
        pauses_ = 0;
        next_ = now + rest_;
      }
      if (pauses_ == kMost) return false;
      if (++pauses_ == kMost) rest_ = std::min(2 * rest_, kLongestRest);
      return true;
    }
    /// There was one, later.
    void Succeeded() { rest_ = kRest; }

   private:
    using Clock = std::chrono::steady_clock;
    static constexpr Clock::duration kRest = std::chrono::milliseconds(50);
    int pauses_ = 0;
    Clock::duration rest_ = kRest;  // longer after each time that it was in vain
    Clock::time_point next_ = Clock::time_point::min();
  };

  /// Null where none fits.
  Block* Find(size_t size) {
    Block** best = nullptr;
    for (Block*& block : std::span(blocks_.data(), count_)) {
      const bool fits = block->room >= size && block->room / 2 <= size;
      if (fits && (!best || block->room < (*best)->room)) best = &block;
    }
    if (!best) return nullptr;
    Block* block = *best;
    std::copy(best + 1, blocks_.data() + count_, best);
    --count_;
    return block;
  }

  /// At least so many bytes, if there are.
  void Unmap(size_t size) {
    size_t bytes = 0, blocks = 0;
    for (; blocks < count_ && bytes < size; ++blocks) {
      bytes += blocks_[blocks]->room;
      blocks_[blocks]->Unmap();
    }
    std::copy(blocks_.data() + blocks, blocks_.data() + count_, blocks_.data());
    count_ -= blocks;
  }

  std::mutex mutex_;
  std::array<Block*, 64> blocks_;  // the oldest first
  size_t count_ = 0;
  std::atomic<size_t> missed_ = 0;  // bytes needed while another thread was in it: to be unmapped
  std::atomic<size_t> used_ = 0;    // bytes
  Patience patience_;
};

KeptBlocks& Kept() {
  static auto& kept = *new KeptBlocks;
  return kept;
}

// ---------------------------------------------------------------- what the library calls

int Memalign(void** out, size_t alignment, size_t size) {
  if (size >= kLarge && alignment <= alignof(Block)) {
    Block* block = Kept().Take(size);
    if (!block) block = Block::Map(size);
    if (block) {
      Kept().AddUsed(*block);
      *out = block->data();
      return 0;
    }
  }
  return posix_memalign(out, alignment, size);
}

void* AlignedAlloc(size_t alignment, size_t size) {
  void* data = nullptr;
  if (size < kLarge) return std::aligned_alloc(alignment, size);
  errno = Memalign(&data, std::max(alignment, sizeof(void*)), size);
  return errno == 0 ? data : nullptr;
}

void Free(void* data) {
  Block* block = Block::Of(data);
  if (!block) return std::free(data);
  if (!Kept().Keep(block)) block->Unmap();
}

// ---------------------------------------------------------------- how it comes to call that

struct Replacement {
  std::string_view name;
  void *original, *replacement;
};

void Write(const link_map& library, void** slot, void* value) {
  const uintptr_t page = sysconf(_SC_PAGESIZE);
  void* start = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(slot) / page * page);
  const bool read_only = BecameReadOnly(&library, slot);
  if (read_only && mprotect(start, page, PROT_READ | PROT_WRITE) != 0) return;
  *slot = value;
  if (read_only) mprotect(start, page, PROT_READ);
}

/// Replaces what a loaded library imports: calls, and addresses that it takes.
void Rebind(const link_map& library, std::span<const Replacement> replacements) {
  const ElfW(Sym)* symbols = nullptr;
  const char* strings = nullptr;
  struct {
    const ElfW(Rela) * entries = nullptr;
    size_t bytes = 0;
  } calls, addresses;
  size_t relative = 0;  // so many addresses, the first, have no name
  for (const ElfW(Dyn)* entry = library.l_ld; entry->d_tag != DT_NULL; ++entry) {
    const auto address = entry->d_un.d_ptr;  // glibc has added where the library lies
    const auto* table = reinterpret_cast<const ElfW(Rela)*>(address);
    if (entry->d_tag == DT_SYMTAB) symbols = reinterpret_cast<const ElfW(Sym)*>(address);
    if (entry->d_tag == DT_STRTAB) strings = reinterpret_cast<const char*>(address);
    if (entry->d_tag == DT_JMPREL) calls.entries = table;
    if (entry->d_tag == DT_PLTRELSZ) calls.bytes = entry->d_un.d_val;
    if (entry->d_tag == DT_RELA) addresses.entries = table;
    if (entry->d_tag == DT_RELASZ) addresses.bytes = entry->d_un.d_val;
    if (entry->d_tag == DT_RELACOUNT) relative = entry->d_un.d_val;
  }
  if (!symbols || !strings) return;
  auto rebind = [&](std::span<const ElfW(Rela)> entries) {
    for (const ElfW(Rela) & entry : entries) {
      const auto symbol = ELF64_R_SYM(entry.r_info);
      if (symbol == 0) continue;
      const std::string_view name = strings + symbols[symbol].st_name;
      auto** slot = reinterpret_cast<void**>(library.l_addr + entry.r_offset);
      for (const Replacement& wanted : replacements) {
        // Another malloc is left alone.
        if (name == wanted.name && *slot == wanted.original) {
          Write(library, slot, wanted.replacement);
        }
      }
    }
  };
  if (calls.entries) rebind({calls.entries, calls.bytes / sizeof(ElfW(Rela))});
  if (addresses.entries) {
    rebind(std::span(addresses.entries, addresses.bytes / sizeof(ElfW(Rela))).subspan(relative));
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
