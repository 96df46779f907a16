// Per-thread state, which lets tracing work without locks; it is destroyed when the thread ends.
#pragma once

#include <cstddef>

namespace torch_xla::ir {

/// The maximal number of entries of a table that a thread fills as it traces.
inline constexpr size_t kMaxRemembered = size_t{1} << 15;

/// Called before an entry is added: empties the table if it is full.
template <typename Table>
void MakeRoom(Table& table, size_t most = kMaxRemembered) {
  if (table.size() >= most) table.clear();
}

/// When the thread ends, calls `destroy(*slot)` and sets the slot to null. Does nothing if the
/// thread is ending already.
void AtThreadEnd(void** slot, void (*destroy)(void*));

/// The T in `slot`, which must be declared as `constinit thread_local void* x = nullptr`. The T is
/// made at the first call. The slot needs no guard variable for its construction.
template <typename T>
T& OfThread(void*& slot) {
  if (!slot) [[unlikely]] {
    slot = new T;
    AtThreadEnd(&slot, [](void* object) { delete static_cast<T*>(object); });
  }
  return *static_cast<T*>(slot);
}

}  // namespace torch_xla::ir
