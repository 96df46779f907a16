// Operators that answer with a Python value.
#include <ATen/ops/all.h>
#include <ATen/ops/eq.h>

#include "XLANativeFunctions.h"
#include "aten/bridge.h"

namespace torch_xla {

bool XLANativeFunctions::equal(const at::Tensor& self, const at::Tensor& other) {
  if (self.sizes() != other.sizes()) return false;
  return self.eq(other).all().item<bool>();
}

}  // namespace torch_xla
