// What the user asked to be told while the program runs: PT_XLA_DEBUG.
#pragma once

#include <string_view>

namespace torch_xla::debug {

/// PT_XLA_DEBUG_LEVEL, else 2 under PT_XLA_DEBUG=1, else 0. 1: compilations and operations that run
/// on the CPU; 2: executions, too.
int DebugLevel();

/// Appends to PT_XLA_DEBUG_FILE, or to standard error where that is not set, in one piece.
void Report(std::string_view text);

}  // namespace torch_xla::debug
