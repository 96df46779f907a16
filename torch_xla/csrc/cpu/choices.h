// The numbers of choices.inc: the costs of work in picoseconds, and the sizes that decide which way
// a call computes.
#pragma once

#include <cstdint>

namespace torch_xla::cpu::choices {

#define COST(name, number) inline constexpr int64_t name = number;
#define CHOICE(name, number) inline constexpr int64_t name = number;
#include "cpu/choices.inc"
#undef COST
#undef CHOICE

}  // namespace torch_xla::cpu::choices
