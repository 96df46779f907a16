#include "distributed/sharding_lowering.h"

#include "XLALowerings.h"
#include "distributed/sharding_writer.h"

namespace torch_xla::lowering {

Value Sharded(Value x, const distributed::Sharding& sharding) {
  return distributed::ShardingWriter::Current().Constrain(x, sharding);
}

Value Whole(Value x, const Dims& open) {
  if (x.builder().partitions() == 1) return x;
  const auto& writer = distributed::ShardingWriter::Current();
  return writer.Constrain(x, *distributed::Sharding::Replicated(), open);
}

namespace aten {

Value mark_sharding([[maybe_unused]] LoweringContext& cx, Value self, c10::IntArrayRef tiles,
                    c10::IntArrayRef devices) {
  using distributed::Sharding;
  return Sharded(
      self, tiles.empty() ? *Sharding::Replicated() : *Sharding::Tiled(tiles.vec(), devices.vec()));
}

}  // namespace aten
}  // namespace torch_xla::lowering
