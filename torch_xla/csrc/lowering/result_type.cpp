#include "lowering/result_type.h"

#include <c10/core/ScalarType.h>

#include <array>

namespace torch_xla::lowering {
namespace {

/// A marker that no attribute equals: it is no plausible size, nor a number that users write.
constexpr uint64_t kDefaultDtype = 0xD7E5DEFA00000000ull;

}  // namespace

uint64_t DefaultDtypeWord(c10::ScalarType dtype) {
  return kDefaultDtype | static_cast<uint64_t>(dtype);
}

c10::ScalarType DefaultDtype(const ir::Node& node) {
  const ir::Words& words = node.attributes();
  if (words.empty() || words.back() >> 32 != kDefaultDtype >> 32) return c10::ScalarType::Float;
  return static_cast<c10::ScalarType>(words.back() & 0xFF);
}

c10::ScalarType ResultType(std::span<const ir::Value> operands, c10::ScalarType default_dtype) {
  using c10::ScalarType;
  auto promote = [](ScalarType a, ScalarType b) {
    return a == ScalarType::Undefined ? b : c10::promoteTypes(a, b);
  };
  auto category = [](ScalarType t) {
    if (t == ScalarType::Undefined) return -1;
    if (c10::isComplexType(t)) return 3;
    if (c10::isFloatingType(t)) return 2;
    return t == ScalarType::Bool ? 0 : 1;
  };
  // By rank: tensors with dimensions, zero-dim tensors, Python numbers.
  std::array<ScalarType, 3> by_rank{ScalarType::Undefined, ScalarType::Undefined,
                                    ScalarType::Undefined};
  for (const ir::Value& operand : operands) {
    ir::ShapeRef shape = operand.shape();
    ScalarType dtype = shape->dtype;
    if (shape->wrapped && c10::isComplexType(dtype)) dtype = c10::toComplexType(default_dtype);
    if (shape->wrapped && c10::isFloatingType(dtype)) dtype = default_dtype;
    ScalarType& slot = by_rank[shape->wrapped ? 2 : shape->rank() == 0 ? 1 : 0];
    slot = promote(slot, dtype);
  }
  ScalarType result = by_rank[0];
  for (int rank = 1; rank < 3; ++rank) {
    if (category(by_rank[rank]) > category(result)) result = promote(result, by_rank[rank]);
  }
  return result;
}

}  // namespace torch_xla::lowering
