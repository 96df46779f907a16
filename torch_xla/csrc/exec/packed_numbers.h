// Reads the numbers of a program from the packed arrays that hold them (tensor/graph.h).
#pragma once

#include <string_view>
#include <vector>

#include "stablehlo/ops.h"

namespace torch_xla::exec {

/// Element `index` of packed numbers, as a rank-0 value.
stablehlo::Value Unpack(stablehlo::Value packed, int64_t index);

/// Reads numbers in one of two ways:
/// - A slice for each number fuses into the kernel that reads it. Kernels that differ only in the
///   place of their number are then compiled separately, such as the updates of all parameters by
///   an optimizer.
/// - A custom call returns all numbers at once, so that such kernels stay equal and XLA compiles
///   one of them. It is used if the program may call libraries of this process and has at least
///   cpu::choices::kNumbersToUnpack numbers, which pay for the call.
class NumberReader {
 public:
  /// An array that the program does not have is an invalid value.
  NumberReader(std::string_view platform, stablehlo::Value floats, stablehlo::Value integers);

  /// Element `index`, as a rank-0 value.
  stablehlo::Value Float(int64_t index) const;
  stablehlo::Value Integer(int64_t index) const;

 private:
  stablehlo::Value floats_, integers_;
  std::vector<stablehlo::Value> unpacked_;  // all floats, then all integers; empty: use slices
};

}  // namespace torch_xla::exec
