// The memory of a tensor, as torch_xla sees it: the root that a tensor shares with all its views.
// Its current value is device data or a node of the graph.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <mutex>
#include <vector>

#include "ir/node.h"
#include "tensor/auto_step.h"
#include "tensor/device_data.h"
#include "tensor/spin.h"

namespace torch_xla::tensor {

class Storage : public c10::intrusive_ptr_target {
 public:
  /// The shape of `value` becomes the shape of the storage. Views index its elements in row-major
  /// order.
  Storage(ir::Value value, int device);
  /// Makes a storage that only serves a read; the StepFinder does not see it.
  enum ForRead { kForRead };
  Storage(ir::Value value, int device, ForRead);
  ~Storage() override;

  /// Returns a copy, since a sync on another thread may replace a node by its result.
  ir::Value value() const;
  /// Calls `look` with the data that the storage holds (null if it holds a node of the graph) and
  /// its sharding. The lock is held meanwhile, so `look` must be short and must not keep its
  /// arguments.
  template <typename Look>
  auto Peek(Look&& look) const {
    std::lock_guard guard(lock_);
    return look(LeafData(value_), sharding_);
  }
  ir::ShapeRef shape() const { return shape_.load(std::memory_order_relaxed); }
  int device() const { return device_; }

  /// The id of the last data that it held, or 0: while a node is pending, the data that the node
  /// overwrites.
  uint64_t last_data() const;

  /// The sharding that its values shall have in SPMD mode; null: XLA chooses.
  const distributed::Sharding* sharding() const;
  /// Sets the sharding until the shape changes.
  void SetSharding(const distributed::Sharding* sharding);

  /// Overwrites the whole storage, also with another shape (resize_). A value with another sharding
  /// than the storage's is resharded.
  void Assign(ir::Value value);
  /// The same, unless the current value differs from `expected`.
  void Replace(const ir::Value& expected, ir::Value value);

  /// Storages on `device` whose value is a node of the graph, in the order in which they became
  /// pending.
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

}  // namespace torch_xla::tensor
