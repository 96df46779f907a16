// How a value shall lie on the devices, in the program.
#include "distributed/sharding.h"

#include "XLALowerings.h"
#include "stablehlo/text.h"

namespace torch_xla::lowering::aten {

Value mark_sharding(LoweringContext& cx, Value self, c10::IntArrayRef tiles,
                    c10::IntArrayRef devices) {
  using distributed::Sharding;
  const Sharding* sharding =
      tiles.empty() ? Sharding::Replicated() : Sharding::Tiled(tiles.vec(), devices.vec());
  stablehlo::CustomCallOptions options;
  options.api_version = 1;
  options.attributes = "mhlo.sharding = " + stablehlo::Quoted(sharding->text());
  return stablehlo::CustomCall(cx.builder(), "Sharding", {self}, {self.type()}, options)[0];
}

}  // namespace torch_xla::lowering::aten
