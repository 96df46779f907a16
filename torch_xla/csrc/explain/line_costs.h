// What the lines of the user's program cost on the device.
#pragma once

#include <string>
#include <vector>

#include "explain/graph_record.h"

namespace torch_xla::lazy {

struct LineCost {
  std::string line;
  double flops = 0, bytes = 0;
  size_t operations = 0;
};

/// A result of an operation.
struct ResultCost {
  const char* operation;  // "aten::mm"
  ir::ShapeRef shape;
  int64_t bytes;
  const ir::SourceLocation* location;
};

/// Those that take the most, without views of others.
std::vector<ResultCost> LargestResults(const GraphRecord& record, size_t count);

/// By the shapes of the operations of a graph, one of each line.
std::vector<LineCost> CostsByLine(const GraphRecord& record);

}  // namespace torch_xla::lazy
