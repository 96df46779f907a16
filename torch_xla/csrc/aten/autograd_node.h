// Helpers for this library's own autograd nodes.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace torch_xla::autograd {

/// Makes an autograd node in the kind of pointer that this release of PyTorch uses.
template <typename Backward, typename... Args>
auto MakeBackward(Args&&... args) {
  if constexpr (std::is_base_of_v<c10::intrusive_ptr_target, torch::autograd::Node>) {
    return c10::make_intrusive<Backward>(std::forward<Args>(args)...);
  } else {
    return std::shared_ptr<Backward>(new Backward(std::forward<Args>(args)...),
                                     [](auto* node) { deleteNode(node); });
  }
}

/// The result of PyTorch's own autograd kernel, which all devices without one of their own share.
template <typename Operator, typename... Args>
auto OfPyTorch(c10::DispatchKeySet keys, const at::Tensor& self, Args&&... args) {
  keys = (keys & c10::after_autograd_keyset) | c10::DispatchKeySet(c10::DispatchKey::AutogradOther);
  return Operator::redispatch(keys, self, std::forward<Args>(args)...);
}

}  // namespace torch_xla::autograd
