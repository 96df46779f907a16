// The negative log likelihood of rows of float and its gradient, by calls of ours: XLA:CPU makes
// four kernels of them, which take longer to compile than a small net's step to run. Table
// lowering/kernel_table.inc says where.
#pragma once

#include <optional>
#include <vector>

#include "lowering/context.h"
#include "lowering/number.h"

namespace torch_xla::lowering {

/// What PyTorch's nll_loss is given beside the logarithms. Classes out of range are the nearest
/// one.
struct NllCall {
  Value target;                 // [rows] of s64
  std::optional<Value> weight;  // [columns]
  int64_t reduction;            // as at::Reduction has it
  Number ignore_index;
};

/// Of [rows, columns]: the loss, [rows] or a number, and the total weight; none where a call is not
/// the fastest.
std::optional<std::vector<Value>> CallNllLoss(const LoweringContext& cx, Value self,
                                              const NllCall& call);

/// [rows, columns], zero but where `target` says.
std::optional<Value> CallNllLossBackward(const LoweringContext& cx, Value grad_output, Value self,
                                         const NllCall& call, Value total_weight);

}  // namespace torch_xla::lowering
