// Reports that the user asked for by PT_XLA_DEBUG, printed while the program runs.
#pragma once

#include <string_view>

namespace torch_xla::debug {

/// PT_XLA_DEBUG_LEVEL; if it is not set, 2 for PT_XLA_DEBUG=1 and else 0. Level 1 reports
/// compilations and operations that run on the CPU, level 2 also executions.
int DebugLevel();

/// Appends the text in one piece to PT_XLA_DEBUG_FILE, or to the standard error if that is not set.
void Report(std::string_view text);

}  // namespace torch_xla::debug
