#include "distributed/sharding_lowering.h"

#include "XLALowerings.h"
#include "stablehlo/text.h"

namespace torch_xla::lowering {

Value Sharded(Value x, const distributed::Sharding& sharding) {
  stablehlo::CustomCallOptions options;
  options.api_version = 1;
  options.attributes = "mhlo.sharding = " + stablehlo::Quoted(sharding.text());
  return stablehlo::CustomCall(x.builder(), "Sharding", {x}, {x.type()}, options)[0];
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
