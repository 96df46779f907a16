// Splits a cut whose bulk occurs in other graphs, too, into a program of the bulk and bookkeeping
// that the host computes before and after it (tensor/host_edges.h).
#pragma once

#include <memory>
#include <optional>

#include "exec/cut.h"
#include "tensor/host_edges.h"

namespace torch_xla::exec {

struct Bulk {
  Cut cut;
  std::unique_ptr<tensor::HostEdges> host;
};

/// Returns nothing if there is nothing to split off, if the remaining program would be too small,
/// or if fewer than two other graphs had the same bulk.
std::optional<Bulk> SplitCut(const Cut& cut);

}  // namespace torch_xla::exec
