// What an operation is: its name, its arguments, how it is lowered. One constant
// object per operator overload, generated from codegen/xla_native_functions.yaml
// (or written by hand for the few operations that are not PyTorch's).
#pragma once

#include <cstdint>
#include <span>

#include "debug/metrics.h"

namespace torch_xla::lowering {
class LoweringContext;
}

namespace torch_xla::ir {

class Node;

/// How an argument of a schema is kept in a node. Tensors and scalars are operands;
/// everything else is words in the node's attributes (see attributes.h).
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
  kIgnored,  // layout, device, memory format, …: no part of the computation
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
  /// Stands for it in hashes: another than any other operation's, and the same in each process.
  uint64_t id;
};

}  // namespace torch_xla::ir
