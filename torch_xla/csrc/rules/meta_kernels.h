// Kernels that tell the shapes of an operator's results where PyTorch's own are in Python, missing,
// or other than the CPU's. They are no Meta kernels of `aten`, which belong to every program, and
// no operators of a library of ours, each of which has a table of 6 kB in the dispatcher.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <initializer_list>
#include <string_view>

namespace torch_xla::lazy {

struct MetaKernel {
  /// Of aten::`name` ("relu", "where.self"), by a function of its type.
  template <typename Function>
  MetaKernel(std::string_view name, Function* function)
      : name(name), kernel(c10::KernelFunction::makeFromUnboxedRuntimeFunction(function)) {}

  std::string_view name;
  c10::KernelFunction kernel;
};

/// Adds its kernels to those that are found, while this library is loaded: one constant for each
/// list of them. Names are not copied.
struct MetaKernels {
  MetaKernels(std::initializer_list<MetaKernel> kernels);
};

/// The one of an operator; null where there is none.
const c10::KernelFunction* FindMetaKernel(const c10::OperatorName& op);

}  // namespace torch_xla::lazy
