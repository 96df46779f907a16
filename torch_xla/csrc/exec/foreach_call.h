// What `_foreach_` operations that follow each other compute, by one function of this library. By
// XLA:CPU it is some kernels for each shape, each called for each tensor: the update of a model's
// parameters takes most of what its training step compiles, and of the calls that it makes.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "lowering/row_sums.h"
#include "stablehlo/ops.h"

namespace torch_xla::lazy {

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

bool IsForeach(std::string_view name);

/// What computes `name` ("aten::_foreach_add") of so many arguments; nothing where none does.
std::optional<ForeachOp> FindForeachOp(std::string_view name, size_t arguments);

struct ForeachArgument {
  enum Kind : int64_t {
    kStep,    // the results of a step before
    kList,    // operands from `index` on, one for each tensor
    kSingle,  // the operand `index`, for all tensors
  };
  Kind kind;
  int64_t index;
};

/// An operation on each tensor of a list.
struct ForeachStep {
  static constexpr size_t kMaxArguments = 4;
  ForeachOp op;
  std::vector<ForeachArgument> arguments;
};

/// A tensor of a list that the call makes as well, before it is read: a table of which only some
/// rows are not zero is not worth a way to memory and back.
struct ForeachTable {
  int64_t place;  // in the operands, where the rows to be added stand for it
  lowering::AddedRows rows;
  stablehlo::Type type;
};

struct ForeachCall {
  /// Floats of the results' dimensions, or numbers of rank 0 of any of the types that
  /// IsForeachNumber() takes.
  std::vector<stablehlo::Value> operands;
  std::vector<ForeachStep> steps;
  std::vector<int64_t> results;  // the steps whose lists are read
  std::vector<ForeachTable> tables;
  std::vector<stablehlo::OutputOperandAlias> aliases;
};

bool IsForeachNumber(runtime::ElementType type);

/// The lists of `call.results`, one after the other, and `call.tables`; `tensors` are the types of
/// one list.
std::vector<stablehlo::Value> CallForeach(const ForeachCall& call,
                                          const std::vector<stablehlo::Type>& tensors);

}  // namespace torch_xla::lazy
