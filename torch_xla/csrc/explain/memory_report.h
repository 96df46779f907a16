// What is in device memory, by size and by the user's line that made it.
#pragma once

#include <string>
#include <vector>

#include "explain/graph_record.h"
#include "runtime/client.h"
#include "tensor/device_data.h"

namespace torch_xla::lazy {

/// "512.8 KiB".
std::string BytesText(int64_t bytes);

/// A line of totals, one for each of the `count` largest groups of arrays that are alike (shape and
/// line), and one for each of the `count` programs that need the most.
std::string MemoryReport(const std::vector<DeviceData::Live>& arrays, size_t count);

/// A line for each of the `count` largest arrays that a graph computes, each after a newline.
std::string LargestText(const GraphRecord& record, size_t count);

/// What a program whose temporaries are known needs on its device while it runs.
int64_t PeakOf(const runtime::Executable::MemoryUse& memory);

/// "512.8 KiB: 0 B temporaries, 256.3 KiB arguments, 256.5 KiB outputs", by the compiler's own
/// statistics.
std::string MemoryText(const runtime::Executable::MemoryUse& memory);

/// "With the batch in 4 microbatches …": in how many, if by them a program would fit that does not.
/// By its temporaries, which are what shrinks with the batch; empty where no number of them helps,
/// or the plugin does not say how much memory there is.
std::string MicrobatchText(const runtime::Executable::MemoryUse& memory,
                           const runtime::MemoryInfo& device);

/// Says what holds these arrays. Set by the bindings; null: not known.
using HoldersFunction = std::string (*)(const std::vector<DeviceData::Live>& arrays);
void SetHoldersFunction(HoldersFunction function);

HoldersFunction GetHoldersFunction();

}  // namespace torch_xla::lazy
