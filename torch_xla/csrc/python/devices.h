// Converts device strings ("xla:0") to ordinals. No string stands for the default device, or for no
// device if there is no client yet: then nothing is pending there, and a program on the CPU need
// not start a client.
#pragma once

#include <string>
#include <vector>

namespace torch_xla::python {

int Ordinal(const std::string& device);
std::vector<int> Ordinals(const std::vector<std::string>& devices);

}  // namespace torch_xla::python
