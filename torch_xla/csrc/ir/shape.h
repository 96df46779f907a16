// Logical shapes: a torch dtype and dimensions, interned, so that equality is
// pointer equality and a shape costs a node one pointer.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <string>

namespace torch_xla::ir {

struct Shape;
/// Lives for ever; never null where a shape is known.
using ShapeRef = const Shape*;

/// The results of a node.
struct OutputShapes {
  c10::SmallVector<ShapeRef, 1> shapes;
};

struct Shape {
  c10::ScalarType dtype;
  /// A Python number: it promotes as PyTorch's wrapped numbers do.
  bool wrapped;
  int64_t numel;
  uint64_t hash;  // of all the others, the same in each process
  c10::SmallVector<int64_t, 6> dims;
  OutputShapes alone;  // of a node with one result

  size_t rank() const { return dims.size(); }
  std::string ToString() const;  // "f32[2,3]"
};

ShapeRef GetShape(c10::ScalarType dtype, c10::IntArrayRef dims, bool wrapped = false);

/// The same list, which lives for ever. Takes no lock where one shape is alone.
const OutputShapes* InternOutputs(const OutputShapes& outputs);
inline const OutputShapes* InternOutputs(ShapeRef shape) { return &shape->alone; }

/// "f32", "s64", "pred", …: XLA's short names, as IR dumps print them.
const char* DtypeName(c10::ScalarType dtype);

}  // namespace torch_xla::ir
