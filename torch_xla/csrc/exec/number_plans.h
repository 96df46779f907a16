// Which numbers of a graph are constants of its program and which are parameters.
#pragma once

#include "exec/graph.h"

namespace torch_xla::lazy {

/// Packs those numbers of the graph that are parameters and adds to the key what tells programs of
/// the graph apart. By what was seen of graphs that differ in numbers alone: a number is a constant
/// at first, since XLA makes more of x ** 2 and x[3] than of x ** y and x[i]. Where a view begins
/// is a parameter from the second value on, any other number from the third, and they stay so: a
/// loop over i compiles two programs, or three.
void PackNumbers(Graph& graph, ir::Hasher& key);

}  // namespace torch_xla::lazy
