// What the user says of how programs are compiled: the compiler's options and their name.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ir/hash.h"

namespace torch_xla::lazy {

struct CompileSettings {
  /// By the compiler's own names ("xla_cpu_enable_fast_math" -> "true"), over all others.
  std::vector<std::pair<std::string, std::string>> options;
  /// Of the module, in profiles and dumps; counters CompiledGraph::<name> and
  /// ExecutedGraph::<name>.
  std::string name;

  /// Stands for all of it in the keys of programs.
  ir::Hash128 Hash() const;
};

using CompileSettingsPtr = std::shared_ptr<const CompileSettings>;

/// Whether a program must give the same bits each time, as torch.use_deterministic_algorithms says:
/// asked of GPUs, which else may add numbers up as they come.
bool MustRepeat();

/// For all programs from now on.
void SetCompileOptions(std::vector<std::pair<std::string, std::string>> options);
/// For those of this thread, in place of the above; null: no longer. Returns what was before.
CompileSettingsPtr SetThreadSettings(CompileSettingsPtr settings);
/// What holds on this thread; never null.
CompileSettingsPtr CurrentSettings();

}  // namespace torch_xla::lazy
