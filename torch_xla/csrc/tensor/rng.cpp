#include "tensor/rng.h"

#include <array>
#include <atomic>

#include "tensor/node_factory.h"

namespace torch_xla::tensor {
namespace {

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15ull;

constexpr int kMaxDevices = 256;

std::atomic<uint64_t>& State(int device) {
  static auto& states = *new std::array<std::atomic<uint64_t>, kMaxDevices>;
  return states[static_cast<uint8_t>(device)];
}

}  // namespace

uint64_t NextRngState(uint64_t state, uint64_t count) { return state + count * kGolden; }

uint64_t SkipRngStates(int device, uint64_t count) {
  return State(device).fetch_add(count * kGolden);
}

uint64_t RngStatesBetween(uint64_t before, uint64_t after) {
  // The inverse of an odd number modulo 2**64 by Newton's method: each iteration doubles the number
  // of correct bits.
  uint64_t inverse = kGolden;
  for (int i = 0; i < 5; ++i) inverse *= 2 - kGolden * inverse;
  return (after - before) * inverse;
}

// SplitMix64 (Steele, Lea and Flood 2014): maps a counter to uniform bits.
uint64_t MixSeed(uint64_t state) {
  state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9ull;
  state = (state ^ (state >> 27)) * 0x94D049BB133111EBull;
  return state ^ (state >> 31);
}

void SetRngSeed(int device, uint64_t seed) { State(device).store(seed); }
void SetRngSeeds(uint64_t seed) {
  for (int device = 0; device < kMaxDevices; ++device) SetRngSeed(device, seed);
}
uint64_t GetRngSeed(int device) { return State(device).load(); }

ir::Value SeedValue(uint64_t seed) {
  return MakeScalarParameter(static_cast<int64_t>(seed), c10::ScalarType::Long, false);
}

ir::Value DrawSeed(int device) {
  return SeedValue(MixSeed(State(device).fetch_add(kGolden) + kGolden));
}

}  // namespace torch_xla::tensor
