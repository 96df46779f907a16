// The environment variables that control how programs are made and kept, checked before XLA starts.
#pragma once

#include <cstddef>

namespace torch_xla::exec {

/// Throws runtime::Error for a variable with an invalid value. Warns if the folder for programs
/// cannot be written to.
void CheckSettings();

/// XLA_COMPILATION_CACHE_SIZE: the maximal number of programs in memory.
size_t ProgramCacheCapacity();

}  // namespace torch_xla::exec
