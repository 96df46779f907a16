// Norms of many arrays by one call. XLA:CPU would compile two kernels for each array, and would
// write the squares to memory.
#include <algorithm>
#include <cmath>
#include <vector>

#include "cpu/ffi_parts.h"
#include "cpu/ffi_tensor.h"
#include "cpu/float_loops.h"
#include "cpu/handlers.h"
#include "cpu/instruction_sets.h"

namespace torch_xla::cpu {
namespace {

using namespace runtime::pjrt;

template <int kLanes, typename T>
C10_ALWAYS_INLINE double AddSquares(const T* x, int64_t count) {
  double sum[1] = {};
  Sum<kLanes, 1>(count, sum, [&](auto& to, int64_t i) C10_ALWAYS_INLINE_ATTRIBUTE {
    const auto value = Load<Element<decltype(to)>>(x + i);
    to[0] += value * value;
  });
  return sum[0];
}

int64_t NumElements(const XLA_FFI_Buffer& buffer) {
  int64_t count = 1;
  for (int64_t i = 0; i < buffer.rank; ++i) count *= buffer.dims[i];
  return count;
}

/// The arrays, one after the other, are split into parts with equally many elements.
template <typename T>
void Norms(const XLA_FFI_CallFrame& frame) {
  const auto squares = ForThisProcessor<&AddSquares<4, T>, &AddSquares<8, T>, &AddSquares<16, T>>();
  const int64_t count = frame.args.size;
  std::vector<int64_t> ends;
  int64_t total = 0;
  for (int64_t i = 0; i < count; ++i) {
    ends.push_back(total += NumElements(*static_cast<XLA_FFI_Buffer*>(frame.args.args[i])));
  }
  const int64_t parts = PartsWorthAThread(total * choices::kFloat, choices::kMostParts);
  std::vector<double> sums(count * parts);
  RunParts(frame, parts, total, [&](int64_t part, int64_t at, int64_t end) {
    for (int64_t i = std::upper_bound(ends.begin(), ends.end(), at) - ends.begin(); at < end; ++i) {
      const int64_t start = i == 0 ? 0 : ends[i - 1], stop = std::min(end, ends[i]);
      sums[part * count + i] =
          squares(FfiData<const T>(frame.args.args[i]) + at - start, stop - at);
      at = stop;
    }
  });
  for (int64_t i = 0; i < count; ++i) {
    double sum = 0;
    for (int64_t part = 0; part < parts; ++part) sum += sums[part * count + i];
    *FfiData<float>(frame.rets.rets[i]) = static_cast<float>(std::sqrt(sum));
  }
}

}  // namespace

void RunNorms(const XLA_FFI_CallFrame& frame) {
  IsFfiFloat(frame.args.args[0]) ? Norms<float>(frame) : Norms<c10::BFloat16>(frame);
}

}  // namespace torch_xla::cpu
