// Which nodes of a graph one call computes (cpu/foreach.h): `_foreach_` operations on lists alike,
// as those of an optimizer are.
#pragma once

#include <span>
#include <unordered_set>
#include <vector>

#include "lowering/context.h"
#include "tensor/graph.h"

namespace torch_xla::exec {

struct ForeachChain {
  std::vector<const ir::Node*> nodes;
  std::vector<bool> is_read;  // per node: whether nodes outside of the chain read it
  std::unordered_set<const ir::Node*> tables;  // embedding gradients that only this chain reads
};

/// One step of lowering: a node that is no parameter, or a chain.
struct LoweringStep {
  uint32_t position = 0;  // index in Graph::order
  int32_t chain = -1;     // index in LoweringPlan::chains; -1: the node itself
};

struct LoweringPlan {
  std::vector<LoweringStep> steps;
  std::vector<ForeachChain> chains;
};

/// Plans the order of lowering; leaves keep their order. There are chains only if the program may
/// call this library and the table of kernels (lowering/kernel_table.inc) chooses the call.
LoweringPlan PlanLowering(const tensor::Graph& graph, const lowering::LoweringContext& cx);

/// Lowers a chain. `aliases` and `parameters` belong to the data of the program, as in LowerGraph.
void LowerChain(lowering::LoweringContext& cx, const tensor::Graph& graph,
                const ForeachChain& chain, std::span<const int> aliases,
                std::span<const stablehlo::Value> parameters);

}  // namespace torch_xla::exec
