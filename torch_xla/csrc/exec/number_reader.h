// How a program reads its numbers, which come packed into arrays (exec/graph.h).
#pragma once

#include <string_view>
#include <vector>

#include "stablehlo/ops.h"

namespace torch_xla::lazy {

/// Element `index` of packed numbers, as a rank-0 value.
stablehlo::Value Unpack(stablehlo::Value packed, int64_t index);

/// Two ways. A slice for each number fuses into what reads it, so that kernels alike but for the
/// place of their number are compiled one by one: the updates of all parameters by an optimizer,
/// the dropouts of all layers. A custom call that gives all numbers at once leaves such kernels
/// equal, and XLA compiles one of them: where the program may call libraries of this process, and
/// worth its microsecond from kFewest numbers on.
class NumberReader {
 public:
  static constexpr int64_t kFewest = 16;

  /// Arrays of which there are none are invalid values.
  NumberReader(std::string_view platform, stablehlo::Value floats, stablehlo::Value integers);

  /// Element `index`, as a rank-0 value.
  stablehlo::Value Float(int64_t index) const;
  stablehlo::Value Integer(int64_t index) const;

 private:
  stablehlo::Value floats_, integers_;
  std::vector<stablehlo::Value> unpacked_;  // first all floats; empty: by slices
};

}  // namespace torch_xla::lazy
