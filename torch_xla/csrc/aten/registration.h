// How this library's kernels come to PyTorch's dispatcher.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <initializer_list>
#include <utility>

namespace torch_xla::aten {

/// Kernels of operators of aten on xla, there while the process lives. The declarations that
/// codegen/templates.py compiles them against are made of the operators' schemas, so that none is
/// inferred of each, compared and kept, as torch/library.h does.
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
