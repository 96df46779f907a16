// Random bits by one call, in place of the many operations that XLA makes of each
// rng_bit_generator.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "cpu/calls.h"
#include "cpu/choices.h"
#include "cpu/ffi_tensor.h"
#include "cpu/ffi_threads.h"
#include "cpu/handlers.h"

namespace torch_xla::cpu {
namespace {

using namespace runtime::pjrt;

constexpr int64_t kBlockWords = 4;  // words of a block

/// Writes `count` words from block number `block` on: Philox4x32-10 (Salmon et al. 2011). Its
/// counter is the number of the block and, above it, the seed. The seed is the key, too.
void Philox(uint64_t seed, uint64_t block, uint32_t* out, int64_t count) {
  // Loops over enough blocks for the compiler to use vectors.
  constexpr int kLanes = 16;
  const auto low = static_cast<uint32_t>(seed), high = static_cast<uint32_t>(seed >> 32);
  for (; count > 0; count -= kBlockWords * kLanes, out += kBlockWords * kLanes, block += kLanes) {
    uint32_t x[kBlockWords][kLanes];
    for (int i = 0; i < kLanes; ++i) {
      x[0][i] = static_cast<uint32_t>(block + i);
      x[1][i] = static_cast<uint32_t>((block + i) >> 32);
      x[2][i] = low;
      x[3][i] = high;
    }
    uint32_t key0 = low, key1 = high;
    for (int round = 0; round < 10; ++round, key0 += 0x9E3779B9, key1 += 0xBB67AE85) {
      for (int i = 0; i < kLanes; ++i) {
        const uint64_t p = uint64_t{x[0][i]} * 0xD2511F53, q = uint64_t{x[2][i]} * 0xCD9E8D57;
        x[0][i] = static_cast<uint32_t>(q >> 32) ^ x[1][i] ^ key0;
        x[1][i] = static_cast<uint32_t>(q);
        x[2][i] = static_cast<uint32_t>(p >> 32) ^ x[3][i] ^ key1;
        x[3][i] = static_cast<uint32_t>(p);
      }
    }
    uint32_t words[kBlockWords * kLanes];
    for (int i = 0; i < kLanes; ++i) {
      for (int word = 0; word < kBlockWords; ++word) words[kBlockWords * i + word] = x[word][i];
    }
    std::copy_n(words, std::min<int64_t>(count, kBlockWords * kLanes), out);
  }
}

}  // namespace

void RunRandomBits(const XLA_FFI_CallFrame& frame) {
  const auto first = static_cast<uint64_t>(CallOf<RandomBitsCall>(frame).blocks);
  uint64_t seed;
  std::memcpy(&seed, FfiData<const void>(frame.args.args[0]), sizeof(seed));
  const auto& bits = *static_cast<XLA_FFI_Buffer*>(frame.rets.rets[0]);
  int64_t count = bits.dtype == XLA_FFI_DataType_U64 ? 2 : 1;
  for (int64_t dim = 0; dim < bits.rank; ++dim) count *= bits.dims[dim];
  const int64_t parts = FfiParts(frame, count * choices::kFunction);
  const int64_t part = (count / parts / kBlockWords + 1) * kBlockWords;
  RunOnFfiThreads(frame, parts, [&](int64_t i) {
    const int64_t from = i * part;
    Philox(seed, first + from / kBlockWords, static_cast<uint32_t*>(bits.data) + from,
           std::min(part, count - from));
  });
}

}  // namespace torch_xla::cpu
