#include "lazy/device_data.h"

#include "lazy/device.h"
#include "lazy/transfer.h"
#include "lowering/internal_ops.h"

namespace torch_xla::lazy {

namespace {

/// Rare (once for each array that is not the result of a program), so one mutex for all.
std::mutex making;

}  // namespace

DeviceData::DeviceData(ir::ShapeRef shape, int device, std::unique_ptr<runtime::Buffer> buffer)
    : shape_(shape),
      device_(device),
      sharding_(Sharding::Replicated()),
      foreign_(buffer->foreign()),
      state_(kReady) {
  buffers_.push_back(std::move(buffer));
}

DeviceData::DeviceData(ir::ShapeRef shape, int device, const c10::Scalar& fill,
                       const Sharding* sharding)
    : shape_(shape), device_(device), sharding_(sharding), fill_(fill), state_(kOnDemand) {}

DeviceData::DeviceData(ir::ShapeRef shape, int device, at::Tensor host, const Sharding* sharding)
    : shape_(shape),
      device_(device),
      sharding_(sharding),
      host_(std::move(host)),
      state_(kOnDemand) {}

c10::intrusive_ptr<DeviceData> DeviceData::Resharded(const Sharding* sharding) const {
  std::lock_guard<std::mutex> lock(making);
  if (fill_) return c10::make_intrusive<DeviceData>(shape_, device_, *fill_, sharding);
  if (host_.defined()) return c10::make_intrusive<DeviceData>(shape_, device_, host_, sharding);
  return nullptr;
}

uint64_t DeviceData::NextId() {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

const Buffers& DeviceData::Wait() {
  state_.wait(kPending, std::memory_order_acquire);
  return Get();
}

const Buffers& DeviceData::Get() {
  TORCH_INTERNAL_ASSERT(!pending(), "device data read before its execution was started");
  const int state = state_.load(std::memory_order_acquire);
  if (state == kFailed) std::rethrow_exception(error_);
  if (state == kOnDemand || SpmdDevices() > 1) MakeBuffers();
  TORCH_INTERNAL_ASSERT(!buffers_.empty(), "device data read after its buffer was donated");
  return buffers_;
}

void DeviceData::MakeBuffers() {
  std::lock_guard<std::mutex> lock(making);
  if (state_.load(std::memory_order_relaxed) == kReady) {
    // On one device from before SPMD mode: now on all.
    if (buffers_.size() != 1 || SpmdDevices() <= 1) return;
    host_ = Download(*buffers_[0], shape_);
  }
  buffers_ = Upload(fill_ ? Filled(shape_, *fill_) : host_, device_, *sharding());
  host_.reset();
  state_.store(kReady, std::memory_order_release);
}

void DeviceData::Fulfil(Buffers buffers, uint64_t producer) {
  producer_ = producer;
  buffers_ = std::move(buffers);
  state_.store(kReady, std::memory_order_release);
  state_.notify_all();
}

void DeviceData::Fail(std::exception_ptr error, uint64_t producer) {
  producer_ = producer;
  error_ = std::move(error);
  state_.store(kFailed, std::memory_order_release);
  state_.notify_all();
}

ir::Value MakeLeaf(const DeviceDataPtr& data) {
  auto* outputs = ir::InternOutputs(data->shape());
  ir::Hasher hasher;
  hasher.Add(&ir::ops::device_data);
  hasher.Add(data->shape());
  ir::NodePtr node(new ir::Node(&ir::ops::device_data, {}, {}, outputs, hasher.Finish()));
  node->set_payload(data);
  return {std::move(node), 0};
}

DeviceData* LeafData(const ir::Value& value) {
  if (&value.node->op() != &ir::ops::device_data) return nullptr;
  return static_cast<DeviceData*>(value.node->payload());
}

}  // namespace torch_xla::lazy
