#include "tensor/sharded_value.h"

#include "XLAOps.h"
#include "ir/attributes.h"
#include "tensor/device_data.h"
#include "tensor/node_factory.h"

namespace torch_xla::tensor {

ir::Value WithSharding(ir::Value value, const distributed::Sharding& sharding) {
  if (const DeviceData* data = LeafData(value)) {
    if (data->sharding() == &sharding) return value;
    if (const DeviceDataPtr moved = data->Resharded(&sharding)) return MakeLeaf(moved);
  }
  ir::Words words;
  ir::AttributeWriter writer(words);
  writer.IntList(sharding.tiles());
  writer.IntList(sharding.devices());
  ir::ops::mark_sharding.counter->Add();
  const ir::ShapeRef shape = value.shape();
  return MakeNode(&ir::ops::mark_sharding, {std::move(value)}, std::move(words), shape);
}

}  // namespace torch_xla::tensor
