// Logical shapes: a torch dtype and dimensions. They are interned, so that equality is pointer
// equality and a node stores one pointer per shape.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <string>

namespace torch_xla::ir {

struct Shape;
/// Never freed. Null only for an unknown shape.
using ShapeRef = const Shape*;

/// The results of a node.
struct OutputShapes {
  c10::SmallVector<ShapeRef, 1> shapes;
};

struct Shape {
  c10::ScalarType dtype;
  /// Whether it is a Python number, which promotes like PyTorch's wrapped numbers.
  bool wrapped;
  int64_t numel;
  uint64_t hash;  // of all other fields; equal in all processes
  c10::SmallVector<int64_t, 6> dims;
  OutputShapes alone;  // the results of a node with this shape only

  size_t rank() const { return dims.size(); }
  std::string ToString() const;  // "f32[2,3]"
};

ShapeRef GetShape(c10::ScalarType dtype, c10::IntArrayRef dims, bool wrapped = false);

/// Interns the list, which is never freed. Takes no lock for a single shape.
const OutputShapes* InternOutputs(const OutputShapes& outputs);
inline const OutputShapes* InternOutputs(ShapeRef shape) { return &shape->alone; }

/// "f32", "s64", "pred", …: XLA's short names, as IR dumps print them.
const char* DtypeName(c10::ScalarType dtype);

}  // namespace torch_xla::ir
