// The random state of a device: a 64-bit number on the host. Each random op draws a seed from it.
// The seed enters the graph as a parameter, so that a new step needs no new program, and a graph
// that runs twice gives the same random numbers.
#pragma once

#include <cstdint>

#include "ir/node.h"

namespace torch_xla::tensor {

void SetRngSeed(int device, uint64_t seed);
/// Sets the state of every possible device ordinal.
void SetRngSeeds(uint64_t seed);
uint64_t GetRngSeed(int device);
/// Draws `count` seeds at once and returns the state before. The seeds that DrawSeed would have
/// returned are MixSeed of the next `count` states.
uint64_t SkipRngStates(int device, uint64_t count);
/// The number of seeds between two states, if `before` comes first.
uint64_t RngStatesBetween(uint64_t before, uint64_t after);
/// NextRngState: the state `count` draws after `state`. MixSeed: the seed that a state gives.
uint64_t NextRngState(uint64_t state, uint64_t count = 1);
uint64_t MixSeed(uint64_t state);

/// Draws a seed from the device's state: operand 0 of a random op.
ir::Value DrawSeed(int device);
/// The same for a seed that a torch.Generator has drawn.
ir::Value SeedValue(uint64_t seed);

}  // namespace torch_xla::tensor
