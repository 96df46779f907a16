// What of the thread and of the process decides what is traced.
#pragma once

#include <c10/core/DispatchKeySet.h>
#include <c10/core/ScalarType.h>
#include <torch/csrc/utils/pybind.h>

#include <vector>

#include "exec/compile_settings.h"
#include "lowering/precision.h"

namespace torch_xla::replay {

struct Surroundings {
  int device;
  bool grad, inference, anomaly, saved_hooks, autocast_cache, deterministic,
      deterministic_warn_only, fill_uninitialized, checks_indices, all_special;
  c10::DispatchKeySet included, excluded;
  c10::ScalarType default_dtype, autocast_dtype, cpu_autocast_dtype;
  lowering::FloatPrecision precision;
  exec::CompileSettingsPtr settings;
  std::vector<PyObject*> function_modes;
  int64_t dispatch_modes;
  int devices;
  uint64_t backends;

  static Surroundings Now();
  /// What differs from others, in words; null: nothing.
  const char* Difference(const Surroundings& o) const;
  /// Why nothing can be replayed here; null: it can.
  const char* Refusal() const;
};

}  // namespace torch_xla::replay
