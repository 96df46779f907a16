// Handles transpositions. A transposition of a transposition is replaced by their composition. If a
// large transposition moves the last dimension, XLA:CPU computes its readers in the order of its
// result and reads each element of the operand from another cache line.
#pragma once

#include "stablehlo/builder.h"

namespace torch_xla::stablehlo {

/// The call of this library that makes a transposition in memory, for programs that may call the
/// library (their builder joins dimensions). Its operand has three dimensions, of which the last
/// two are swapped.
inline constexpr const char* kTransposition = "torch_xla.cpu_transposition";

/// Notes that `result` is the transposition of `x`.
void NoteTransposition(Value result, Value x, const Dims& permutation);

/// If `x` is a transposition itself, the composed transposition of its operand; else invalid.
Value TransposedAgain(Value x, const Dims& permutation);

/// `x` converted. A transposition is made of its converted operand, which a product reads as it
/// lies.
Value ConvertedAsItLies(Value x, ElementType element);

/// The same elements, made in memory if `x` is a large transposition; else `x`.
Value MadeInMemory(Value x);

}  // namespace torch_xla::stablehlo
