// The random state of a device: a 64-bit number on the host. Each random op draws a
// seed from it, which enters the graph as a number (a parameter), so that a new step
// needs no new program, and a graph that runs twice gives the same numbers.
#pragma once

#include <cstdint>

#include "ir/node.h"

namespace torch_xla::lazy {

void SetRngSeed(int device, uint64_t seed);
/// Of every device, whether there is one of that ordinal or not.
void SetRngSeeds(uint64_t seed);
uint64_t GetRngSeed(int device);
/// Draws `count` seeds at once; returns the state before: what DrawSeed would have given are
/// MixSeed of the `count` states after it.
uint64_t SkipRngStates(int device, uint64_t count);
/// How many seeds lie between two states, where one is before the other.
uint64_t RngStatesBetween(uint64_t before, uint64_t after);
/// The state after `state`, and (mixed) the seed that it gives.
uint64_t NextRngState(uint64_t state);
uint64_t MixSeed(uint64_t state);

/// Draws a seed from the device's state: operand 0 of a random op.
ir::Value DrawSeed(int device);
/// The same from a state that a torch.Generator keeps.
ir::Value SeedValue(uint64_t seed);

}  // namespace torch_xla::lazy
