#include "aten/sharding.h"

#include "aten/bridge.h"
#include "distributed/sharding_op.h"
#include "lazy/device.h"
#include "lazy/transfer.h"

namespace torch_xla::aten {

using distributed::Sharding;

namespace {

void Check(const Sharding& sharding, int64_t rank, const char* what) {
  TORCH_CHECK(lazy::SpmdDevices() > 0, what,
              ": expected SPMD mode; call torch_xla.runtime.use_spmd() first");
  if (sharding.replicated()) return;
  TORCH_CHECK_VALUE(static_cast<int64_t>(sharding.tiles().size()) == rank, what,
                    ": expected a sharding of ", rank, " dimensions, the tensor's, got ",
                    sharding.text());
  TORCH_CHECK_VALUE(sharding.devices().size() == static_cast<size_t>(lazy::SpmdDevices()), what,
                    ": expected a sharding over all ", lazy::SpmdDevices(), " devices, got ",
                    sharding.text());
}

ir::Value ShardedValue(ir::Value value, const Sharding& sharding) {
  ir::Words words;
  distributed::WriteSharding(sharding, words);
  distributed::sharding_op.counter->Add();
  const ir::ShapeRef shape = value.shape();
  return lazy::MakeNode(&distributed::sharding_op, {std::move(value)}, std::move(words), shape);
}

bool IsWhole(const XLATensorImpl& impl) {
  return !impl.view() && !impl.is_conj() && !impl.is_neg();
}

}  // namespace

void MarkSharding(const at::Tensor& tensor, const Sharding* sharding) {
  XLATensorImpl* impl = GetImpl(tensor, "mark_sharding");
  Check(*sharding, tensor.dim(), "mark_sharding");
  if (!IsWhole(*impl)) {
    impl->Write(ShardedValue(impl->Read(), *sharding));
    return;
  }
  lazy::Storage& root = *impl->root();
  const ir::Value value = root.value();
  lazy::DeviceData* data = lazy::LeafData(value);
  if (!data || data->sharding() != sharding) {
    const lazy::DeviceDataPtr moved = data ? data->Resharded(sharding) : nullptr;
    root.Assign(moved ? lazy::MakeLeaf(moved) : ShardedValue(value, *sharding));
  }
  root.SetSharding(sharding);
}

void ClearSharding(const at::Tensor& tensor) {
  XLATensorImpl* impl = GetImpl(tensor, "clear_sharding");
  if (IsWhole(*impl)) impl->root()->SetSharding(nullptr);
}

const Sharding* MarkedSharding(const at::Tensor& tensor) {
  const XLATensorImpl* impl = GetImpl(tensor);
  return IsWhole(*impl) ? impl->root()->sharding() : nullptr;
}

const Sharding* ShardingOf(const at::Tensor& tensor) {
  if (const Sharding* marked = MarkedSharding(tensor)) return marked;
  const XLATensorImpl* impl = GetImpl(tensor);
  if (!IsWhole(*impl)) return nullptr;
  const ir::Value value = impl->root()->value();
  const lazy::DeviceData* data = lazy::LeafData(value);
  return data ? data->sharding() : nullptr;
}

at::Tensor WithSharding(const at::Tensor& tensor, const Sharding* sharding) {
  const XLATensorImpl* impl = GetImpl(tensor, "mark_sharding");
  Check(*sharding, tensor.dim(), "mark_sharding");
  at::Tensor result = MakeTensor(ShardedValue(impl->Read(), *sharding), impl->root()->device());
  GetImpl(result)->root()->SetSharding(sharding);
  return result;
}

at::Tensor SendSharded(const at::Tensor& cpu, const Sharding* sharding) {
  Check(*sharding, cpu.dim(), "send_cpu_data_to_device");
  const int device = lazy::DeviceOrdinal(lazy::TorchDevice(0));
  lazy::DeviceDataPtr data = lazy::ToDevice(cpu, device);
  if (const lazy::DeviceDataPtr moved = data->Resharded(sharding)) data = moved;
  data->Get();
  at::Tensor tensor = MakeTensor(lazy::MakeLeaf(data), device);
  GetImpl(tensor)->root()->SetSharding(sharding);
  return tensor;
}

std::vector<at::Tensor> TilesOf(const at::Tensor& tensor) {
  const ir::Value leaf = Evaluate(tensor);
  return lazy::TilesToHost(*lazy::LeafData(leaf));
}

}  // namespace torch_xla::aten
