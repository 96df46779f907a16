// Device strings ("xla:0") as ordinals. None are the default device, or no device where no client
// was started yet: nothing is pending there, and a program on the CPU need not start one.
#pragma once

#include <string>
#include <vector>

namespace torch_xla::python {

int Ordinal(const std::string& device);
std::vector<int> Ordinals(const std::vector<std::string>& devices);

}  // namespace torch_xla::python
