// What is known of transpositions. Of one that is transposed again no more than the two together is
// left. Where a large one moves the last dimension, XLA:CPU computes what reads it in the order of
// its result, and reads each element of the operand from another line of memory.
#pragma once

#include "stablehlo/builder.h"

namespace torch_xla::stablehlo {

/// What makes the transposition in memory: a call of this library by programs that may (those whose
/// builder joins dimensions). Its operand has three dimensions, of which the last two swap.
inline constexpr const char* kTransposition = "torch_xla.cpu_transposition";

/// Notes that `result` is the transposition of `x`.
void NoteTransposition(Value result, Value x, const Dims& permutation);

/// The transposition of `x` by `permutation` where `x` is one itself, of what was before both;
/// invalid where it is none.
Value TransposedAgain(Value x, const Dims& permutation);

/// The same elements, made in memory where `x` is a large transposition; or `x`.
Value MadeInMemory(Value x);

}  // namespace torch_xla::stablehlo
