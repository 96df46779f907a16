#include "distributed/sharding_lowering.h"

#include "XLALowerings.h"
#include "distributed/sharding_writer.h"

namespace torch_xla::lowering {

using distributed::Sharding, distributed::ShardingWriter;

Value Whole(Value x, const Dims& open) {
  if (x.builder().partitions() == 1) return x;
  return ShardingWriter::Current().Constrain(x, *Sharding::Replicated(), open);
}

namespace aten {

Value mark_sharding([[maybe_unused]] LoweringContext& cx, Value self, c10::IntArrayRef tiles,
                    c10::IntArrayRef devices) {
  return ShardingWriter::Current().Constrain(
      self, tiles.empty() ? *Sharding::Replicated() : *Sharding::Tiled(tiles.vec(), devices.vec()));
}

}  // namespace aten
}  // namespace torch_xla::lowering
