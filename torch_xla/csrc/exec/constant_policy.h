// Decides which numbers of a graph are constants of its program and which are parameters.
#pragma once

#include "tensor/graph.h"

namespace torch_xla::exec {

/// Packs the numbers of the graph that are parameters, and adds to the key whatever distinguishes
/// programs of this graph. The decision is learnt from earlier graphs that differ only in numbers:
/// a number is a constant at first, since XLA optimizes x ** 2 and x[3] better than x ** y and
/// x[i]. The offset of a view becomes a parameter at its second value, any other number at its
/// third, and both stay parameters. So a loop over i compiles two or three programs.
void PackNumbers(tensor::Graph& graph, ir::Hasher& key);

}  // namespace torch_xla::exec
