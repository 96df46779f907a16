// Finds the operation that made a NaN first (torch_xla.debug.find_nan): programs look at each
// result and report the first operation, in the order of the graph, whose result has a NaN.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "ir/node.h"
#include "lowering/context.h"

namespace torch_xla::exec {

/// Whether programs that are made from now on search. Part of the keys of programs.
bool FindsNan();
void SetFindsNan(bool on);

/// Adds the search over the results of `nodes`, operands before users, where the program that `cx`
/// lowers can call the host. All nodes must be lowered.
void AddNanSearch(lowering::LoweringContext& cx, std::span<const ir::Node* const> nodes);

/// An operation with a NaN in its result and none in its operands.
struct FoundNan {
  const char* op;
  bool is_input;  // the operation is none: an input of the program has the NaN
  const ir::SourceLocation* location;
};
/// What a report of a program means (cpu::HostCall); nothing for another call of the host.
std::optional<FoundNan> NanOf(int64_t search, int64_t position);

}  // namespace torch_xla::exec
