#include "tensor/device_data.h"

#include <array>
#include <chrono>
#include <deque>
#include <limits>
#include <mutex>

#include "XLAOps.h"
#include "cpu/host_calls.h"
#include "debug/timeline.h"
#include "ir/attributes.h"
#include "rules/below_modes.h"
#include "tensor/device.h"

namespace torch_xla::tensor {
namespace {

/// A record of data that came to device memory and left it, while recording is on.
struct History {
  std::atomic<size_t> capacity{0};
  std::mutex mutex;
  std::deque<DeviceData::Event> events;
};

History& GetHistory() {
  static auto& history = *new History;
  return history;
}

uint64_t NextAddress(int64_t bytes) {
  static std::atomic<uint64_t> next{uint64_t{1} << 32};
  return next.fetch_add((static_cast<uint64_t>(bytes) + 511) & ~uint64_t{511},
                        std::memory_order_relaxed);
}

}  // namespace

/// All data in device memory, in several lists with a lock each, so that threads rarely wait for
/// each other. A forked child, which has no device, does not touch them: a thread of its parent may
/// have held a lock.
struct AllData {
  SpinLock lock;
  DeviceData* first = nullptr;

  static constexpr size_t kLists = 16;
  static std::array<AllData, kLists>& Lists() {
    static auto& lists = *new std::array<AllData, kLists>;
    return lists;
  }
  static void SetBytes(DeviceData* data, int64_t bytes) {
    if (runtime::Client::Forked()) return;
    AllData& list = Lists()[data->id_ % kLists];
    std::lock_guard guard(list.lock);
    list.Set(data, bytes);
  }
  /// The caller holds the lock.
  void Set(DeviceData* data, int64_t bytes) {
    const bool was = data->bytes_.load(std::memory_order_relaxed) != 0, is = bytes != 0;
    if (was) Note(data, /*came=*/false);
    if (is) {
      data->bytes_.store(bytes, std::memory_order_relaxed);
      data->address_ = NextAddress(bytes);
      Note(data, /*came=*/true);
    }
    if (was == is) return;
    if (is) {
      data->previous_ = nullptr;
      data->next_ = first;
      if (first) first->previous_ = data;
      first = data;
    } else {
      (data->previous_ ? data->previous_->next_ : first) = data->next_;
      if (data->next_) data->next_->previous_ = data->previous_;
      data->bytes_.store(0, std::memory_order_release);
    }
  }
  static DeviceData::Live Describe(const DeviceData* data) {
    const int64_t bytes = data->bytes_.load(std::memory_order_relaxed);
    return {data->shape_, data->device_,  bytes,           data->location_,
            data->id_,    data->address_, data->producer_, data->in_place_};
  }
  static void Note(const DeviceData* data, bool came) {
    History& history = GetHistory();
    const size_t capacity = history.capacity.load(std::memory_order_relaxed);
    if (capacity == 0) [[likely]]
      return;
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    std::lock_guard guard(history.mutex);
    history.events.push_back(
        {Describe(data), came, std::chrono::duration_cast<std::chrono::microseconds>(now).count()});
    if (history.events.size() > capacity) history.events.pop_front();
  }
};

DeviceData::DeviceData(ir::ShapeRef shape, int device, std::unique_ptr<runtime::Buffer> buffer)
    : shape_(shape),
      device_(device),
      devices_(DevicesOf(device)),
      sharding_(Sharding::Replicated()),
      foreign_(buffer->foreign()),
      state_(kReady) {
  location_ = ir::CurrentLocation();
  buffers_.push_back(std::move(buffer));
  Account();
}

DeviceData::DeviceData(ir::ShapeRef shape, int device, const c10::Scalar& fill,
                       const Sharding* sharding)
    : shape_(shape),
      device_(device),
      devices_(DevicesOf(device)),
      sharding_(sharding),
      fill_(fill),
      state_(kOnDemand) {}

DeviceData::DeviceData(ir::ShapeRef shape, int device, at::Tensor host, const Sharding* sharding)
    : shape_(shape),
      device_(device),
      devices_(DevicesOf(device)),
      sharding_(sharding),
      host_(std::move(host)),
      state_(kOnDemand) {
  location_ = ir::CurrentLocation();
}

DeviceData::~DeviceData() {
  if (Counted()) AllData::SetBytes(this, 0);
  delete moved_.load(std::memory_order_relaxed);
}

void DeviceData::Account() {
  int64_t bytes = 0;
  for (const auto& buffer : buffers_) bytes += static_cast<int64_t>(buffer->bytes());
  if (bytes != 0) AllData::SetBytes(this, bytes);
}

void DeviceData::Drop() {
  // Remove it from the lists first: data in the lists must have its buffers.
  if (Counted()) AllData::SetBytes(this, 0);
  buffers_.clear();
  delete moved_.exchange(nullptr);
}

void DeviceData::Discount(int device, uint64_t producer) {
  for (AllData& list : AllData::Lists()) {
    std::lock_guard guard(list.lock);
    for (DeviceData *data = list.first, *next = nullptr; data; data = next) {
      next = data->next_;
      if (data->device_ != device || data->producer_ != producer) continue;
      for (const auto& buffer : data->buffers_) buffer->ReleaseAccounting();
      list.Set(data, 0);
    }
  }
}

std::vector<DeviceData::Live> DeviceData::AllLive() {
  std::vector<Live> live;
  for (AllData& list : AllData::Lists()) {
    std::lock_guard guard(list.lock);
    for (const DeviceData* data = list.first; data; data = data->next_) {
      live.push_back(AllData::Describe(data));
    }
  }
  return live;
}

void DeviceData::RecordEvents(size_t count) {
  History& history = GetHistory();
  std::lock_guard guard(history.mutex);
  history.events.clear();
  history.capacity.store(count, std::memory_order_relaxed);
}

std::vector<DeviceData::Event> DeviceData::Events() {
  History& history = GetHistory();
  std::lock_guard guard(history.mutex);
  return {history.events.begin(), history.events.end()};
}

c10::intrusive_ptr<DeviceData> DeviceData::Resharded(const Sharding* sharding) const {
  if (fill_) return c10::make_intrusive<DeviceData>(shape_, device_, *fill_, sharding);
  at::Tensor host;
  {
    std::lock_guard lock(host_lock_);
    host = host_;
  }
  if (!host.defined()) return nullptr;
  auto data = c10::make_intrusive<DeviceData>(shape_, device_, host, sharding);
  if (extremes_) data->set_extremes(*extremes_);
  return data;
}

std::optional<Extremes> DeviceData::extremes() const {
  if (extremes_) return *extremes_;
  const c10::ScalarType dtype = shape_->dtype;
  if (!fill_ || !fill_->isIntegral(/*includeBool=*/false) ||
      (dtype != c10::ScalarType::Int && dtype != c10::ScalarType::Long)) {
    return std::nullopt;
  }
  using Limits = std::numeric_limits<int64_t>;
  const int64_t value = ir::IntegerBits(*fill_);
  const uint64_t sum = static_cast<uint64_t>(value) * static_cast<uint64_t>(shape_->numel);
  return Extremes{value,     Limits::max(), Limits::min(), value, static_cast<int64_t>(sum),
                  value == 0};
}

std::optional<int64_t> IntegerBounds::Violation(const Extremes& known) const {
  // If all integers are ignored, `low` and `high` lie within any bounds.
  const int64_t low = known.least == ignored ? known.second_least : known.least;
  const int64_t high = known.most == ignored ? known.second_most : known.most;
  if (low < least) return low;
  if (high > most) return high;
  if (low > least_until) return low;
  if (!zero && known.has_zero) return 0;
  if (sum && known.sum != *sum) return known.sum;
  return std::nullopt;
}

uint64_t DeviceData::NextId() {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

const Buffers& DeviceData::Wait() {
  if (pending()) {
    const cpu::WaitsForPrograms waiting;
    debug::HostTimer timer(debug::HostPart::kWait);
    state_.wait(kPending, std::memory_order_acquire);
  }
  return Get();
}

const Buffers& DeviceData::Get() {
  while (true) {
    int state = state_.load(std::memory_order_acquire);
    TORCH_INTERNAL_ASSERT(state != kPending, "device data read before its execution was started");
    if (state == kReady) break;
    if (state == kFailed) std::rethrow_exception(error_);
    if (state == kMaking) {
      state_.wait(kMaking, std::memory_order_acquire);
    } else if (state_.compare_exchange_strong(state, kMaking)) {
      MakeBuffers();
    }
  }
  TORCH_INTERNAL_ASSERT(!buffers_.empty(), "device data read after its buffer was donated");
  return buffers_;
}

const Buffers& DeviceData::On(const DeviceSet* devices) {
  const Buffers& own = Get();
  if (devices == devices_) return own;
  Buffers* moved = moved_.load(std::memory_order_acquire);
  if (moved) return *moved;
  auto made = std::make_unique<Buffers>(Upload(Download(own, shape_), *devices, *sharding()));
  if (!moved_.compare_exchange_strong(moved, made.get())) return *moved;
  return *made.release();
}

void DeviceData::MakeBuffers() {
  const rules::BelowModes below;  // The calling thread may be the tracing thread.
  try {
    buffers_ = Upload(fill_ ? Filled(shape_, *fill_) : host_, *devices_, *sharding());
  } catch (...) {
    SetState(kOnDemand);
    throw;
  }
  Account();
  at::Tensor old;
  {
    std::lock_guard lock(host_lock_);
    old = std::move(host_);
  }
  SetState(kReady);
}

void DeviceData::SetState(State state) {
  state_.store(state, std::memory_order_release);
  state_.notify_all();
}

void DeviceData::SetSharding(const Sharding* sharding) {
  if (sharding_.exchange(sharding, std::memory_order_acq_rel) == nullptr) sharding_.notify_all();
}

const DeviceData::Sharding* DeviceData::WaitForSharding() const {
  sharding_.wait(nullptr, std::memory_order_acquire);
  return sharding_.load(std::memory_order_acquire);
}

void DeviceData::Fulfil(Buffers buffers, uint64_t producer) {
  producer_ = producer;
  buffers_ = std::move(buffers);
  Account();
  SetState(kReady);
}

void DeviceData::Fail(std::exception_ptr error, uint64_t producer) {
  producer_ = producer;
  error_ = std::move(error);
  SetState(kFailed);
  // Nobody shall wait for the sharding of failed data.
  if (!sharding_.load(std::memory_order_acquire)) SetSharding(Sharding::Replicated());
}

ir::Value MakeLeaf(const DeviceDataPtr& data) {
  auto* outputs = ir::InternOutputs(data->shape());
  ir::Hasher hasher;
  hasher.Add(ir::ops::device_data.id);
  hasher.Add(data->shape()->hash);
  ir::NodePtr node(new ir::Node(&ir::ops::device_data, {}, {}, outputs, hasher.Finish()));
  node->set_payload(data);
  return {std::move(node), 0};
}

DeviceData* LeafData(const ir::Value& value) {
  if (&value.node->op() != &ir::ops::device_data) return nullptr;
  return static_cast<DeviceData*>(value.node->payload());
}

}  // namespace torch_xla::tensor
