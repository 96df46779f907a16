// Chooses the parameters whose buffers a program may overwrite, and the shardings of its results.
#pragma once

#include <vector>

#include "exec/cut.h"

namespace torch_xla::exec {

/// Pairs each parameter whose buffer cannot be read after the step with an output that may take its
/// place: the new value of the tensor that held the data, or else a root that is computed directly
/// from it (p = p - g). Returns for each data parameter the index of its output, or -1. Other
/// outputs of the same type are no candidates: if the parameter and the output are alive at the
/// same time, XLA copies the parameter first, which costs more than a fresh buffer.
std::vector<int> ChooseAliases(const Cut& cut);

/// The sharding that each root shall have: the sharding of its tensor, or the sharding of the
/// parameter that is donated to it; null if neither says. A parameter with another sharding than
/// its root is removed from `aliases`.
std::vector<const distributed::Sharding*> ChooseShardings(const Cut& cut,
                                                          std::vector<int>& aliases);

}  // namespace torch_xla::exec
