#include "exec/transfer.h"

#include <ATen/ops/empty.h>

#include <limits>
#include <utility>

#include "debug/timeline.h"
#include "distributed/sharding_writer.h"
#include "exec/worker.h"
#include "lowering/context.h"
#include "tensor/auto_step.h"
#include "tensor/device.h"
#include "tensor/errors.h"
#include "tensor/events.h"

namespace torch_xla::exec {
namespace {

template <typename T>
tensor::Extremes ExtremesOf(const T* numbers, int64_t count) {
  T least = numbers[0], most = numbers[0];
  T second_least = std::numeric_limits<T>::max(), second_most = std::numeric_limits<T>::min();
  auto sum = static_cast<uint64_t>(least);
  bool has_zero = least == 0;
  for (int64_t i = 1; i < count; ++i) {
    const T x = numbers[i];
    sum += static_cast<uint64_t>(x);
    has_zero |= x == 0;
    // A single branch that is soon hardly ever taken keeps this loop fast.
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

/// Remembers the extremes of integers, which indexing needs to check its bounds.
void NoteExtremes(const at::Tensor& cpu, tensor::DeviceData& data) {
  const c10::ScalarType dtype = cpu.scalar_type();
  if ((dtype != c10::ScalarType::Long && dtype != c10::ScalarType::Int) || cpu.numel() == 0) return;
  const at::Tensor dense = cpu.contiguous();
  data.set_extremes(dtype == c10::ScalarType::Long
                        ? ExtremesOf(dense.const_data_ptr<int64_t>(), dense.numel())
                        : ExtremesOf(dense.const_data_ptr<int32_t>(), dense.numel()));
}

}  // namespace

tensor::DeviceDataPtr ToDevice(const at::Tensor& cpu, int device) {
  tensor::StepFinderOf(device).Uploaded(cpu.nbytes());
  const ir::ShapeRef shape = ir::GetShape(cpu.scalar_type(), cpu.sizes());
  tensor::DeviceDataPtr data;
  if (tensor::DevicesOf(device)->size() > 1) {
    data = c10::make_intrusive<tensor::DeviceData>(shape, device,
                                                   cpu.resolve_conj().resolve_neg().clone(),
                                                   distributed::Sharding::Replicated());
  } else {
    debug::HostTimer host_timer(debug::HostPart::kTransfer);
    data = c10::make_intrusive<tensor::DeviceData>(shape, device, tensor::Upload(cpu, device));
  }
  NoteExtremes(cpu, *data);
  return data;
}

tensor::DeviceDataPtr ViewOf(void* data, ir::ShapeRef shape, int device,
                             const std::shared_ptr<const void>& owner, intptr_t stream) {
  // The alignment that XLA's compiled programs assume of their arguments.
  const uintptr_t alignment = tensor::GetClient().host_memory() ? 64 : 128;
  if (tensor::DevicesOf(device)->size() > 1 ||
      tensor::PhysicalDtype(shape->dtype) != shape->dtype || data == nullptr ||
      reinterpret_cast<uintptr_t>(data) % alignment != 0) {
    return nullptr;
  }
  std::unique_ptr<runtime::Buffer> buffer;
  try {
    buffer =
        tensor::GetClient().ViewOf(data, lowering::PhysicalType(shape->dtype, tensor::Platform()),
                                   {shape->dims.data(), shape->dims.size()}, device, owner, stream);
  } catch (const runtime::Error& error) {
    if (error.refused()) return nullptr;
    std::rethrow_exception(tensor::AsTorchError(error));
  }
  return c10::make_intrusive<tensor::DeviceData>(shape, device, std::move(buffer));
}

void ToHost(tensor::DeviceData& data, const at::Tensor& cpu) {
  if (data.producer() != 0) GetWorker(data.device()).NoteWait();
  const tensor::Buffers& buffers = data.Wait();
  const c10::ScalarType logical = data.shape()->dtype;
  if (!data.sharding()->replicated()) {
    const std::vector<at::Tensor> tiles = TilesToHost(data);
    for (size_t device = 0; device < tiles.size(); ++device) {
      const auto tile = data.sharding()->TileOf(static_cast<int64_t>(device), data.shape()->dims);
      if (tile.copy == 0) tensor::BoxOf(cpu, tile).copy_(tiles[device]);
    }
    return;
  }
  const bool direct = cpu.scalar_type() == tensor::PhysicalDtype(logical) && cpu.is_contiguous();
  at::Tensor dense = direct ? cpu : tensor::EmptyOnHost(logical, data.shape()->dims);
  tensor::Events().Read();
  tensor::Download(buffers, {dense});
  // Converts to the logical dtype first, so that the user sees values of that dtype.
  if (!direct) cpu.copy_(dense.to(logical));
}

at::Tensor ToHost(tensor::DeviceData& data) {
  at::Tensor cpu = at::empty(data.shape()->dims, at::TensorOptions().dtype(data.shape()->dtype));
  ToHost(data, cpu);
  return cpu;
}

std::vector<at::Tensor> TilesToHost(tensor::DeviceData& data) {
  data.Wait();
  const tensor::Buffers& buffers = data.On(tensor::DevicesOf(data.device()));
  const c10::ScalarType logical = data.shape()->dtype;
  const std::vector<int64_t> dims = data.sharding()->TileDims(data.shape()->dims);
  std::vector<at::Tensor> tiles;
  for (size_t i = 0; i < buffers.size(); ++i) tiles.push_back(tensor::EmptyOnHost(logical, dims));
  tensor::Events().Read();
  tensor::Download(buffers, tiles);
  const bool local = distributed::IsLocal(*data.sharding());  // Parts are never filled up.
  for (size_t device = 0; device < tiles.size(); ++device) {
    tiles[device] = tiles[device].to(logical);
    if (local) continue;
    tiles[device] = tensor::Unfilled(
        tiles[device], data.sharding()->TileOf(static_cast<int64_t>(device), data.shape()->dims));
  }
  return tiles;
}

}  // namespace torch_xla::exec
