// Registers this library's kernels with PyTorch's dispatcher.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <initializer_list>
#include <utility>

namespace torch_xla::aten {

/// Kernels of aten operators for xla, registered for the life of the process. codegen/templates.py
/// compiles the kernels against declarations that are generated from the operators' schemas, so no
/// schema needs to be inferred, compared and stored for each of them, as torch/library.h does.
class Kernels {
 public:
  struct Kernel {
    template <typename Return, typename... Arguments>
    Kernel(const char* name, Return (*function)(Arguments...))
        : name(name),
          function(c10::KernelFunction::makeFromUnboxedRuntimeFunction(function)),
          signature(c10::impl::CppSignature::make<Return(Arguments...)>()) {}

    const char* name;  // "add.Tensor"
    c10::KernelFunction function;
    c10::impl::CppSignature signature;
  };

  Kernels(std::initializer_list<Kernel> kernels);
};

}  // namespace torch_xla::aten
