// The StableHLO of a graph.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "exec/graph.h"
#include "lowering/context.h"

namespace torch_xla::lazy {

/// The StableHLO of the graph. `aliases[i]` is the output that parameter i is donated to,
/// or -1; may be shorter than the parameters. On several devices the parameters have the shardings
/// of their data, the outputs those given; where that is null or missing, XLA chooses. `name`
/// is the module's. Needs no lock, since it reads no marks.
std::string LowerGraph(const Graph& graph, std::span<const int> aliases,
                       const std::string& platform, size_t num_devices = 1,
                       std::span<const distributed::Sharding* const> outputs = {},
                       std::string_view name = {});

/// A number as a constant of that type, and data that is nothing but a fill.
stablehlo::Value LowerScalar(lowering::LoweringContext& cx, const c10::Scalar& number,
                             const stablehlo::Type& type);
stablehlo::Value LowerFill(lowering::LoweringContext& cx, const DeviceData& data);

}  // namespace torch_xla::lazy
