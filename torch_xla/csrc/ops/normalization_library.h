// Layer, group and batch normalization of float and bfloat16 by calls of ours
// (normalization_kernel.h); XLA writes to memory what it takes the variance of. Table
// lowering/kernel_table.inc says where.
#pragma once

#include <optional>
#include <vector>

#include "cpu/normalization_kernel.h"
#include "lowering/context.h"

namespace torch_xla::lowering {

using cpu::NormalizedForm;
using cpu::NormalizedGroups;

/// Whether a call is to normalize `input`, with `others`, values or none.
bool CallsNormalization(const LoweringContext& cx, Value input, const NormalizedForm& form,
                        const std::vector<std::optional<Value>>& others);

/// Running statistics of a batch norm, those that there are; `momentum` is a number of double.
struct RunningValues {
  std::optional<Value> mean, variance, momentum;
};

/// What alone reads the output of a batch norm, and is part of its call.
struct Rectifier {
  const ir::Node* relu = nullptr;  // or there is none
  std::optional<Value> addend;     // between the two
};
Rectifier FindRectifier(LoweringContext& cx);

/// Output, mean and inverse standard deviation in the shapes of the node's results, and what there
/// is of `running`; `eps` is a number of double. The output is that of the rectifier, if any.
std::vector<Value> CallNormalization(LoweringContext& cx, Value input, const NormalizedForm& form,
                                     const std::optional<Value>& weight,
                                     const std::optional<Value>& bias, Value eps,
                                     const RunningValues& running = {},
                                     const Rectifier& rectifier = {});

/// A gradient, of the output of a batch norm's rectifier where that is given.
struct RectifiedGrad {
  Value grad;
  std::optional<Value> rectified = std::nullopt;
};
/// What `grad_output` of a batch norm's gradient is made of, where that alone reads it.
RectifiedGrad FindRectifiedGrad(LoweringContext& cx, Value grad_output);

/// Gradients of input, weight and bias, those of them that have a shape in the node.
std::vector<Value> CallNormalizationBackward(LoweringContext& cx, const RectifiedGrad& grad_output,
                                             Value input, Value mean, Value inverse_std,
                                             const NormalizedForm& form,
                                             const std::optional<Value>& weight);

}  // namespace torch_xla::lowering
