#include "lazy/sharded_value.h"

#include "distributed/sharding_op.h"
#include "lazy/device_data.h"
#include "lazy/node_factory.h"

namespace torch_xla::lazy {

ir::Value WithSharding(ir::Value value, const distributed::Sharding& sharding) {
  if (const DeviceData* data = LeafData(value)) {
    if (data->sharding() == &sharding) return value;
    if (const DeviceDataPtr moved = data->Resharded(&sharding)) return MakeLeaf(moved);
  }
  ir::Words words;
  distributed::WriteSharding(sharding, words);
  distributed::sharding_op.counter->Add();
  const ir::ShapeRef shape = value.shape();
  return MakeNode(&distributed::sharding_op, {std::move(value)}, std::move(words), shape);
}

}  // namespace torch_xla::lazy
