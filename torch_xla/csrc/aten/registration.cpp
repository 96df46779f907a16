#include "aten/registration.h"

#include <string_view>
#include <vector>

namespace torch_xla::aten {
namespace {

c10::OperatorName OperatorNamed(std::string_view name) {
  const size_t dot = name.find('.');
  const bool is_plain = dot == std::string_view::npos;
  return {"aten::" + std::string(name.substr(0, dot)),
          std::string(is_plain ? "" : name.substr(dot + 1))};
}

}  // namespace

Kernels::Kernels(std::initializer_list<Kernel> kernels) {
  // Never destroyed, since the dispatcher may be destroyed earlier.
  static auto& handles = *new std::vector<c10::RegistrationHandleRAII>();
  handles.reserve(handles.size() + kernels.size());
  for (const Kernel& kernel : kernels) {
    handles.push_back(c10::Dispatcher::singleton().registerImpl(
        OperatorNamed(kernel.name), c10::DispatchKey::XLA, kernel.function, kernel.signature,
        /*inferred_function_schema=*/nullptr, "torch_xla"));
  }
}

}  // namespace torch_xla::aten
