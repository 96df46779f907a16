// Device strings ("xla:0") as ordinals; empty means the default device.
#pragma once

#include <string>
#include <vector>

namespace torch_xla::python {

int Ordinal(const std::string& device);
std::vector<int> Ordinals(const std::vector<std::string>& devices);

}  // namespace torch_xla::python
