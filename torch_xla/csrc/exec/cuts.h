// Where a graph may be cut: nowhere while this thread traces something that has to stay whole.
#pragma once

#include <optional>
#include <string>

namespace torch_xla::lazy {

/// From now on a cut on this thread (a sync, a read of what is pending) throws, and says `why`;
/// nothing: cuts are allowed. Returns what was said before.
std::optional<std::string> ForbidCuts(std::optional<std::string> why);
bool MayCut();
/// Throws where cuts are forbidden.
void CheckMayCut();

}  // namespace torch_xla::lazy
