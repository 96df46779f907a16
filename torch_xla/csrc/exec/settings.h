// The environment variables that say how programs are made and kept, looked at before XLA starts.
#pragma once

#include <cstddef>

namespace torch_xla::lazy {

/// Throws runtime::Error for a variable whose value means nothing; warns of a folder for programs
/// that cannot be written.
void CheckSettings();

/// XLA_COMPILATION_CACHE_SIZE: how many programs are kept in memory.
size_t ProgramCacheCapacity();

}  // namespace torch_xla::lazy
