#include "stablehlo/in_place_update.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace torch_xla::stablehlo {
namespace {

/// The part of an array from `starts` to `limits`.
struct Box {
  Dims dims, starts, limits;

  /// The position of the first or last element in row-major order.
  int64_t Position(bool last) const {
    int64_t position = 0;
    for (size_t i = 0; i < dims.size(); ++i) {
      position = position * dims[i] + (last ? limits[i] - 1 : starts[i]);
    }
    return position;
  }
  bool operator==(const Box&) const = default;
};

Box BoxOf(Value x, const Dims& starts, const Dims& sizes) {
  Box box{x.dims(), starts, starts};
  for (size_t i = 0; i < sizes.size(); ++i) box.limits[i] += sizes[i];
  return box;
}

/// Whether parts of two reshapes of an array have no element in common, as far as it is easily
/// seen.
bool AreApart(const Box& a, const Box& b) {
  if (a.Position(true) < b.Position(false) || b.Position(true) < a.Position(false)) return true;
  bool apart = false;
  for (size_t i = 0; a.dims == b.dims && i < a.dims.size(); ++i) {
    apart |= a.limits[i] <= b.starts[i] || b.limits[i] <= a.starts[i];
  }
  return apart;
}

bool Contains(std::span<const Value> values, Value x) {
  return std::find(values.begin(), values.end(), x) != values.end();
}

/// `x` and what it is a reshape of.
std::vector<Value> Reshapes(Value x) {
  std::vector<Value> values{x};
  while (x.builder().KindOf(values.back()) == OpKind::kReshape) {
    values.push_back(x.builder().OperandsOf(values.back())[0]);
  }
  return values;
}

/// `reshapes`, and all arrays whose memory may be that of `x`, since XLA removes operations that
/// change nothing.
std::vector<Value> SameMemory(Value x, std::vector<Value> reshapes) {
  constexpr size_t kMost = 32;  // operations that change nothing are few
  Builder& builder = x.builder();
  for (size_t i = 0; i < reshapes.size() && reshapes.size() < kMost; ++i) {
    const OpKind kind = builder.KindOf(reshapes[i]);
    if (kind == OpKind::kUpdate || kind == OpKind::kNeverFused) continue;
    for (Value operand : builder.OperandsOf(reshapes[i])) {
      const bool is_whole = operand.type().num_elements() == x.type().num_elements();
      if (is_whole && !Contains(reshapes, operand)) reshapes.push_back(operand);
    }
  }
  return reshapes;
}

}  // namespace

bool ReadsOverwritten(Value x, Value update, const std::optional<Dims>& starts) {
  Builder& builder = x.builder();
  const std::vector<Value> reshapes = Reshapes(x), memory = SameMemory(x, reshapes);
  std::optional<Box> written;
  if (starts) written = BoxOf(x, *starts, update.dims());
  // Whether a slice of the memory reads nothing that is overwritten before.
  auto is_safe = [&](Value slice, Value of, bool in_order) {
    const Dims* from = builder.StartsOf(slice);
    if (!written || !from || !Contains(reshapes, of)) return false;
    const Box read = BoxOf(builder.OperandsOf(slice)[0], *from, slice.dims());
    return AreApart(read, *written) || (in_order && read == *written);
  };

  // With each value goes whether the update's elements are computed from its elements at the same
  // positions in row-major order.
  std::vector<std::pair<Value, bool>> next{{update, true}};
  std::vector<bool> seen[2] = {std::vector<bool>(builder.num_values()),
                               std::vector<bool>(builder.num_values())};
  while (!next.empty()) {
    const auto [value, in_order] = next.back();
    next.pop_back();
    if (Contains(memory, value)) return true;
    if (builder.KindOf(value) == OpKind::kNeverFused) continue;
    if (seen[in_order][builder.NumberOf(value)]) continue;
    seen[in_order][builder.NumberOf(value)] = true;
    if (builder.KindOf(value) == OpKind::kSlice) {
      bool reads_memory = false;
      for (Value of : Reshapes(builder.OperandsOf(value)[0])) {
        if (!Contains(memory, of)) continue;
        if (!is_safe(value, of, in_order)) return true;
        reads_memory = true;
        break;
      }
      if (reads_memory) continue;
    }
    const bool keeps_order = builder.KindOf(value) == OpKind::kReshape || builder.IsFused(value);
    for (Value operand : builder.OperandsOf(value))
      next.emplace_back(operand, in_order && keeps_order);
  }
  return false;
}

}  // namespace torch_xla::stablehlo
