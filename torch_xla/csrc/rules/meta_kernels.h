// Kernels that tell the shapes of an operator's results where PyTorch's Meta kernel is written in
// Python, is missing, or differs from the CPU's kernel. They are not registered for `aten`, since
// that would affect other users of Meta tensors, nor as operators of a library of our own, since
// the dispatcher has a large table for each operator.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <initializer_list>
#include <string_view>

namespace torch_xla::rules {

struct MetaKernel {
  /// A kernel for aten::`name` ("relu", "where.self"). The function's type gives the arguments.
  template <typename Function>
  MetaKernel(std::string_view name, Function* function)
      : name(name), kernel(c10::KernelFunction::makeFromUnboxedRuntimeFunction(function)) {}

  std::string_view name;
  c10::KernelFunction kernel;
};

/// Registers kernels while this library is loaded, through a constant for each list of kernels. The
/// names are not copied, so they must live for ever.
struct MetaKernels {
  MetaKernels(std::initializer_list<MetaKernel> kernels);
};

/// The kernel of an operator; null if there is none.
const c10::KernelFunction* FindMetaKernel(const c10::OperatorName& op);

}  // namespace torch_xla::rules
