#include "lazy/device_data.h"

#include "lazy/device.h"
#include "lazy/transfer.h"
#include "lowering/internal_ops.h"

namespace torch_xla::lazy {

DeviceData::DeviceData(ir::ShapeRef shape, int device, std::unique_ptr<runtime::Buffer> buffer)
    : shape_(shape),
      device_(device),
      foreign_(buffer->foreign()),
      state_(kReady),
      buffer_(std::move(buffer)) {}

DeviceData::DeviceData(ir::ShapeRef shape, int device, const c10::Scalar& fill)
    : shape_(shape), device_(device), fill_(fill), state_(kReady) {}

uint64_t DeviceData::NextId() {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

runtime::Buffer* DeviceData::Wait() {
  state_.wait(kPending, std::memory_order_acquire);
  return Get();
}

runtime::Buffer* DeviceData::Get() {
  TORCH_INTERNAL_ASSERT(!pending(), "device data read before its execution was started");
  if (state_.load(std::memory_order_acquire) == kFailed) std::rethrow_exception(error_);
  if (!buffer_ && fill_) {
    // Rare (once per filled tensor), so one mutex for all.
    static std::mutex mutex;
    std::lock_guard<std::mutex> lock(mutex);
    if (!buffer_) buffer_ = FilledBuffer(shape_, device_, *fill_);
  }
  TORCH_INTERNAL_ASSERT(buffer_, "device data read after its buffer was donated");
  return buffer_.get();
}

void DeviceData::Fulfil(std::unique_ptr<runtime::Buffer> buffer) {
  buffer_ = std::move(buffer);
  state_.store(kReady, std::memory_order_release);
  state_.notify_all();
}

void DeviceData::Fail(std::exception_ptr error) {
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
