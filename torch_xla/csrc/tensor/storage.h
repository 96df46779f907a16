// What a tensor's memory is to torch_xla: the root that a tensor and all its views
// share. Its current value is device data or a node of the graph.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <mutex>
#include <vector>

#include "ir/node.h"
#include "tensor/auto_step.h"
#include "tensor/device_data.h"
#include "tensor/spin.h"

namespace torch_xla::lazy {

class Storage : public c10::intrusive_ptr_target {
 public:
  /// `value`'s shape is the storage's; views of it index its elements in row-major order.
  Storage(ir::Value value, int device);
  /// One that nothing but a read asks for: the StepFinder does not see it.
  enum ForRead { kForRead };
  Storage(ir::Value value, int device, ForRead);
  ~Storage() override;

  /// A copy, since a sync on another thread may replace a node by what it evaluates to.
  ir::Value value() const;
  /// Calls `look` with the data that it holds, null where that is a node of the graph, and its
  /// sharding. Under its lock: `look` is short, and keeps nothing.
  template <typename Look>
  auto Peek(Look&& look) const {
    std::lock_guard guard(lock_);
    return look(LeafData(value_), sharding_);
  }
  ir::ShapeRef shape() const { return shape_.load(std::memory_order_relaxed); }
  int device() const { return device_; }

  /// The id of the data that it held last, 0 for none: while a node is pending, of what that
  /// overwrites.
  uint64_t last_data() const;

  /// How its values shall lie on the devices in SPMD mode; null: as XLA finds best.
  const distributed::Sharding* sharding() const;
  /// From now on; a change of shape ends it.
  void SetSharding(const distributed::Sharding* sharding);

  /// Overwrites the whole storage (its shape may change: resize_). Data that lies otherwise than
  /// the storage shall is moved.
  void Assign(ir::Value value);
  /// The same, but not where the value is no longer `expected`.
  void Replace(const ir::Value& expected, ir::Value value);

  /// Storages on `device` whose value is still a node of the graph, in the order in
  /// which they became so.
  static std::vector<c10::intrusive_ptr<Storage>> Pending(int device);

 private:
  ir::Value Exchange(ir::Value value);
  void SetFill(DeviceDataPtr fill);
  friend struct LiveList;

  mutable SpinLock lock_;
  ir::Value value_;
  std::atomic<ir::ShapeRef> shape_;  // read without the lock
  const distributed::Sharding* sharding_ = nullptr;
  int device_;
  uint64_t last_data_ = 0;
  StorageHistory history_;
  DeviceDataPtr filled_with_;  // the last fill; see DeviceData::owners
  Storage* previous_ = nullptr;
  Storage* next_ = nullptr;
  bool listed_ = false;
};

using StoragePtr = c10::intrusive_ptr<Storage>;

}  // namespace torch_xla::lazy
