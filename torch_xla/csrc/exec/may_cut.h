// Whether this thread may cut a graph: not while it traces a function that must stay a single
// graph.
#pragma once

#include <optional>
#include <string>

namespace torch_xla::exec {

/// From now on a cut on this thread (a sync, or a read of a pending tensor) throws an error that
/// begins with `why`; without a value cuts are allowed. Returns the previous value.
std::optional<std::string> ForbidCuts(std::optional<std::string> why);
bool MayCut();
/// Throws if cuts are forbidden.
void CheckMayCut();

}  // namespace torch_xla::exec
