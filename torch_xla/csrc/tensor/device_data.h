// An array on a device, or the promise of an array: the content of a leaf of the graph.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <exception>
#include <limits>
#include <memory>
#include <optional>

#include "ir/node.h"
#include "runtime/client.h"
#include "tensor/buffers.h"
#include "tensor/device.h"
#include "tensor/sharding.h"
#include "tensor/spin.h"

namespace torch_xla::tensor {

/// The two least and the two largest of some integers, their sum (modulo 2^64) and whether 0 is
/// among them. If all integers are equal, `second_least` is the largest int64 and `second_most` the
/// least int64.
struct Extremes {
  int64_t least, second_least, second_most, most, sum;
  bool has_zero;
};

/// What an operation requires of integers that come from the host.
struct IntegerBounds {
  int64_t least = std::numeric_limits<int64_t>::min(), most = std::numeric_limits<int64_t>::max();
  int64_t least_until = std::numeric_limits<int64_t>::max();  // upper bound of the least integer
  std::optional<int64_t> ignored = std::nullopt;  // a value outside the bounds that is allowed
  bool zero = true;                               // whether 0 is allowed
  std::optional<int64_t> sum = std::nullopt;

  bool operator==(const IntegerBounds&) const = default;
  /// The first violation: an integer out of bounds, or the sum. Nothing if all requirements are
  /// met.
  std::optional<int64_t> Violation(const Extremes& known) const;
};

class DeviceData : public c10::intrusive_ptr_target {
 public:
  using Sharding = distributed::Sharding;

  /// A promise that a queued execution will fulfil. Without a sharding it is not known yet, and
  /// sharding() waits for it.
  DeviceData(ir::ShapeRef shape, int device, const DeviceSet* devices, const Sharding* sharding)
      : shape_(shape), device_(device), devices_(devices), sharding_(sharding) {}
  /// An existing buffer.
  DeviceData(ir::ShapeRef shape, int device, std::unique_ptr<runtime::Buffer> buffer);
  /// An array filled with `fill`; its buffers are made when an operation needs them.
  DeviceData(ir::ShapeRef shape, int device, const c10::Scalar& fill,
             const Sharding* sharding = Sharding::Replicated());
  /// A CPU tensor of this shape, which must not change. It is uploaded when an operation needs it.
  DeviceData(ir::ShapeRef shape, int device, at::Tensor host, const Sharding* sharding);
  ~DeviceData() override;

  ir::ShapeRef shape() const { return shape_; }
  int device() const { return device_; }
  /// The sharding on its devices; replicated on a single device. Waits if it is not known yet.
  const Sharding* sharding() const {
    const Sharding* known = sharding_.load(std::memory_order_acquire);
    return known ? known : WaitForSharding();
  }
  /// Sets the sharding of a promise whose program is compiled.
  void SetSharding(const Sharding* sharding);
  /// The same content with another sharding, if it is not on the devices yet; else null.
  c10::intrusive_ptr<DeviceData> Resharded(const Sharding* sharding) const;
  /// A number that is never reused, unlike an address.
  uint64_t id() const { return id_; }
  /// The line of the user's program that asked for the data; null if unknown. Whoever makes a
  /// promise or a fill must set it: these are made under locks, and finding the line may take the
  /// interpreter's lock, which must not be waited for there.
  const ir::SourceLocation* location() const { return location_; }
  void set_location(const ir::SourceLocation* location) { location_ = location; }
  /// Whether other code owns the memory, so that no program may write to it.
  bool foreign() const { return foreign_; }
  /// Notes that the promise takes the memory of an array that is donated to it.
  void set_in_place() { in_place_ = true; }
  const std::optional<c10::Scalar>& fill() const { return fill_; }
  /// The extremes of int32 and int64 data that came from the host, known without a copy from the
  /// device.
  std::optional<Extremes> extremes() const;
  /// Called by the uploader, before others see the data.
  void set_extremes(const Extremes& extremes) {
    extremes_ = std::make_unique<const Extremes>(extremes);
  }

  /// Blocks until the promise is fulfilled; throws if it failed. The data keeps the buffers, whose
  /// content may still be on its way (Buffer::ReadyEvent).
  const Buffers& Wait();
  /// The same, but does not wait for a promise: for the thread that fulfils promises.
  const Buffers& Get();
  /// The buffers on these devices; data from before SPMD mode is copied to them.
  const Buffers& On(const DeviceSet* devices);
  /// The number of the execution that made the data; 0: none. Valid only once the promise is
  /// fulfilled or failed.
  uint64_t producer() const { return producer_; }
  bool pending() const { return state_.load(std::memory_order_acquire) == kPending; }

  /// `producer` is the number of the execution, as its device's worker counts.
  void Fulfil(Buffers buffers, uint64_t producer = 0);
  void Fail(std::exception_ptr error, uint64_t producer = 0);
  /// Called after the buffers were donated.
  void Drop();

  /// Data that is in device memory now.
  struct Live {
    ir::ShapeRef shape;
    int device;
    int64_t bytes;  // on all devices
    const ir::SourceLocation* location;
    uint64_t id;
    uint64_t address;  // synthetic; the ranges of live data never overlap
    uint64_t producer;
    bool in_place;
  };
  static std::vector<Live> AllLive();
  /// Takes the results of a failed execution of a device out of the statistics: the plugin handed
  /// out their buffers before the execution failed.
  static void Discount(int device, uint64_t producer);
  /// Data that came to device memory or left it.
  struct Event {
    Live data;
    bool came;
    int64_t time_us;  // microseconds since 1970
  };
  /// Clears the record, and remembers the last `count` events from now on; 0: none.
  static void RecordEvents(size_t count);
  static std::vector<Event> Events();

  /// For a fill: the number of live tensors that were last filled with it. At 0 the fill becomes a
  /// constant of the graph instead of a parameter.
  std::atomic<int> owners{0};

 private:
  /// kOnDemand: the buffers can be made; kMaking: a thread is making them.
  enum State { kPending, kOnDemand, kMaking, kReady, kFailed };
  friend struct AllData;
  static uint64_t NextId();
  /// Adds the buffers to the statistics, once they exist.
  void Account();
  bool Counted() const { return bytes_.load(std::memory_order_acquire) != 0; }
  void MakeBuffers();
  void SetState(State state);
  const Sharding* WaitForSharding() const;

  ir::ShapeRef shape_;
  int device_;
  const DeviceSet* devices_;
  std::atomic<const Sharding*> sharding_;  // null: not known yet
  bool foreign_ = false;
  bool in_place_ = false;
  uint64_t id_ = NextId();
  std::optional<c10::Scalar> fill_;
  std::unique_ptr<const Extremes> extremes_;
  mutable SpinLock host_lock_;
  at::Tensor host_;
  std::atomic<int> state_{kPending};
  Buffers buffers_;
  std::atomic<Buffers*> moved_{nullptr};  // the buffers before `moved_` may still be read
  std::exception_ptr error_;
  uint64_t producer_ = 0;
  const ir::SourceLocation* location_ = nullptr;
  // Total size of the buffers. This field and the following ones change under the lock of AllData.
  // It becomes 0 last: whoever sees 0 is alone with the data.
  std::atomic<int64_t> bytes_{0};
  uint64_t address_ = 0;
  DeviceData* previous_ = nullptr;  // in a list of AllData
  DeviceData* next_ = nullptr;
};

using DeviceDataPtr = c10::intrusive_ptr<DeviceData>;

/// Makes the leaf node of `data`. Call it once per data: the graph treats two leaves as two arrays.
ir::Value MakeLeaf(const DeviceDataPtr& data);
/// The data of a leaf; nullptr for any other value.
DeviceData* LeafData(const ir::Value& value);

}  // namespace torch_xla::tensor
