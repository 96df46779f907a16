// Splits a cut whose bulk other graphs have, too: into a program of the bulk, and bookkeeping that
// the host does before and after it (exec/host_edges.h).
#pragma once

#include <memory>
#include <optional>

#include "exec/cut.h"
#include "exec/host_edges.h"

namespace torch_xla::lazy {

struct Bulk {
  Cut cut;
  std::unique_ptr<HostEdges> host;
};

/// Nothing where there is nothing to split off, what would be left is hardly worth it, or no other
/// graphs had the same bulk.
std::optional<Bulk> SplitCut(const Cut& cut);

}  // namespace torch_xla::lazy
