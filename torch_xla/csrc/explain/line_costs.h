// The costs on the device of the lines of the user's program.
#pragma once

#include <string>
#include <vector>

#include "explain/graph_snapshot.h"

namespace torch_xla::explain {

struct LineCost {
  std::string line;
  double flops = 0, bytes = 0;
  size_t operations = 0;
};

/// The result of an operation, with its size.
struct ResultCost {
  const char* operation;  // "aten::mm"
  ir::ShapeRef shape;
  int64_t bytes;
  const ir::SourceLocation* location;
};

/// The largest results, without views.
std::vector<ResultCost> LargestResults(const GraphSnapshot& record, size_t count);

/// The costs of a graph by line, estimated from the shapes of its operations.
std::vector<LineCost> CostsByLine(const GraphSnapshot& record);

}  // namespace torch_xla::explain
