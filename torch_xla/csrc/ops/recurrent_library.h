// LSTM and GRU of float on the CPU, called from the program on the device's memory: samples are
// independent, so that each of XLA's threads takes some of them through all times, and waits for
// no other. Table lowering/kernel_table.inc says where.
#pragma once

#include <vector>

#include "lowering/context.h"
#include "ops/recurrent.h"

namespace torch_xla::lowering {

/// As xla::recurrent and xla::recurrent_backward (ops/recurrent.h), with these operands: gates,
/// weight, bias, hidden, and LSTM's cells before the first time; output's gradient, weight, hidden,
/// the forward's results, and LSTM's cells before the first time and the gradient of those after
/// the last.
std::vector<Value> CallRecurrent(Cell cell, bool reverse, const std::vector<Value>& operands,
                                 const std::vector<stablehlo::Type>& results);
std::vector<Value> CallRecurrentBackward(Cell cell, bool reverse,
                                         const std::vector<Value>& operands,
                                         const std::vector<stablehlo::Type>& results);

}  // namespace torch_xla::lowering
