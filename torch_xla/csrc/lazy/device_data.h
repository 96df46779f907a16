// An array on a device, or the promise of one: what a leaf of the graph holds.
#pragma once

#include <c10/core/Scalar.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>

#include "ir/node.h"
#include "runtime/client.h"

namespace torch_xla::lazy {

class DeviceData : public c10::intrusive_ptr_target {
 public:
  /// A promise: some execution in the queue will keep it.
  DeviceData(ir::ShapeRef shape, int device) : shape_(shape), device_(device) {}
  /// A buffer that is there.
  DeviceData(ir::ShapeRef shape, int device, std::unique_ptr<runtime::Buffer> buffer);
  /// Every element is `fill`; the buffer is made when something needs one.
  DeviceData(ir::ShapeRef shape, int device, const c10::Scalar& fill);

  ir::ShapeRef shape() const { return shape_; }
  int device() const { return device_; }
  /// Never given twice, unlike an address.
  uint64_t id() const { return id_; }
  /// Whether the memory is somebody else's, which no program may write to.
  bool foreign() const { return foreign_; }
  const std::optional<c10::Scalar>& fill() const { return fill_; }

  /// Blocks until the promise is kept; throws what broke it. The buffer stays the
  /// data's; its content may still be on its way (Buffer::ReadyEvent).
  runtime::Buffer* Wait();
  /// The same without waiting for a promise: for the thread that keeps them.
  runtime::Buffer* Get();
  bool pending() const { return state_.load(std::memory_order_acquire) == kPending; }

  void Fulfil(std::unique_ptr<runtime::Buffer> buffer);
  void Fail(std::exception_ptr error);
  /// After the buffer was donated.
  void Drop() { buffer_.reset(); }

  /// For a fill: how many tensors live that were last filled with it. At 0 the fill is a
  /// constant of the graph rather than a parameter.
  std::atomic<int> owners{0};

 private:
  enum State { kPending, kReady, kFailed };
  static uint64_t NextId();

  ir::ShapeRef shape_;
  int device_;
  bool foreign_ = false;
  uint64_t id_ = NextId();
  std::optional<c10::Scalar> fill_;
  std::atomic<int> state_{kPending};
  std::unique_ptr<runtime::Buffer> buffer_;
  std::exception_ptr error_;
};

using DeviceDataPtr = c10::intrusive_ptr<DeviceData>;

/// The leaf node of `data`. Make one per data: the graph takes two leaves for two arrays.
ir::Value MakeLeaf(const DeviceDataPtr& data);
/// The data of a leaf, nullptr for any other value.
DeviceData* LeafData(const ir::Value& value);

}  // namespace torch_xla::lazy
