// Collectives as StableHLO's own: the devices' interconnect (NCCL, ICI) carries them.
#pragma once

#include <vector>

#include "distributed/collective.h"
#include "stablehlo/builder.h"

namespace torch_xla::lowering {

/// The results of a collective over arrays of a program with one replica for each process. As on
/// the host (communicator.h), but for sums of floats, whose order is the device's. `by_halves` is
/// for TPUs, which have 64-bit integers and complex numbers as pairs of 32 bits: of the former they
/// add up alone, and they scatter no sums of the latter.
std::vector<stablehlo::Value> LowerToDevices(const distributed::Collective& collective,
                                             const std::vector<stablehlo::Value>& arrays,
                                             bool by_halves = false);

}  // namespace torch_xla::lowering
