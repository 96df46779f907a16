// Tensor.pin_memory(), is_pinned() and record_stream(), which have little to do on xla.
#include <ATen/DeviceAccelerator.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ops/_pin_memory_native.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/is_pinned_native.h>
#include <c10/core/CPUAllocator.h>
#include <torch/library.h>

#include <cstdlib>
#include <utility>

#include "tensor/device.h"

namespace torch_xla::aten {
namespace {

bool IsMeant(std::optional<c10::Device> device) {
  if (device) return device->type() == c10::DeviceType::XLA;
  const bool is_asked_for = tensor::ClientCreated() || std::getenv("PJRT_DEVICE") != nullptr;
  return is_asked_for && at::accelerator::deviceCount() == 0;
}

/// The memory that this function has to free was pinned.
void FreePinned(void* memory) { delete static_cast<at::DataPtr*>(memory); }

/// A copy, as on other devices, but in ordinary memory, since PJRT copies from any memory. The copy
/// counts as pinned, because FSDP2 pins tensors that do not.
at::Tensor PinMemory(const at::Tensor& self, std::optional<c10::Device> device) {
  if (!IsMeant(device)) return at::native::_pin_memory(self, device);
  const auto bytes = static_cast<size_t>(
      at::detail::computeStorageNbytes(self.sizes(), self.strides(), self.itemsize()));
  auto memory = std::make_unique<at::DataPtr>(c10::GetCPUAllocator()->allocate(bytes));
  void* const address = memory->get();
  at::DataPtr pinned(address, memory.release(), &FreePinned, c10::Device(c10::DeviceType::CPU));
  const c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, std::move(pinned),
                             /*allocator=*/nullptr, /*resizable=*/false);
  at::Tensor result = at::empty({0}, self.options().pinned_memory(false));
  return result.set_(storage, 0, self.sizes(), self.strides()).copy_(self);
}

/// A DataLoader pins its workers' tensors, which may already be on the device.
at::Tensor PinOnDevice(const at::Tensor& self, std::optional<c10::Device> device) {
  TORCH_CHECK(IsMeant(device), "cannot pin a tensor on ", self.device(),
              " for another device: only dense CPU tensors can be pinned");
  return self.clone();
}

bool IsPinned(const at::Tensor& self, std::optional<c10::Device> device) {
  const bool is_ours = self.has_storage() && self.storage().data_ptr().get_deleter() == &FreePinned;
  return is_ours ? IsMeant(device) : at::native::is_pinned(self, device);
}

/// A device has a single stream, so later work cannot overtake work that uses the memory.
void RecordStream(at::Tensor& /*self*/, c10::Stream stream) {
  TORCH_CHECK_VALUE(stream.device_type() == c10::DeviceType::XLA,
                    "record_stream(): expected a stream of an xla device, got one of ",
                    stream.device());
}

TORCH_LIBRARY_IMPL(aten, CPU, m) {
  m.impl("_pin_memory", TORCH_FN(PinMemory));
  m.impl("is_pinned", TORCH_FN(IsPinned));
}
TORCH_LIBRARY_IMPL(aten, XLA, m) {
  m.impl("record_stream", TORCH_FN(RecordStream));
  m.impl("_pin_memory", TORCH_FN(PinOnDevice));
}

}  // namespace
}  // namespace torch_xla::aten
