// Reports the contents of device memory, by size and by the user's line that made them.
#pragma once

#include <string>
#include <vector>

#include "explain/graph_snapshot.h"
#include "runtime/client.h"
#include "tensor/device_data.h"

namespace torch_xla::explain {

/// "512.8 KiB".
std::string BytesText(int64_t bytes);

/// A line of totals, a line for each of the `count` largest groups of arrays (of equal shape and
/// line), and a line for each of the `count` programs that need the most memory.
std::string MemoryReport(const std::vector<tensor::DeviceData::Live>& arrays, size_t count);

/// A line for each of the `count` largest arrays that a graph computes, each beginning with a
/// newline.
std::string LargestText(const GraphSnapshot& record, size_t count);

/// The device memory that a program needs while it runs. Its temporaries must be known.
int64_t PeakOf(const runtime::Executable::MemoryUse& memory);

/// "512.8 KiB: 0 B temporaries, 256.3 KiB arguments, 256.5 KiB outputs", by the compiler's
/// statistics.
std::string MemoryText(const runtime::Executable::MemoryUse& memory);

/// The advice "With the batch in 4 microbatches …" for a program that does not fit: the number of
/// microbatches with which it would. Estimated from its temporaries, which shrink with the batch.
/// Empty if no number of microbatches helps, or if the plugin does not tell how much memory there
/// is.
std::string MicrobatchText(const runtime::Executable::MemoryUse& memory,
                           const runtime::MemoryInfo& device);

/// A function that names the holders of these arrays; null: unknown. Set by the bindings.
using HoldersFunction = std::string (*)(const std::vector<tensor::DeviceData::Live>& arrays);
void SetHoldersFunction(HoldersFunction function);

HoldersFunction GetHoldersFunction();

}  // namespace torch_xla::explain
