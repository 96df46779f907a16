#include "aten/sharding.h"

#include "aten/bridge.h"
#include "exec/transfer.h"
#include "tensor/device.h"
#include "tensor/sharded_value.h"

namespace torch_xla::aten {

using distributed::Sharding;

namespace {

void Check(const Sharding& sharding, int64_t rank, const char* what) {
  TORCH_CHECK(tensor::SpmdDevices() > 0, what,
              ": expected SPMD mode; call torch_xla.runtime.use_spmd() first");
  if (sharding.replicated()) return;
  TORCH_CHECK_VALUE(static_cast<int64_t>(sharding.tiles().size()) == rank, what,
                    ": expected a sharding of ", rank, " dimensions, like the tensor, got ",
                    sharding.text());
  TORCH_CHECK_VALUE(sharding.devices().size() == static_cast<size_t>(tensor::SpmdDevices()), what,
                    ": expected a sharding over all ", tensor::SpmdDevices(), " devices, got ",
                    sharding.text());
}

}  // namespace

void MarkSharding(const at::Tensor& tensor, const Sharding* sharding) {
  XLATensorImpl* impl = GetImpl(tensor, "mark_sharding");
  Check(*sharding, tensor.dim(), "mark_sharding");
  if (!impl->is_whole()) {
    if (impl->view() && tensor::OverlapsItself(*impl->view()))
      return;  // the value has no place of its own
    impl->Write(tensor::WithSharding(impl->Read(), *sharding));
    return;
  }
  tensor::Storage& root = *impl->root();
  root.SetSharding(sharding);
  const ir::Value value = root.value();
  ir::Value lying = tensor::WithSharding(value, *sharding);
  if (lying != value) root.Assign(std::move(lying));
}

void ClearSharding(const at::Tensor& tensor) {
  XLATensorImpl* impl = GetImpl(tensor, "clear_sharding");
  if (impl->is_whole()) impl->root()->SetSharding(nullptr);
}

const Sharding* MarkedSharding(const at::Tensor& tensor) {
  const XLATensorImpl* impl = GetImpl(tensor);
  return impl->is_whole() ? impl->root()->sharding() : nullptr;
}

const Sharding* ShardingOf(const at::Tensor& tensor) {
  if (const Sharding* marked = MarkedSharding(tensor)) return marked;
  const XLATensorImpl* impl = GetImpl(tensor);
  if (!impl->is_whole()) return nullptr;
  const ir::Value value = impl->root()->value();
  const tensor::DeviceData* data = tensor::LeafData(value);
  return data ? data->sharding() : nullptr;
}

at::Tensor WithSharding(const at::Tensor& tensor, const Sharding* sharding) {
  const XLATensorImpl* impl = GetImpl(tensor, "mark_sharding");
  Check(*sharding, tensor.dim(), "mark_sharding");
  at::Tensor result =
      MakeTensor(tensor::WithSharding(impl->Read(), *sharding), impl->root()->device());
  GetImpl(result)->root()->SetSharding(sharding);
  return result;
}

at::Tensor SendSharded(const at::Tensor& cpu, const Sharding* sharding) {
  Check(*sharding, cpu.dim(), "send_cpu_data_to_device");
  const int device = tensor::DeviceOrdinal(tensor::TorchDevice(0));
  ir::Value leaf = tensor::WithSharding(tensor::MakeLeaf(exec::ToDevice(cpu, device)), *sharding);
  tensor::LeafData(leaf)->Get();
  at::Tensor tensor = MakeTensor(std::move(leaf), device);
  GetImpl(tensor)->root()->SetSharding(sharding);
  return tensor;
}

std::vector<at::Tensor> TilesOf(const at::Tensor& tensor) {
  const ir::Value leaf = Evaluate(tensor);
  return exec::TilesToHost(*tensor::LeafData(leaf));
}

}  // namespace torch_xla::aten
