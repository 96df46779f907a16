// Lowerings of the random ops of internal_ops.h. Operand 0 is always the seed.
#pragma once

#include "lowering/context.h"

namespace torch_xla::lowering {

void LowerRandomUniform(LoweringContext& cx, const ir::Node& node);
void LowerRandomNormal(LoweringContext& cx, const ir::Node& node);
void LowerRandomInteger(LoweringContext& cx, const ir::Node& node);
void LowerRandomBernoulli(LoweringContext& cx, const ir::Node& node);
void LowerRandomExponential(LoweringContext& cx, const ir::Node& node);
void LowerRandomPoisson(LoweringContext& cx, const ir::Node& node);
void LowerRandomBinomial(LoweringContext& cx, const ir::Node& node);
void LowerRandomGamma(LoweringContext& cx, const ir::Node& node);
void LowerRandomPermutation(LoweringContext& cx, const ir::Node& node);
void LowerRandomMultinomial(LoweringContext& cx, const ir::Node& node);

}  // namespace torch_xla::lowering
