// Which nodes of a graph one call computes (cpu/foreach.h): `_foreach_` operations on lists alike,
// as those of an optimizer are.
#pragma once

#include <span>
#include <unordered_set>
#include <vector>

#include "exec/graph.h"
#include "lowering/context.h"

namespace torch_xla::lazy {

struct ForeachChain {
  std::vector<const ir::Node*> nodes;
  std::vector<bool> is_read;  // of each node, whether others than those of the chain read it
  std::unordered_set<const ir::Node*> tables;  // gradients of embeddings that no other node reads
};

/// What to lower, in this order: a node that is no parameter, or a chain.
struct LoweringStep {
  uint32_t position = 0;  // in Graph::order
  int32_t chain = -1;     // in LoweringPlan::chains; -1: the node
};

struct LoweringPlan {
  std::vector<LoweringStep> steps;
  std::vector<ForeachChain> chains;
};

/// Leaves keep their order. There are chains where the program may call this library and the table
/// of kernels (lowering/kernel_table.inc) wants them.
LoweringPlan PlanLowering(const Graph& graph, const lowering::LoweringContext& cx);

/// `aliases` and `parameters` are those of the program's data (LowerGraph).
void LowerChain(lowering::LoweringContext& cx, const Graph& graph, const ForeachChain& chain,
                std::span<const int> aliases, std::span<const stablehlo::Value> parameters);

}  // namespace torch_xla::lazy
