#include "stablehlo/transposition.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "stablehlo/ops.h"

namespace torch_xla::stablehlo {
namespace {

/// The operand as three dimensions of which the last two are swapped; nothing for any other
/// permutation.
std::optional<Dims> AsSwap(const Dims& dims, const Dims& permutation) {
  const auto rank = static_cast<int64_t>(dims.size());
  int64_t first = 0;
  while (first < rank && permutation[first] == first) ++first;
  if (first == rank) return std::nullopt;
  const int64_t begin = permutation[first];  // the dimensions from here on come to the front
  for (int64_t i = first; i < rank; ++i) {
    const int64_t expected = begin + i - first < rank ? begin + i - first : begin + i - rank;
    if (permutation[i] != expected) return std::nullopt;
  }
  Dims swap(3, 1);
  for (int64_t i = 0; i < rank; ++i) swap[i < first ? 0 : i < begin ? 1 : 2] *= dims[i];
  return swap;
}

/// How many times the lines that one row of the result is read from fill an 8-way cache. Because of
/// their distance they share few of its sets.
int64_t Fills(int64_t rows, int64_t row_bytes, int64_t cache_bytes) {
  constexpr int64_t kLine = 64, kWays = 8;
  const int64_t all = cache_bytes / kLine / kWays;
  const int64_t sets = row_bytes % kLine == 0 ? all / std::gcd(row_bytes / kLine, all) : all;
  return rows / (sets * kWays);
}

/// Whether making the transposition in memory pays off, by measurements. It also forces a fused
/// operand to be written to memory.
bool IsSlow(int64_t rows, int64_t row_bytes, bool is_fused) {
  return is_fused ? Fills(rows, row_bytes, 1 << 20) > 1 : Fills(rows, row_bytes, 1 << 15) > 8;
}

/// The same as AsSwap(), if MadeInMemory() shall make the transposition.
std::optional<Dims> SlowSwap(Value x, const Dims& permutation) {
  constexpr int64_t kElements = 1 << 15;  // smaller arrays fit into a near cache
  if (!x.builder().joins_dimensions() || x.type().num_elements() < kElements) return std::nullopt;
  std::optional<Dims> swap = AsSwap(x.dims(), permutation);
  const auto width = static_cast<int64_t>(runtime::ByteWidth(x.element()));
  if (!swap || width > 8 || !IsSlow((*swap)[1], (*swap)[2] * width, x.builder().IsFused(x))) {
    return std::nullopt;
  }
  return swap;
}

/// The elements of `of`, ordered by a permutation.
Dims Permuted(const Dims& of, const Dims& permutation) {
  Dims permuted;
  for (int64_t i : permutation) permuted.push_back(of[i]);
  return permuted;
}

/// The transposition that `x` is. A reshape of a transposition may have other dimensions.
const Transposition* Find(Value x) {
  const Transposition* found = x.builder().FindTransposition(x);
  const bool is_it = found && x.dims() == Permuted(found->operand.dims(), found->permutation);
  return is_it ? found : nullptr;
}

}  // namespace

void NoteTransposition(Value result, Value x, const Dims& permutation) {
  x.builder().SetTransposition(
      result, {x, permutation, SlowSwap(x, permutation).value_or(Dims()), Value()});
}

Value TransposedAgain(Value x, const Dims& permutation) {
  const Transposition* first = Find(x);
  return first ? Transpose(first->operand, Permuted(first->permutation, permutation)) : Value();
}

Value ConvertedAsItLies(Value x, ElementType element) {
  const Transposition* found = Find(x);
  if (!found) return Convert(x, element);
  const Dims permutation = found->permutation;
  return Transpose(Convert(found->operand, element), permutation);
}

Value MadeInMemory(Value x) {
  Builder& builder = x.builder();
  Transposition* made = builder.FindTransposition(x);
  if (!made || made->swap.empty()) return x;
  if (!builder.IsVisible(made->result)) {
    const Dims& swap = made->swap;
    CustomCallOptions options{.operand_layouts = {{2, 1, 0}}, .result_layouts = {{2, 1, 0}}};
    made->result = CustomCall(builder, kTransposition, {Reshape(made->operand, swap)},
                              {Type(x.element(), {swap[0], swap[2], swap[1]})}, options)[0];
  }
  return Reshape(made->result, x.dims());
}

}  // namespace torch_xla::stablehlo
