#include "ir/source.h"

#include <algorithm>

namespace torch_xla::ir {
namespace {

LocationFunction location_function = nullptr;

}  // namespace

void SetLocationFunction(LocationFunction function) { location_function = function; }

const SourceLocation* CurrentLocation() {
  return location_function ? location_function() : nullptr;
}

int SourceCode::LineAt(uint32_t offset) const {
  auto after = std::upper_bound(lines.begin(), lines.end(), offset,
                                [](uint32_t at, const Range& range) { return at < range.begin; });
  return after == lines.begin() ? 0 : std::prev(after)->line;
}

std::string SourceLocation::ToString() const {
  std::string text = code->file;
  if (const int known = line(); known != 0) text += ":" + std::to_string(known);
  if (backward) text += " (backward)";
  return text;
}

std::string LineOf(const SourceLocation* location) {
  return location ? location->ToString() : "an unknown line";
}

}  // namespace torch_xla::ir
