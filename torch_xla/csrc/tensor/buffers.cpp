#include "tensor/buffers.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/util/safe_numerics.h>
#include <sys/mman.h>

#include <cmath>
#include <span>

#include "cpu/host_calls.h"
#include "debug/metrics.h"
#include "debug/timeline.h"
#include "lowering/context.h"
#include "runtime/pjrt_abi.h"
#include "tensor/errors.h"

namespace torch_xla::tensor {
namespace {

using runtime::ElementType;

debug::Metric& InboundData() {
  static auto& metric = *new debug::Metric("InboundData", debug::Unit::kBytes);
  return metric;
}
debug::Metric& OutboundData() {
  static auto& metric = *new debug::Metric("OutboundData", debug::Unit::kBytes);
  return metric;
}
debug::Metric& TransferToDeviceTime() {
  static auto& metric = *new debug::Metric("TransferToDeviceTime", debug::Unit::kTimeNs);
  return metric;
}
debug::Metric& TransferFromDeviceTime() {
  static auto& metric = *new debug::Metric("TransferFromDeviceTime", debug::Unit::kTimeNs);
  return metric;
}

at::Tensor PhysicalCopy(const at::Tensor& cpu) {
  // The memory of a conjugate or negative view holds unresolved values.
  return cpu.resolve_conj().resolve_neg().to(PhysicalDtype(cpu.scalar_type())).contiguous();
}

/// `dense` has the physical dtype of `logical`.
std::unique_ptr<runtime::Buffer> UploadDense(const at::Tensor& dense, c10::ScalarType logical,
                                             int device) {
  // XLA multiplies the other dimensions of an empty array as well, and refuses it if their product
  // overflows. Such an array gets a one-dimensional empty buffer: it can be read, but not computed
  // with.
  static constexpr int64_t kNone = 0;
  bool overflows = false;
  for (int64_t bytes = 8; int64_t dim : dense.sizes()) {
    overflows |= dim != 0 && c10::mul_overflows(bytes, dim, &bytes);
  }
  const std::span<const int64_t> dims =
      overflows ? std::span(&kNone, 1) : std::span(dense.sizes().data(), dense.sizes().size());
  try {
    auto buffer = GetClient().BufferFromHost(
        dense.const_data_ptr(), lowering::PhysicalType(logical, Platform()), dims, device);
    OutboundData().AddSample(static_cast<double>(buffer->bytes()));
    return buffer;
  } catch (const runtime::Error& error) {
    std::rethrow_exception(AsTorchError(error));
  }
}

/// `dense` must live until the event is ready.
runtime::Event StartDownload(const runtime::Buffer& buffer, const at::Tensor& dense) {
  // The plugin writes as many bytes as the buffer has.
  TORCH_CHECK(buffer.bytes() == dense.nbytes(), "torch_xla: a buffer of ", buffer.bytes(),
              " bytes cannot be read as ", dense.scalar_type(), dense.sizes(), ", of ",
              dense.nbytes(), " bytes");
  InboundData().AddSample(static_cast<double>(buffer.bytes()));
  return buffer.CopyToHost(dense.mutable_data_ptr());
}

}  // namespace

c10::ScalarType PhysicalDtype(c10::ScalarType dtype) {
  switch (ElementType physical = lowering::PhysicalType(dtype, Platform()); physical) {
    case ElementType::kBF16:
      return c10::ScalarType::BFloat16;
    case ElementType::kF32:
      return c10::ScalarType::Float;
    case ElementType::kC64:
      return c10::ScalarType::ComplexFloat;
    default:
      return dtype;
  }
}

at::Tensor EmptyOnHost(c10::ScalarType dtype, c10::IntArrayRef dims) {
  return at::empty(dims, at::TensorOptions().dtype(PhysicalDtype(dtype)));
}

at::Tensor Filled(ir::ShapeRef shape, const c10::Scalar& value) {
  lowering::NaturalType(shape->dtype);  // throws for a dtype that no tensor of xla has
  const auto options = at::TensorOptions().dtype(shape->dtype);
  // A large array of zeros to be copied, such as an optimizer's state: read-only anonymous pages
  // all map to the zero page, so they need neither memory nor writes.
  constexpr int64_t kLarge = 1 << 20;
  const int64_t bytes = shape->numel * static_cast<int64_t>(c10::elementSize(shape->dtype));
  const bool zero = !value.isComplex() && value.toDouble() == 0 && !std::signbit(value.toDouble());
  if (zero && bytes >= kLarge) {
    void* pages = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages != MAP_FAILED) {
      return at::from_blob(
          pages, shape->dims, [bytes](void* data) { munmap(data, bytes); }, options);
    }
  }
  try {
    return at::full(shape->dims, value, options);
  } catch (const c10::Error&) {  // thrown by the allocator, which has no error class of its own
    throw runtime::Error(runtime::pjrt::PJRT_Error_Code_RESOURCE_EXHAUSTED,
                         "Out of memory on the host allocating " + std::to_string(bytes) +
                             " bytes for " + shape->ToString() +
                             ", which is filled with a single number");
  }
}

std::unique_ptr<runtime::Buffer> Upload(const at::Tensor& cpu, int device) {
  debug::ScopedTimer timer(TransferToDeviceTime());
  return UploadDense(PhysicalCopy(cpu), cpu.scalar_type(), device);
}

Buffers Upload(const at::Tensor& cpu, const DeviceSet& devices,
               const distributed::Sharding& sharding) {
  debug::ScopedTimer timer(TransferToDeviceTime());
  const at::Tensor dense = PhysicalCopy(cpu);
  Buffers buffers;
  const std::vector<int64_t> dims = sharding.TileDims(dense.sizes());
  for (size_t d = 0; d < devices.size(); ++d) {
    const auto tile = sharding.TileOf(static_cast<int64_t>(d), dense.sizes());
    at::Tensor part = BoxOf(dense, tile);
    if (part.sizes() != c10::IntArrayRef(dims)) {
      at::Tensor filled = at::zeros(dims, part.options());
      Unfilled(filled, tile).copy_(part);
      part = filled;
    }
    buffers.push_back(UploadDense(part.contiguous(), cpu.scalar_type(), devices[d]));
  }
  return buffers;
}

void Download(const Buffers& buffers, const std::vector<at::Tensor>& dense) {
  const cpu::WaitsForPrograms waiting;
  debug::ScopedTimer timer(TransferFromDeviceTime());
  debug::HostTimer host_timer(debug::HostPart::kTransfer);
  try {
    std::vector<runtime::Event> events;
    for (size_t i = 0; i < dense.size(); ++i)
      events.push_back(StartDownload(*buffers[i], dense[i]));
    for (const runtime::Event& event : events) event.Await();
  } catch (const runtime::Error& error) {
    // The execution that made the buffer has failed.
    std::rethrow_exception(AsTorchError(error));
  }
}

at::Tensor Download(const Buffers& buffers, ir::ShapeRef shape) {
  at::Tensor dense = EmptyOnHost(shape->dtype, shape->dims);
  Download(buffers, {dense});
  return dense.to(shape->dtype);
}

at::Tensor BoxOf(at::Tensor array, const distributed::Sharding::Tile& tile) {
  for (size_t i = 0; i < tile.sizes.size(); ++i) {
    array = array.narrow(static_cast<int64_t>(i), tile.offsets[i], tile.sizes[i]);
  }
  return array;
}

at::Tensor Unfilled(at::Tensor array, const distributed::Sharding::Tile& tile) {
  for (size_t i = 0; i < tile.sizes.size(); ++i) {
    array = array.narrow(static_cast<int64_t>(i), 0, tile.sizes[i]);
  }
  return array;
}

}  // namespace torch_xla::tensor
