// Collectives as StableHLO's own: the devices' interconnect (NCCL, ICI) carries them.
#pragma once

#include <vector>

#include "distributed/collective.h"
#include "stablehlo/builder.h"

namespace torch_xla::lowering {

/// The results of a collective over arrays of a program with one replica for each process. As on
/// the host (communicator.h), but for sums of floats, whose order is the device's.
std::vector<stablehlo::Value> LowerToDevices(const distributed::Collective& collective,
                                             const std::vector<stablehlo::Value>& arrays);

}  // namespace torch_xla::lowering
