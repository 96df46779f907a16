#include "runtime/host_processor.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string_view>

namespace torch_xla::runtime {

std::string DescribeProcessor(std::istream& cpuinfo) {
  static constexpr std::string_view kFields[] = {
      "vendor_id",       "cpu family", "model",    "flags",         // x86
      "CPU implementer", "CPU part",   "Features", "CPU variant"};  // Arm
  std::string description, line;
  while (std::getline(cpuinfo, line) && !line.empty()) {
    const size_t colon = line.find(':');
    std::string_view field = std::string_view(line).substr(0, colon);
    field = field.substr(0, field.find_last_not_of(" \t") + 1);
    if (colon == line.npos ||
        std::find(std::begin(kFields), std::end(kFields), field) == std::end(kFields)) {
      continue;
    }
    description.append(line, colon + 1).append(";");
  }
  return description;
}

const std::string& HostProcessor() {
  static const auto& description = *[] {
    std::ifstream file("/proc/cpuinfo");
    return new std::string(DescribeProcessor(file));
  }();
  return description;
}

}  // namespace torch_xla::runtime
