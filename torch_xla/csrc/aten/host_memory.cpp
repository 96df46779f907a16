// Tensor.pin_memory() and Tensor.record_stream(), which have nothing to do on xla.
#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/_pin_memory_native.h>
#include <ATen/ops/clone.h>
#include <torch/library.h>

#include <cstdlib>

#include "tensor/device.h"

namespace torch_xla::aten {
namespace {

/// A copy, as elsewhere: PJRT copies from any memory of the host.
at::Tensor PinMemory(const at::Tensor& self, std::optional<c10::Device> device) {
  const bool is_asked_for = lazy::ClientCreated() || std::getenv("PJRT_DEVICE") != nullptr;
  const bool is_meant = device ? device->type() == c10::DeviceType::XLA
                               : is_asked_for && !at::getAccelerator(/*checked=*/false);
  return is_meant ? self.clone(at::MemoryFormat::Preserve) : at::native::_pin_memory(self, device);
}

/// A device has one stream, whose later work cannot overtake what uses the memory.
void RecordStream(at::Tensor& /*self*/, c10::Stream stream) {
  TORCH_CHECK_VALUE(stream.device_type() == c10::DeviceType::XLA,
                    "record_stream(): expected a stream of an xla device, got one of ",
                    stream.device());
}

TORCH_LIBRARY_IMPL(aten, CPU, m) { m.impl("_pin_memory", TORCH_FN(PinMemory)); }
TORCH_LIBRARY_IMPL(aten, XLA, m) { m.impl("record_stream", TORCH_FN(RecordStream)); }

}  // namespace
}  // namespace torch_xla::aten
