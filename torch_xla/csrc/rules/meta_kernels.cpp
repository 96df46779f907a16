#include "rules/meta_kernels.h"

#include <map>
#include <string>

namespace torch_xla::rules {
namespace {

std::map<std::string_view, c10::KernelFunction>& Kernels() {
  static auto& kernels = *new std::map<std::string_view, c10::KernelFunction>;
  return kernels;
}

}  // namespace

MetaKernels::MetaKernels(std::initializer_list<MetaKernel> kernels) {
  for (const MetaKernel& added : kernels) {
    const bool is_first = Kernels().emplace(added.name, added.kernel).second;
    TORCH_INTERNAL_ASSERT(is_first, "two Meta kernels of ", added.name);
  }
}

const c10::KernelFunction* FindMetaKernel(const c10::OperatorName& op) {
  constexpr std::string_view kNamespace = "aten::";
  if (!op.name.starts_with(kNamespace)) return nullptr;
  std::string name = op.name.substr(kNamespace.size());
  if (!op.overload_name.empty()) name += "." + op.overload_name;
  const auto found = Kernels().find(name);
  return found == Kernels().end() ? nullptr : &found->second;
}

}  // namespace torch_xla::rules
