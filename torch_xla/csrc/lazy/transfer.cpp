#include "lazy/transfer.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/util/safe_numerics.h>
#include <sys/mman.h>

#include <cmath>
#include <limits>
#include <utility>

#include "debug/metrics.h"
#include "debug/report.h"
#include "lazy/auto_step.h"
#include "lazy/device.h"
#include "lazy/errors.h"
#include "lazy/frequency.h"
#include "lazy/origin.h"
#include "lazy/timeline.h"
#include "lazy/worker.h"
#include "lowering/context.h"
#include "runtime/pjrt_abi.h"

namespace torch_xla::lazy {
namespace {

using runtime::ElementType;

/// The torch dtype whose bytes are the physical type's.
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
  // A conjugate or negative view keeps its bits in memory unresolved.
  return cpu.resolve_conj().resolve_neg().to(PhysicalDtype(cpu.scalar_type())).contiguous();
}

/// `dense` has the physical dtype of `logical`.
std::unique_ptr<runtime::Buffer> UploadDense(const at::Tensor& dense, c10::ScalarType logical,
                                             int device) {
  // XLA multiplies the other dimensions of an empty array, too, and takes none whose product
  // overflows: one to read, then, but not to compute with.
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
  // It is written to for as many bytes as the buffer has.
  TORCH_CHECK(buffer.bytes() == dense.nbytes(), "torch_xla: a buffer of ", buffer.bytes(),
              " bytes was to be read as ", dense.scalar_type(), dense.sizes(), ", of ",
              dense.nbytes(), " bytes");
  InboundData().AddSample(static_cast<double>(buffer.bytes()));
  return buffer.CopyToHost(dense.mutable_data_ptr());
}

/// Runs what downloads; an error is of the execution that made the buffer.
template <typename Function>
void Downloading(const Function& function) {
  debug::ScopedTimer timer(TransferFromDeviceTime());
  HostTimer host_timer(HostPart::kTransfer);
  if (debug::DebugLevel() > 0) NoteFrequentRead(CurrentOrigin());
  try {
    function();
  } catch (const runtime::Error& error) {
    std::rethrow_exception(AsTorchError(error));
  }
}

at::Tensor EmptyLike(ir::ShapeRef shape, c10::IntArrayRef dims) {
  return at::empty(dims, at::TensorOptions().dtype(PhysicalDtype(shape->dtype)));
}

template <typename T>
Extremes ExtremesOf(const T* numbers, int64_t count) {
  T least = numbers[0], most = numbers[0];
  T second_least = std::numeric_limits<T>::max(), second_most = std::numeric_limits<T>::min();
  auto sum = static_cast<uint64_t>(least);
  bool has_zero = least == 0;
  for (int64_t i = 1; i < count; ++i) {
    const T x = numbers[i];
    sum += static_cast<uint64_t>(x);
    has_zero |= x == 0;
    // One branch, and soon none that is taken: 1 ns a number.
    if (((x < second_least) & (x != least)) | ((x > second_most) & (x != most))) [[unlikely]] {
      if (x < least) {
        second_least = std::exchange(least, x);
      } else if (x > least && x < second_least) {
        second_least = x;
      }
      if (x > most) {
        second_most = std::exchange(most, x);
      } else if (x < most && x > second_most) {
        second_most = x;
      }
    }
  }
  if (least == most) {
    using Wide = std::numeric_limits<int64_t>;
    return {least, Wide::max(), Wide::min(), most, static_cast<int64_t>(sum), has_zero};
  }
  return {least, second_least, second_most, most, static_cast<int64_t>(sum), has_zero};
}

/// Remembers what indices must know of themselves.
void NoteExtremes(const at::Tensor& cpu, DeviceData& data) {
  const c10::ScalarType dtype = cpu.scalar_type();
  if ((dtype != c10::ScalarType::Long && dtype != c10::ScalarType::Int) || cpu.numel() == 0) return;
  const at::Tensor dense = cpu.contiguous();
  data.set_extremes(dtype == c10::ScalarType::Long
                        ? ExtremesOf(dense.const_data_ptr<int64_t>(), dense.numel())
                        : ExtremesOf(dense.const_data_ptr<int32_t>(), dense.numel()));
}

/// The box of a CPU tensor that a tile is.
at::Tensor BoxOf(at::Tensor array, const distributed::Sharding::Tile& tile) {
  for (size_t i = 0; i < tile.sizes.size(); ++i) {
    array = array.narrow(static_cast<int64_t>(i), tile.offsets[i], tile.sizes[i]);
  }
  return array;
}

/// The same box of an array that holds the tile alone.
at::Tensor Unfilled(at::Tensor array, const distributed::Sharding::Tile& tile) {
  for (size_t i = 0; i < tile.sizes.size(); ++i) {
    array = array.narrow(static_cast<int64_t>(i), 0, tile.sizes[i]);
  }
  return array;
}

}  // namespace

DeviceDataPtr ToDevice(const at::Tensor& cpu, int device) {
  StepFinderOf(device).Uploaded(cpu.nbytes());
  const ir::ShapeRef shape = ir::GetShape(cpu.scalar_type(), cpu.sizes());
  DeviceDataPtr data;
  if (DevicesOf(device)->size() > 1) {
    data = c10::make_intrusive<DeviceData>(shape, device, cpu.resolve_conj().resolve_neg().clone(),
                                           distributed::Sharding::Replicated());
  } else {
    debug::ScopedTimer timer(TransferToDeviceTime());
    HostTimer host_timer(HostPart::kTransfer);
    data = c10::make_intrusive<DeviceData>(
        shape, device, UploadDense(PhysicalCopy(cpu), cpu.scalar_type(), device));
  }
  NoteExtremes(cpu, *data);
  return data;
}

DeviceDataPtr ViewOf(void* data, ir::ShapeRef shape, int device,
                     const std::shared_ptr<const void>& owner, intptr_t stream) {
  // What XLA's compiled programs take for granted of their arguments.
  const uintptr_t alignment = GetClient().host_memory() ? 64 : 128;
  if (DevicesOf(device)->size() > 1 || PhysicalDtype(shape->dtype) != shape->dtype ||
      data == nullptr || reinterpret_cast<uintptr_t>(data) % alignment != 0) {
    return nullptr;
  }
  std::unique_ptr<runtime::Buffer> buffer;
  try {
    buffer = GetClient().ViewOf(data, lowering::PhysicalType(shape->dtype, Platform()),
                                {shape->dims.data(), shape->dims.size()}, device, owner, stream);
  } catch (const runtime::Error& error) {
    if (error.refused()) return nullptr;
    std::rethrow_exception(AsTorchError(error));
  }
  return c10::make_intrusive<DeviceData>(shape, device, std::move(buffer));
}

void ToHost(DeviceData& data, const at::Tensor& cpu) {
  if (data.producer() != 0) GetWorker(data.device()).NoteWait();
  const Buffers& buffers = data.Wait();
  const c10::ScalarType logical = data.shape()->dtype;
  if (!data.sharding()->replicated()) {
    const std::vector<at::Tensor> tiles = TilesToHost(data);
    for (size_t device = 0; device < tiles.size(); ++device) {
      const auto tile = data.sharding()->TileOf(static_cast<int64_t>(device), data.shape()->dims);
      if (tile.copy == 0) BoxOf(cpu, tile).copy_(tiles[device]);
    }
    return;
  }
  const bool direct = cpu.scalar_type() == PhysicalDtype(logical) && cpu.is_contiguous();
  at::Tensor dense = direct ? cpu : EmptyLike(data.shape(), data.shape()->dims);
  Downloading([&] { StartDownload(*buffers[0], dense).Await(); });
  // Through the logical dtype first, so that what the user sees is what it says.
  if (!direct) cpu.copy_(dense.to(logical));
}

at::Tensor ToHost(DeviceData& data) {
  at::Tensor cpu = at::empty(data.shape()->dims, at::TensorOptions().dtype(data.shape()->dtype));
  ToHost(data, cpu);
  return cpu;
}

std::vector<at::Tensor> TilesToHost(DeviceData& data) {
  data.Wait();
  const Buffers& buffers = data.On(DevicesOf(data.device()));
  const c10::ScalarType logical = data.shape()->dtype;
  const std::vector<int64_t> dims = data.sharding()->TileDims(data.shape()->dims);
  std::vector<at::Tensor> tiles;
  Downloading([&] {
    std::vector<runtime::Event> events;
    for (const auto& buffer : buffers) {
      tiles.push_back(EmptyLike(data.shape(), dims));
      events.push_back(StartDownload(*buffer, tiles.back()));
    }
    for (const runtime::Event& event : events) event.Await();
  });
  for (size_t device = 0; device < tiles.size(); ++device) {
    tiles[device] =
        Unfilled(tiles[device].to(logical),
                 data.sharding()->TileOf(static_cast<int64_t>(device), data.shape()->dims));
  }
  return tiles;
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

at::Tensor Download(const runtime::Buffer& buffer, ir::ShapeRef shape) {
  at::Tensor dense = EmptyLike(shape, shape->dims);
  Downloading([&] { StartDownload(buffer, dense).Await(); });
  return dense.to(shape->dtype);
}

at::Tensor Filled(ir::ShapeRef shape, const c10::Scalar& value) {
  const auto options = at::TensorOptions().dtype(shape->dtype);
  // Of an optimizer's state, say, that is to be copied: pages that are only read are all one page
  // of zeros, which nobody has to write and which takes no memory.
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
  } catch (const c10::Error&) {  // of the allocator; there is none of memory alone
    throw runtime::Error(runtime::pjrt::PJRT_Error_Code_RESOURCE_EXHAUSTED,
                         "Out of memory on the host allocating " + std::to_string(bytes) +
                             " bytes for " + shape->ToString() + ", which holds one number");
  }
}

}  // namespace torch_xla::lazy
