#include "aten/sharding.h"

#include <algorithm>

#include "aten/bridge.h"
#include "ir/attributes.h"
#include "lazy/device.h"
#include "lazy/node_factory.h"
#include "lazy/sharded_value.h"
#include "lazy/transfer.h"
#include "lowering/internal_ops.h"

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

std::vector<int64_t> Pick(c10::IntArrayRef sizes, const std::vector<int64_t>& dims) {
  std::vector<int64_t> picked;
  for (int64_t dim : dims) {
    TORCH_CHECK_INDEX(dim >= 0 && dim < static_cast<int64_t>(sizes.size()),
                      "dot_general: there is no dimension ", dim, " in ", sizes);
    picked.push_back(sizes[dim]);
  }
  return picked;
}

std::vector<int64_t> Others(c10::IntArrayRef sizes, const std::vector<int64_t>& dims) {
  std::vector<int64_t> others;
  for (int64_t i = 0; i < static_cast<int64_t>(sizes.size()); ++i) {
    if (std::find(dims.begin(), dims.end(), i) == dims.end()) others.push_back(sizes[i]);
  }
  return others;
}

}  // namespace

void MarkSharding(const at::Tensor& tensor, const Sharding* sharding) {
  XLATensorImpl* impl = GetImpl(tensor, "mark_sharding");
  Check(*sharding, tensor.dim(), "mark_sharding");
  if (!impl->is_whole()) {
    impl->Write(lazy::WithSharding(impl->Read(), *sharding));
    return;
  }
  lazy::Storage& root = *impl->root();
  root.SetSharding(sharding);
  const ir::Value value = root.value();
  ir::Value lying = lazy::WithSharding(value, *sharding);
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
  const lazy::DeviceData* data = lazy::LeafData(value);
  return data ? data->sharding() : nullptr;
}

at::Tensor WithSharding(const at::Tensor& tensor, const Sharding* sharding) {
  const XLATensorImpl* impl = GetImpl(tensor, "mark_sharding");
  Check(*sharding, tensor.dim(), "mark_sharding");
  at::Tensor result =
      MakeTensor(lazy::WithSharding(impl->Read(), *sharding), impl->root()->device());
  GetImpl(result)->root()->SetSharding(sharding);
  return result;
}

at::Tensor DotGeneral(const at::Tensor& a, const at::Tensor& b, const std::vector<int64_t>& a_dims,
                      const std::vector<int64_t>& b_dims) {
  const XLATensorImpl* lhs = GetImpl(a, "dot_general");
  const XLATensorImpl* rhs = GetImpl(b, "dot_general");
  TORCH_CHECK(a.scalar_type() == b.scalar_type(), "dot_general: expected one dtype, got ",
              a.scalar_type(), " and ", b.scalar_type());
  const std::vector<int64_t> a_sizes = Pick(a.sizes(), a_dims), b_sizes = Pick(b.sizes(), b_dims);
  TORCH_CHECK(a_sizes == b_sizes, "dot_general: expected equal sizes of dimensions ",
              c10::IntArrayRef(a_dims), " of ", a.sizes(), " and ", c10::IntArrayRef(b_dims),
              " of ", b.sizes());
  std::vector<int64_t> dims = Others(a.sizes(), a_dims);
  const std::vector<int64_t> last = Others(b.sizes(), b_dims);
  dims.insert(dims.end(), last.begin(), last.end());
  ir::Words words;
  ir::AttributeWriter writer(words);
  writer.IntList(a_dims);
  writer.IntList(b_dims);
  ir::ops::dot_general.counter->Add();
  return MakeTensor(lazy::MakeNode(&ir::ops::dot_general, {lhs->Read(), rhs->Read()},
                                   std::move(words), ir::GetShape(a.scalar_type(), dims)),
                    lhs->root()->device());
}

at::Tensor SendSharded(const at::Tensor& cpu, const Sharding* sharding) {
  Check(*sharding, cpu.dim(), "send_cpu_data_to_device");
  const int device = lazy::DeviceOrdinal(lazy::TorchDevice(0));
  ir::Value leaf = lazy::WithSharding(lazy::MakeLeaf(lazy::ToDevice(cpu, device)), *sharding);
  lazy::LeafData(leaf)->Get();
  at::Tensor tensor = MakeTensor(std::move(leaf), device);
  GetImpl(tensor)->root()->SetSharding(sharding);
  return tensor;
}

std::vector<at::Tensor> TilesOf(const at::Tensor& tensor) {
  const ir::Value leaf = Evaluate(tensor);
  return lazy::TilesToHost(*lazy::LeafData(leaf));
}

}  // namespace torch_xla::aten
