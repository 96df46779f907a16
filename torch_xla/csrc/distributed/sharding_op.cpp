#include "distributed/sharding_op.h"

#include "lowering/context.h"
#include "stablehlo/text.h"

namespace torch_xla::distributed {
namespace {

const Sharding* ReadSharding(const ir::Words& words) {
  ir::AttributeReader reader(words);
  const c10::IntArrayRef tiles = reader.IntList();
  if (tiles.empty()) return Sharding::Replicated();
  return Sharding::Tiled(tiles.vec(), reader.IntList().vec());
}

void LowerSharding(lowering::LoweringContext& cx, const ir::Node& node) {
  stablehlo::Value x = cx.Lowered(node.operands()[0]);
  const Sharding* sharding = ReadSharding(node.attributes());
  stablehlo::CustomCallOptions options;
  options.api_version = 1;
  options.attributes = "mhlo.sharding = " + stablehlo::Quoted(sharding->text());
  cx.SetOutputs(node, stablehlo::CustomCall(cx.builder(), "Sharding", {x}, {x.type()}, options));
}

constexpr ir::ArgSpec kArgs[] = {{"self", ir::ArgKind::kTensor},
                                 {"tiles", ir::ArgKind::kIntList},
                                 {"devices", ir::ArgKind::kIntList}};

}  // namespace

const ir::OpSpec sharding_op = {"xla::mark_sharding", "", kArgs, LowerSharding,
                                &debug::GetCounter("xla::mark_sharding")};

void WriteSharding(const Sharding& sharding, ir::Words& words) {
  ir::AttributeWriter writer(words);
  writer.IntList(sharding.tiles());
  writer.IntList(sharding.devices());
}

}  // namespace torch_xla::distributed
