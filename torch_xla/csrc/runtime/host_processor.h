// What machine code for this host depends on.
#pragma once

#include <iosfwd>
#include <string>

namespace torch_xla::runtime {

/// Maker, model and features of the first processor in a text like /proc/cpuinfo's.
std::string DescribeProcessor(std::istream& cpuinfo);

/// Those of this host; nothing where the system does not tell.
const std::string& HostProcessor();

}  // namespace torch_xla::runtime
