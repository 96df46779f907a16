// Random bits by a function of this library in place of the hundred operations that XLA makes of
// each rng_bit_generator. Table lowering/kernel_table.inc says where.
#pragma once

#include "lowering/context.h"

namespace torch_xla::lowering {

/// What rng_bit_generator (Philox) gives after `blocks` blocks of 4 words, from the state [seed,
/// 0]. `seed` is a number of 64 bits, `type` one of u32 or u64.
Value CallRandomBits(Value seed, int64_t blocks, const stablehlo::Type& type);

}  // namespace torch_xla::lowering
