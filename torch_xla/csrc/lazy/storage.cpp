#include "lazy/storage.h"

#include <array>
#include <atomic>

namespace torch_xla::lazy {

/// Doubly linked, guarded by a spin lock that is held for four pointer writes.
struct LiveList {
  std::atomic_flag locked = ATOMIC_FLAG_INIT;
  Storage* first = nullptr;
  Storage* last = nullptr;

  void Lock() {
    while (locked.test_and_set(std::memory_order_acquire)) {
      while (locked.test(std::memory_order_relaxed)) {
      }
    }
  }
  void Unlock() { locked.clear(std::memory_order_release); }

  void Append(Storage* storage) {
    Lock();
    storage->previous_ = last;
    storage->next_ = nullptr;
    (last ? last->next_ : first) = storage;
    last = storage;
    storage->listed_ = true;
    Unlock();
  }
  void Remove(Storage* storage) {
    Lock();
    (storage->previous_ ? storage->previous_->next_ : first) = storage->next_;
    (storage->next_ ? storage->next_->previous_ : last) = storage->previous_;
    storage->listed_ = false;
    Unlock();
  }
  static LiveList& Of(int device) {
    static auto& lists = *new std::array<LiveList, 256>;
    return lists[static_cast<uint8_t>(device)];
  }
};

Storage::Storage(ir::Value value, int device) : value_(std::move(value)), device_(device) {
  Hold();
}

Storage::~Storage() {
  LetGo();
  if (listed_) LiveList::Of(device_).Remove(this);
  if (created_with_) created_with_->owner_alive.store(false, std::memory_order_relaxed);
}

void Storage::Hold() {
  if (DeviceData* data = LeafData(value_)) {
    data->holders.fetch_add(1, std::memory_order_relaxed);
    if (listed_) LiveList::Of(device_).Remove(this);
    if (data->fill() && !created_with_) {
      created_with_ = DeviceDataPtr::reclaim_copy(data);
      data->owner_alive.store(true, std::memory_order_relaxed);
    }
  } else if (!listed_) {
    LiveList::Of(device_).Append(this);
  }
}

void Storage::LetGo() {
  if (DeviceData* data = LeafData(value_)) data->holders.fetch_sub(1, std::memory_order_relaxed);
}

void Storage::Assign(ir::Value value) {
  LetGo();
  value_ = std::move(value);
  Hold();
}

std::vector<StoragePtr> Storage::Pending(int device) {
  LiveList& list = LiveList::Of(device);
  std::vector<StoragePtr> pending;
  list.Lock();
  for (Storage* storage = list.first; storage; storage = storage->next_) {
    // One that another thread is destroying waits in Remove for our lock: lock() skips it.
    Storage* alive = c10::raw::weak_intrusive_ptr::lock(storage);
    if (alive) pending.push_back(StoragePtr::reclaim(alive));
  }
  list.Unlock();
  return pending;
}

}  // namespace torch_xla::lazy
