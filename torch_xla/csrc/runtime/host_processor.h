// The properties of the host's processor that machine code depends on.
#pragma once

#include <iosfwd>
#include <string>

namespace torch_xla::runtime {

/// Maker, model and features of the first processor in a text like /proc/cpuinfo.
std::string DescribeProcessor(std::istream& cpuinfo);

/// The description of this host's processor; empty if the system does not tell.
const std::string& HostProcessor();

}  // namespace torch_xla::runtime
