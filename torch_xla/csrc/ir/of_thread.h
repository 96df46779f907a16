// What a thread remembers, so that tracing takes no lock: it ends with the thread.
#pragma once

#include <cstddef>

namespace torch_xla::ir {

/// So many entries a table may have that its thread fills as it meets new things.
inline constexpr size_t kMaxRemembered = size_t{1} << 15;

/// Before an entry is added: has the table empty where it is full.
template <typename Table>
void MakeRoom(Table& table, size_t most = kMaxRemembered) {
  if (table.size() >= most) table.clear();
}

/// Has `destroy(*slot)` called, and null put there, when the thread ends; never, if it is ending.
void AtThreadEnd(void** slot, void (*destroy)(void*));

/// What `slot`, `constinit thread_local void* x = nullptr`, holds: a T, made when it is first asked
/// for. No check whether something was constructed is on the way to it.
template <typename T>
T& OfThread(void*& slot) {
  if (!slot) [[unlikely]] {
    slot = new T;
    AtThreadEnd(&slot, [](void* object) { delete static_cast<T*>(object); });
  }
  return *static_cast<T*>(slot);
}

}  // namespace torch_xla::ir
