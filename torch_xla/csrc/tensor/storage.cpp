#include "tensor/storage.h"

#include <array>
#include <mutex>
#include <utility>

#include "tensor/device.h"
#include "tensor/sharded_value.h"
#include "tensor/writes_of_thread.h"

namespace torch_xla::tensor {

/// A doubly linked list; its lock is held for four pointer writes. A forked child, in which nothing
/// is ever evaluated, does not touch it: a thread of its parent may have held the lock.
struct LiveList {
  SpinLock lock;
  Storage* first = nullptr;
  Storage* last = nullptr;

  void Append(Storage* storage) {
    if (runtime::Client::Forked()) return;
    std::lock_guard guard(lock);
    storage->previous_ = last;
    storage->next_ = nullptr;
    (last ? last->next_ : first) = storage;
    last = storage;
    storage->listed_ = true;
  }
  void Remove(Storage* storage) {
    if (runtime::Client::Forked()) return;
    std::lock_guard guard(lock);
    (storage->previous_ ? storage->previous_->next_ : first) = storage->next_;
    (storage->next_ ? storage->next_->previous_ : last) = storage->previous_;
    storage->listed_ = false;
  }
  static LiveList& Of(int device) {
    static auto& lists = *new std::array<LiveList, 256>;
    return lists[static_cast<uint8_t>(device)];
  }
};

Storage::Storage(ir::Value value, int device) : shape_(value.shape()), device_(device) {
  StepFinderOf(device).Born(history_, value);
  Exchange(std::move(value));
}

Storage::Storage(ir::Value value, int device, ForRead) : shape_(value.shape()), device_(device) {
  Exchange(std::move(value));
}

Storage::~Storage() {
  if (listed_) LiveList::Of(device_).Remove(this);
  SetFill({});
}

void Storage::SetFill(DeviceDataPtr fill) {
  if (filled_with_) filled_with_->owners.fetch_sub(1, std::memory_order_relaxed);
  filled_with_ = std::move(fill);
  if (filled_with_) filled_with_->owners.fetch_add(1, std::memory_order_relaxed);
}

ir::Value Storage::Exchange(ir::Value value) {
  if (DeviceData* data = LeafData(value)) {
    if (listed_) LiveList::Of(device_).Remove(this);
    last_data_ = data->id();
    if (data->fill()) SetFill(DeviceDataPtr::reclaim_copy(data));
  } else if (!listed_) {
    LiveList::Of(device_).Append(this);
  }
  if (shape() != value.shape()) sharding_ = nullptr;
  shape_.store(value.shape(), std::memory_order_relaxed);
  return std::exchange(value_, std::move(value));
}

ir::Value Storage::value() const {
  std::lock_guard guard(lock_);
  return value_;
}

uint64_t Storage::last_data() const {
  std::lock_guard guard(lock_);
  return last_data_;
}

const distributed::Sharding* Storage::sharding() const {
  std::lock_guard guard(lock_);
  return sharding_;
}

void Storage::SetSharding(const distributed::Sharding* sharding) {
  std::lock_guard guard(lock_);
  sharding_ = sharding;
}

void Storage::Assign(ir::Value value) {
  if (WritesOfThread::IsOn()) [[unlikely]] {
    using Target = c10::intrusive_ptr_target;
    c10::weak_intrusive_ptr<Target> self(c10::intrusive_ptr<Target>::reclaim_copy(this));
    WritesOfThread::Note(this, {std::move(self), this->value(), last_data()});
  }
  if (LeafData(value)) {
    const distributed::Sharding* wanted = sharding();
    if (wanted && value.shape() == shape()) value = WithSharding(std::move(value), *wanted);
  }
  StepFinderOf(device_).Written(history_, this, value);
  ir::Value old;  // freed without the lock, since it may free many nodes
  std::lock_guard guard(lock_);
  old = Exchange(std::move(value));
}

void Storage::Replace(const ir::Value& expected, ir::Value value) {
  ir::Value old;
  std::lock_guard guard(lock_);
  if (value_ == expected) old = Exchange(std::move(value));
}

std::vector<StoragePtr> Storage::Pending(int device) {
  LiveList& list = LiveList::Of(device);
  std::vector<StoragePtr> pending;
  std::lock_guard guard(list.lock);
  for (Storage* storage = list.first; storage; storage = storage->next_) {
    // A storage that another thread is destroying waits in Remove for this lock; lock() skips it.
    Storage* alive = c10::raw::weak_intrusive_ptr::lock(storage);
    if (alive) pending.push_back(StoragePtr::reclaim(alive));
  }
  return pending;
}

}  // namespace torch_xla::tensor
