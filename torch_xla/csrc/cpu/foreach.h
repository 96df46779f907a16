// One call that computes a chain of `_foreach_` operations. XLA:CPU would compile some kernels for
// each shape and call them for each tensor: most of the kernels and calls of a training step would
// belong to the update of the parameters.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cpu/calls.h"

namespace torch_xla::cpu {

inline constexpr const char* kForeachTarget = "torch_xla.cpu_foreach";

enum class ForeachOp : int64_t {
  kAbs,
  kAdd,
  kAddScaled,
  kAddcdiv,
  kAddcmul,
  kDiv,
  kLerp,
  kMaximum,
  kMinimum,
  kMul,
  kNeg,
  kReciprocal,
  kSqrt,
  kSub,
  kSubScaled,
};

struct ForeachArgument {
  enum Kind : int64_t {
    kStep,    // the results of an earlier step
    kList,    // operands from `index` on, one per tensor
    kSingle,  // the operand `index`, for all tensors
  };
  Kind kind;
  int64_t index;
};

/// One operation on each tensor of a list.
struct ForeachStep {
  static constexpr size_t kMaxArguments = 4;
  ForeachOp op;
  std::vector<ForeachArgument> arguments;
};

/// Operands: floats of the results' dimensions, or numbers of rank 0 of float, double or s64.
/// Results: the lists of `results`, one after the other, and the tables.
struct ForeachCall {
  std::vector<ForeachStep> steps;
  Words results;                      // the steps whose lists are read
  std::vector<AddedRowsCall> tables;  // made of these rows; operand `grad` stands for the table

  Words Encode() const;
  static ForeachCall Decode(std::span<const int64_t> words);
};

}  // namespace torch_xla::cpu
