// XLA_SAVE_TENSORS_FILE: the graphs that are cut, in a file.
#pragma once

#include "exec/graph.h"
#include "tensor/origin.h"

namespace torch_xla::lazy {

/// Appends `graph`, in the form of XLA_SAVE_TENSORS_FMT, and what had it cut, where a file is
/// asked for.
void SaveGraph(const Graph& graph, const Origin& origin);

}  // namespace torch_xla::lazy
