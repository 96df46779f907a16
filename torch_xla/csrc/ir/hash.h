// 128-bit hashes, wide enough to stand for their content.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace torch_xla::ir {

struct Hash128 {
  uint64_t low = 0, high = 0;
  bool operator==(const Hash128&) const = default;
};

struct Hash128Hasher {
  size_t operator()(const Hash128& h) const { return h.low; }
};

/// Folds 64-bit words into a Hash128. It has two independent multiply-and-fold lanes, so a
/// collision needs both to collide.
class Hasher {
 public:
  void Add(uint64_t word) {
    low_ = Fold(low_ ^ word, 0x9E3779B97F4A7C15ull);
    high_ = Fold(high_ + word, 0xD1B54A32D192ED03ull);
  }
  /// Deleted, because addresses differ between processes and hashes must not.
  void Add(const void* pointer) = delete;
  void Add(const Hash128& hash) {
    Add(hash.low);
    Add(hash.high);
  }
  void AddText(std::string_view text) {
    Add(text.size());
    for (size_t i = 0; i < text.size(); i += 8) {
      uint64_t word = 0;
      std::memcpy(&word, text.data() + i, std::min<size_t>(8, text.size() - i));
      Add(word);
    }
  }
  Hash128 Finish() const { return {Fold(low_, high_ | 1), Fold(high_, 0xA24BAED4963EE407ull)}; }

 private:
  static uint64_t Fold(uint64_t a, uint64_t b) {
    auto product = static_cast<unsigned __int128>(a ^ 0x2545F4914F6CDD1Dull) * b;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64) ^ (a << 1);
  }
  uint64_t low_ = 0x243F6A8885A308D3ull, high_ = 0x13198A2E03707344ull;
};

}  // namespace torch_xla::ir
