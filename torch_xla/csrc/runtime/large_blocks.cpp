#include "runtime/large_blocks.h"

#include <cstdlib>  // defines __GLIBC__

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

#include <dlfcn.h>
#include <link.h>
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <new>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include "runtime/loaded_library.h"

namespace torch_xla::runtime {
namespace {

constexpr size_t kLarge = 1 << 20;
constexpr size_t kHuge = 32 << 20;  // large enough to ask for huge pages

// ---------------------------------------------------------------- the blocks

/// The header in front of a block, in its first page. Each block is a mapping of its own. An arena
/// of malloc would keep what one thread frees, while another thread's arena grows by what is
/// needed.
struct alignas(64) Block {
  static constexpr uint64_t kMark = 0x6c62'2d61'6c78'5f74;

  uint64_t mark, place;
  size_t room;  // size of the memory after the header

  static size_t PageSize() {
    static const size_t size = sysconf(_SC_PAGESIZE);
    return size;
  }

  /// Returns null if the system has no memory.
  static Block* Map(size_t size) {
    const size_t bytes = (size + sizeof(Block) + PageSize() - 1) / PageSize() * PageSize();
    void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return nullptr;
    if (size >= kHuge) AskForLargePages(at, bytes);
    return new (at) Block{kMark, reinterpret_cast<uintptr_t>(at), bytes - sizeof(Block)};
  }

  /// The block of memory that the library frees; null if the memory was allocated in another way.
  static Block* Of(void* data) {
    if (reinterpret_cast<uintptr_t>(data) % PageSize() != sizeof(Block)) return nullptr;
    Block* block = static_cast<Block*>(data) - 1;  // in the same page
    const bool ours = block->mark == kMark && block->place == reinterpret_cast<uintptr_t>(block);
    return ours ? block : nullptr;
  }

  void* data() { return this + 1; }
  void Unmap() { munmap(this, room + sizeof(Block)); }

 private:
  /// With huge pages on demand fewer pages fault.
  static void AskForLargePages(void* at, size_t size) {
    constexpr uintptr_t kPage = 2 << 20;
    const uintptr_t begin = (reinterpret_cast<uintptr_t>(at) + kPage - 1) / kPage * kPage;
    const uintptr_t end = (reinterpret_cast<uintptr_t>(at) + size) / kPage * kPage;
    if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
  }
};

/// Does nothing while another thread is in it. After a fork in such a moment that holds for ever.
class KeptBlocks {
 public:
  /// Returns the smallest block that fits, if less than half of it is wasted. If there is none,
  /// unmaps as much memory as is needed, oldest blocks first, so that the kept blocks do not add to
  /// the memory in use.
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

  /// Notes that the library uses the block.
  void AddUsed(const Block& block) { used_ += block.room; }

  /// Whether the block is kept; else the caller must unmap it.
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
  /// Decides how long to wait for a block that is about to be freed. A plugin reports that a
  /// program has run before it frees the program's memory. The thread that frees it may lose its
  /// core to the thread that got the report and runs the next program. Then the memory of both
  /// programs would exist at once, and be kept.
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
    /// Tells that waiting has found a block.
    void Succeeded() { rest_ = kRest; }

   private:
    using Clock = std::chrono::steady_clock;
    static constexpr Clock::duration kRest = std::chrono::milliseconds(50);
    int pauses_ = 0;
    Clock::duration rest_ = kRest;  // grows after each wait in vain
    Clock::time_point next_ = Clock::time_point::min();
  };

  /// Returns null if no block fits.
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

  /// Unmaps at least `size` bytes, if there are as many.
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
  std::array<Block*, 64> blocks_;  // oldest first
  size_t count_ = 0;
  std::atomic<size_t> missed_ = 0;  // bytes requested while another thread was in it; to be
                                    // unmapped
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

void* Realloc(void* data, size_t size) {
  Block* block = Block::Of(data);
  if (!block) return std::realloc(data, size);
  void* moved = size == 0 ? nullptr : std::malloc(size);
  if (size != 0 && !moved) return nullptr;
  if (moved) std::memcpy(moved, data, std::min(size, block->room));
  Free(data);
  return moved;
}

size_t UsableSize(void* data) {
  const Block* block = Block::Of(data);
  return block ? block->room : malloc_usable_size(data);
}

// ---------------------------------------------------------------- redirecting the library's calls

struct Replacement {
  std::string_view name;
  void *original, *replacement;
};

/// A slot in which the library stores the address of a function.
struct Slot {
  void** at;
  void* replacement;
};

/// The slots of the functions that a loaded library imports, in the order of the replacements, for
/// calls and for taken addresses. Returns none if the library imports one of these functions from
/// another malloc, which is left alone.
std::vector<Slot> SlotsOf(const link_map& library, std::span<const Replacement> replacements) {
  const ElfW(Sym)* symbols = nullptr;
  const char* strings = nullptr;
  struct {
    const ElfW(Rela) * entries = nullptr;
    size_t bytes = 0;
  } calls, addresses;
  size_t relative = 0;  // number of addresses without a name, which come first
  for (const ElfW(Dyn)* entry = library.l_ld; entry->d_tag != DT_NULL; ++entry) {
    const auto address = entry->d_un.d_ptr;  // glibc has added the library's base address
    const auto* table = reinterpret_cast<const ElfW(Rela)*>(address);
    if (entry->d_tag == DT_SYMTAB) symbols = reinterpret_cast<const ElfW(Sym)*>(address);
    if (entry->d_tag == DT_STRTAB) strings = reinterpret_cast<const char*>(address);
    if (entry->d_tag == DT_JMPREL) calls.entries = table;
    if (entry->d_tag == DT_PLTRELSZ) calls.bytes = entry->d_un.d_val;
    if (entry->d_tag == DT_RELA) addresses.entries = table;
    if (entry->d_tag == DT_RELASZ) addresses.bytes = entry->d_un.d_val;
    if (entry->d_tag == DT_RELACOUNT) relative = entry->d_un.d_val;
  }
  if (!symbols || !strings) return {};
  std::vector<Slot> slots;
  bool foreign = false;
  auto find = [&](const Replacement& wanted, std::span<const ElfW(Rela)> entries) {
    for (const ElfW(Rela) & entry : entries) {
      const auto symbol = ELF64_R_SYM(entry.r_info);
      if (symbol == 0) continue;
      if (strings + symbols[symbol].st_name != wanted.name) continue;
      auto** slot = reinterpret_cast<void**>(library.l_addr + entry.r_offset);
      foreign |= *slot != wanted.original;
      slots.push_back({slot, wanted.replacement});
    }
  };
  for (const Replacement& wanted : replacements) {
    if (calls.entries) find(wanted, {calls.entries, calls.bytes / sizeof(ElfW(Rela))});
    if (addresses.entries) {
      const std::span all(addresses.entries, addresses.bytes / sizeof(ElfW(Rela)));
      find(wanted, all.subspan(relative));
    }
  }
  if (foreign) slots.clear();
  return slots;
}

/// While it lives, the slots' pages that the linker made read-only are writable.
class WritablePages {
 public:
  WritablePages(const link_map& library, const std::vector<Slot>& slots) {
    const uintptr_t size = sysconf(_SC_PAGESIZE);
    for (const Slot& slot : slots) {
      const uintptr_t page = reinterpret_cast<uintptr_t>(slot.at) / size * size;
      if (!BecameReadOnly(&library, slot.at) || std::ranges::find(pages_, page) != pages_.end()) {
        continue;
      }
      all_ = mprotect(reinterpret_cast<void*>(page), size, PROT_READ | PROT_WRITE) == 0;
      if (!all_) return;
      pages_.push_back(page);
    }
  }
  ~WritablePages() {
    const uintptr_t size = sysconf(_SC_PAGESIZE);
    for (uintptr_t page : pages_) mprotect(reinterpret_cast<void*>(page), size, PROT_READ);
  }
  WritablePages(const WritablePages&) = delete;
  WritablePages& operator=(const WritablePages&) = delete;

  /// Whether all pages became writable.
  bool all() const { return all_; }

 private:
  std::vector<uintptr_t> pages_;
  bool all_ = true;
};

}  // namespace

void KeepLargeBlocks(const void* address) {
  const link_map* library = LibraryOf(address);
  // This library's own calls of free() must reach glibc's.
  if (!library || library == LibraryOf(reinterpret_cast<const void*>(&KeepLargeBlocks))) return;
  void* libc = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
  if (!libc) return;
  // Other threads of the library run meanwhile, so the functions that take blocks back must be
  // replaced before those that hand blocks out.
  const Replacement replacements[] = {
      {"free", dlsym(libc, "free"), reinterpret_cast<void*>(&Free)},
      {"realloc", dlsym(libc, "realloc"), reinterpret_cast<void*>(&Realloc)},
      {"malloc_usable_size", dlsym(libc, "malloc_usable_size"),
       reinterpret_cast<void*>(&UsableSize)},
      {"posix_memalign", dlsym(libc, "posix_memalign"), reinterpret_cast<void*>(&Memalign)},
      {"aligned_alloc", dlsym(libc, "aligned_alloc"), reinterpret_cast<void*>(&AlignedAlloc)}};
  const std::vector<Slot> slots = SlotsOf(*library, replacements);
  // Replace all slots or none: a block of ours that reaches glibc's free() would end the process.
  const WritablePages pages(*library, slots);
  if (!pages.all()) return;
  for (const Slot& slot : slots) {
    std::atomic_ref(*slot.at).store(slot.replacement, std::memory_order_seq_cst);
  }
}

void GiveBackLargeBlocks() { Kept().GiveBack(); }

}  // namespace torch_xla::runtime

#else

namespace torch_xla::runtime {

void KeepLargeBlocks(const void*) {}
void GiveBackLargeBlocks() {}

}  // namespace torch_xla::runtime

#endif
