// The description of an operation: its name, its arguments, and how it is lowered. There is one
// constant object per operator overload, generated from codegen/xla_native_functions.yaml (or
// written by hand for the few operations that are not PyTorch's).
#pragma once

#include <cstdint>
#include <span>

#include "debug/metrics.h"

namespace torch_xla::lowering {
class LoweringContext;
}

namespace torch_xla::ir {

class Node;

/// How a node stores an argument of a schema. Tensors and scalars are operands; everything else is
/// words in the node's attributes (see attributes.h).
enum class ArgKind : uint8_t {
  kTensor,
  kOptionalTensor,
  kTensorList,
  kOptionalTensorList,
  kScalar,
  kOptionalScalar,
  kScalarList,
  kConstantScalar,  // a Scalar whose value is part of the program (an exponent)
  kOptionalConstantScalar,
  kInt,
  kOptionalInt,
  kIntList,
  kOptionalIntList,
  kBool,
  kOptionalBool,
  kBoolList,
  kDouble,
  kOptionalDouble,
  kDoubleList,
  kOptionalDoubleList,
  kDtype,
  kOptionalDtype,
  kString,
  kOptionalString,
  kIgnored,  // layout, device, memory format, …: not part of the computation
};

struct ArgSpec {
  const char* name;
  ArgKind kind;
};

using LowerFunction = void (*)(lowering::LoweringContext& context, const Node& node);

struct OpSpec {
  OpSpec(const char* name, const char* overload, std::span<const ArgSpec> args, LowerFunction lower,
         debug::Counter* counter);

  const char* name;      // "aten::add"
  const char* overload;  // "Tensor"; "" for the default
  std::span<const ArgSpec> args;
  LowerFunction lower;
  debug::Counter* counter;  // "xla::add"
  /// Stands for the operation in hashes. It is unique, and equal in all processes.
  uint64_t id;
};

}  // namespace torch_xla::ir
