// Lowers a graph to StableHLO.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lowering/context.h"
#include "tensor/graph.h"

namespace torch_xla::exec {

/// The StableHLO module of the graph. `aliases[i]` is the output that data parameter i is donated
/// to, or -1; it may be shorter than the parameters. On several devices each parameter has the
/// sharding of its data and each output the sharding in `outputs`; XLA chooses where an entry is
/// null or missing. `name` is the name of the module. If `partition_devices` is given, it gets the
/// devices of the module's partitions (runtime::CompileOptions). Needs no lock, since it reads no
/// marks.
std::string LowerGraph(const tensor::Graph& graph, std::span<const int> aliases,
                       const std::string& platform, size_t num_devices = 1,
                       std::span<const distributed::Sharding* const> outputs = {},
                       std::string_view name = {}, std::vector<int>* partition_devices = nullptr);

/// The same for people, of the graph as it is now: for the devices that its tensors are on.
std::string LowerGraphToRead(const tensor::Graph& graph);

/// Lower a number to a constant of the type, and data that is only a fill to a constant array.
stablehlo::Value LowerScalar(lowering::LoweringContext& cx, const c10::Scalar& number,
                             const stablehlo::Type& type);
stablehlo::Value LowerFill(lowering::LoweringContext& cx, const tensor::DeviceData& data);

}  // namespace torch_xla::exec
