// An array on a device, or the promise of one: what a leaf of the graph holds.
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

namespace torch_xla::lazy {

/// The two least and the two largest of some integers, their sum (modulo 2^64) and whether one is
/// 0. Where all are equal, `second_least` is the largest int64 and `second_most` the least one.
struct Extremes {
  int64_t least, second_least, second_most, most, sum;
  bool has_zero;
};

/// What an operation asks of integers that come from the host.
struct IntegerBounds {
  int64_t least = std::numeric_limits<int64_t>::min(), most = std::numeric_limits<int64_t>::max();
  int64_t least_until = std::numeric_limits<int64_t>::max();  // the least of all is up to here
  std::optional<int64_t> ignored = std::nullopt;              // may be beyond these
  bool zero = true;                                           // may be among them
  std::optional<int64_t> sum = std::nullopt;

  bool operator==(const IntegerBounds&) const = default;
  /// What is not as asked, one of them or their sum; nothing where all is.
  std::optional<int64_t> Violation(const Extremes& known) const;
};

class DeviceData : public c10::intrusive_ptr_target {
 public:
  using Sharding = distributed::Sharding;

  /// A promise: some execution in the queue will keep it. Without a sharding that is not known yet,
  /// and who asks for it waits.
  DeviceData(ir::ShapeRef shape, int device, const DeviceSet* devices, const Sharding* sharding)
      : shape_(shape), device_(device), devices_(devices), sharding_(sharding) {}
  /// A buffer that is there.
  DeviceData(ir::ShapeRef shape, int device, std::unique_ptr<runtime::Buffer> buffer);
  /// Every element is `fill`; the buffers are made when something needs them.
  DeviceData(ir::ShapeRef shape, int device, const c10::Scalar& fill,
             const Sharding* sharding = Sharding::Replicated());
  /// A CPU tensor of that shape, which must not change; it is uploaded when something needs it.
  DeviceData(ir::ShapeRef shape, int device, at::Tensor host, const Sharding* sharding);
  ~DeviceData() override;

  ir::ShapeRef shape() const { return shape_; }
  int device() const { return device_; }
  /// How it lies on its devices; replicated where it has one.
  const Sharding* sharding() const {
    const Sharding* known = sharding_.load(std::memory_order_acquire);
    return known ? known : WaitForSharding();
  }
  /// Of a promise whose program is there.
  void SetSharding(const Sharding* sharding);
  /// The same content, which is not on the devices yet, with another sharding; null if it is.
  c10::intrusive_ptr<DeviceData> Resharded(const Sharding* sharding) const;
  /// Never given twice, unlike an address.
  uint64_t id() const { return id_; }
  /// Where in the user's program it was asked for; null where that is not known. Whoever makes a
  /// promise or a fill sets it: those are made under locks, where the interpreter's lock, which
  /// finding out may take, must not be waited for.
  const ir::SourceLocation* location() const { return location_; }
  void set_location(const ir::SourceLocation* location) { location_ = location; }
  /// Whether the memory is somebody else's, which no program may write to.
  bool foreign() const { return foreign_; }
  /// Of a promise: it takes the memory of an array that is donated for it.
  void set_in_place() { in_place_ = true; }
  const std::optional<c10::Scalar>& fill() const { return fill_; }
  /// Of int32 and int64 that came from the host: known without a look at the device.
  std::optional<Extremes> extremes() const;
  /// By whoever uploads, before others see the data.
  void set_extremes(const Extremes& extremes) {
    extremes_ = std::make_unique<const Extremes>(extremes);
  }

  /// Blocks until the promise is kept; throws what broke it. The buffers stay the
  /// data's; their content may still be on its way (Buffer::ReadyEvent).
  const Buffers& Wait();
  /// The same without waiting for a promise: for the thread that keeps them.
  const Buffers& Get();
  /// The same on these devices, where it is copied to if it is from before SPMD mode.
  const Buffers& On(const DeviceSet* devices);
  /// 0: none. Not before the promise is kept or broken.
  uint64_t producer() const { return producer_; }
  bool pending() const { return state_.load(std::memory_order_acquire) == kPending; }

  /// `producer`: the execution, by the number that its device's worker gives it.
  void Fulfil(Buffers buffers, uint64_t producer = 0);
  void Fail(std::exception_ptr error, uint64_t producer = 0);
  /// After the buffers were donated.
  void Drop();

  /// What there is in device memory now.
  struct Live {
    ir::ShapeRef shape;
    int device;
    int64_t bytes;  // on all devices
    const ir::SourceLocation* location;
    uint64_t id;
    uint64_t address;  // made up: no two that live at once overlap
    uint64_t producer;
    bool in_place;
  };
  static std::vector<Live> AllLive();
  /// What an execution of a device should have made is not in memory: it failed after the plugin
  /// gave its buffers out.
  static void Discount(int device, uint64_t producer);
  /// One that came or went.
  struct Event {
    Live data;
    bool came;
    int64_t time_us;  // since 1970
  };
  /// From now on remembers the last `count` events, from nothing; 0: none.
  static void RecordEvents(size_t count);
  static std::vector<Event> Events();

  /// For a fill: how many tensors live that were last filled with it. At 0 the fill is a
  /// constant of the graph rather than a parameter.
  std::atomic<int> owners{0};

 private:
  /// kOnDemand: what the buffers are made of is there; kMaking: some thread does it.
  enum State { kPending, kOnDemand, kMaking, kReady, kFailed };
  friend struct AllData;
  static uint64_t NextId();
  /// Once the buffers are there.
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
  std::atomic<Buffers*> moved_{nullptr};  // others may still read those
  std::exception_ptr error_;
  uint64_t producer_ = 0;
  const ir::SourceLocation* location_ = nullptr;
  // Of the buffers. It and the next ones change under the lock of AllData, it to 0 at last: whoever
  // sees that is alone with the data.
  std::atomic<int64_t> bytes_{0};
  uint64_t address_ = 0;
  DeviceData* previous_ = nullptr;  // of those in device memory, see AllData
  DeviceData* next_ = nullptr;
};

using DeviceDataPtr = c10::intrusive_ptr<DeviceData>;

/// The leaf node of `data`. Make one per data: the graph takes two leaves for two arrays.
ir::Value MakeLeaf(const DeviceDataPtr& data);
/// The data of a leaf, nullptr for any other value.
DeviceData* LeafData(const ir::Value& value);

}  // namespace torch_xla::lazy
