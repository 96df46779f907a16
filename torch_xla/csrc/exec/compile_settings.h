// The user's settings of compilation: the compiler's options and the name of the program.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ir/hash.h"

namespace torch_xla::exec {

struct CompileSettings {
  /// Options under the compiler's own names ("xla_cpu_enable_fast_math" -> "true"). They override
  /// all other sources of options.
  std::vector<std::pair<std::string, std::string>> options;
  /// The name of the module in profiles and dumps, and of the counters CompiledGraph::<name> and
  /// ExecutedGraph::<name>.
  std::string name;
  /// Whether programs keep their sizes where other programs take them as arguments: for plans,
  /// which tell a program's memory. No part of the keys.
  bool keeps_sizes = false;

  /// A hash of the options and the name, of the precision of products and of MustRepeat(), for the
  /// keys of programs.
  ir::Hash128 Hash() const;
};

using CompileSettingsPtr = std::shared_ptr<const CompileSettings>;

/// Whether a program must give the same bits in each run, as torch.use_deterministic_algorithms
/// asks. GPUs need to be told, since they may add numbers in any order otherwise.
bool MustRepeat();

/// Sets the options of all programs that are made from now on.
void SetCompileOptions(std::vector<std::pair<std::string, std::string>> options);
/// Sets the settings of programs that this thread makes, instead of the process-wide options; null
/// ends this. Returns the previous settings of the thread.
CompileSettingsPtr SetThreadSettings(CompileSettingsPtr settings);
/// The settings that hold on this thread; never null.
CompileSettingsPtr CurrentSettings();

}  // namespace torch_xla::exec
