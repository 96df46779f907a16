// What takes the place of what: parameters whose buffers a program may overwrite, and how its
// results lie on several devices.
#pragma once

#include <vector>

#include "exec/cut.h"

namespace torch_xla::lazy {

/// Pairs parameters whose buffers nothing can read after the step with the outputs that take
/// their place: the new value of the tensor that held the data, else a root computed straight
/// from it (p = p - g). No other output of its type will do: where the two are alive at once,
/// XLA copies the parameter first, which costs more than a fresh buffer.
std::vector<int> ChooseAliases(const Cut& cut);

/// What is said of how the roots shall lie on several devices: by their tensors, or by
/// the parameters that they take the place of. Those cannot be donated to another sharding.
std::vector<const distributed::Sharding*> ChooseShardings(const Cut& cut,
                                                          std::vector<int>& aliases);

}  // namespace torch_xla::lazy
