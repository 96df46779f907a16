// XLA_SAVE_TENSORS_FILE: writes the graphs that are cut to a file.
#pragma once

#include "tensor/graph.h"
#include "tensor/origin.h"

namespace torch_xla::explain {

/// If a file is set, appends `graph`, in the format XLA_SAVE_TENSORS_FMT, and the origin of the
/// cut.
void SaveGraph(const tensor::Graph& graph, const tensor::Origin& origin);

}  // namespace torch_xla::explain
