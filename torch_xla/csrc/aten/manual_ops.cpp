// The operations of manual regions, for Python (torch_xla.distributed.spmd.manual).
#include "distributed/manual_ops.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "aten/bridge.h"
#include "tensor/device.h"

namespace torch_xla::aten {
namespace {

using distributed::Sharding;

const Sharding& Checked(c10::IntArrayRef tiles, c10::IntArrayRef devices, const at::Tensor& self) {
  if (tiles.empty()) return *Sharding::Replicated();
  TORCH_CHECK_VALUE(tiles.size() == static_cast<size_t>(self.dim()), "shard_map: expected ",
                    self.dim(), " tiles, one for each dimension, got ", tiles.size());
  return *Sharding::Tiled(tiles.vec(), devices.vec());
}

at::Tensor ToLocal(const at::Tensor& self, c10::IntArrayRef tiles, c10::IntArrayRef devices) {
  return MakeTensor(distributed::ToLocal(GetIrValue(self), Checked(tiles, devices, self)),
                    tensor::DeviceOrdinal(self.device()));
}

at::Tensor ToWhole(const at::Tensor& self, c10::IntArrayRef tiles, c10::IntArrayRef devices) {
  return MakeTensor(distributed::ToWhole(GetIrValue(self), Checked(tiles, devices, self)),
                    tensor::DeviceOrdinal(self.device()));
}

at::Tensor Collective(const at::Tensor& self, c10::string_view kind, c10::IntArrayRef arguments,
                      c10::IntArrayRef groups) {
  return MakeTensor(distributed::ManualCollective(GetIrValue(self), kind, arguments, groups),
                    tensor::DeviceOrdinal(self.device()));
}

at::Tensor ToLocalMeta(const at::Tensor& self, c10::IntArrayRef tiles, c10::IntArrayRef devices) {
  return at::empty(Checked(tiles, devices, self).TileDims(self.sizes()), self.options());
}

at::Tensor ToWholeMeta(const at::Tensor& self, c10::IntArrayRef tiles, c10::IntArrayRef) {
  std::vector<int64_t> dims = self.sizes().vec();
  for (size_t i = 0; i < tiles.size(); ++i) dims[i] *= tiles[i];
  return at::empty(dims, self.options());
}

at::Tensor CollectiveMeta(const at::Tensor& self, c10::string_view kind, c10::IntArrayRef arguments,
                          c10::IntArrayRef) {
  return at::empty(distributed::CollectiveDims(kind, arguments, self.sizes()), self.options());
}

TORCH_LIBRARY_FRAGMENT(torch_xla, m) {
  m.def("to_local(Tensor self, int[] tiles, int[] devices) -> Tensor");
  m.def("to_whole(Tensor self, int[] tiles, int[] devices) -> Tensor");
  m.def("manual_collective(Tensor self, str kind, int[] arguments, int[] groups) -> Tensor");
}
TORCH_LIBRARY_IMPL(torch_xla, XLA, m) {
  m.impl("to_local", TORCH_FN(ToLocal));
  m.impl("to_whole", TORCH_FN(ToWhole));
  m.impl("manual_collective", TORCH_FN(Collective));
}
TORCH_LIBRARY_IMPL(torch_xla, Meta, m) {
  m.impl("to_local", TORCH_FN(ToLocalMeta));
  m.impl("to_whole", TORCH_FN(ToWholeMeta));
  m.impl("manual_collective", TORCH_FN(CollectiveMeta));
}

}  // namespace
}  // namespace torch_xla::aten
