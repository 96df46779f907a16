#include "aten/assign.h"

#include <ATen/native/Resize.h>

#include "aten/bridge.h"

namespace torch_xla::aten {
namespace {

void CheckCast(c10::ScalarType from, c10::ScalarType to) {
  TORCH_CHECK(c10::canCast(from, to), "result type ", c10::toString(from),
              " can't be cast to the desired output type ", c10::toString(to));
}

}  // namespace

void AssignInPlace(const at::Tensor& self, ir::Value value, const char* op) {
  TORCH_CHECK(self.sizes() == c10::IntArrayRef(value.shape()->dims), op, ": output with shape ",
              self.sizes(), " doesn't match the broadcast shape ",
              c10::IntArrayRef(value.shape()->dims));
  CheckCast(value.shape()->dtype, self.scalar_type());
  GetImpl(self, op)->Write(tensor::Cast(value, self.scalar_type()));
}

void AssignInPlace(const at::Tensor& self, const at::Tensor& value) {
  AssignInPlace(self, GetIrValue(value));
}

void AssignOut(const at::Tensor& out, ir::Value value, const char* op) {
  TORCH_CHECK(IsXla(out), "Expected out tensor to have device xla, but got ", out.device(),
              " instead (", op, ")");
  ir::Value cast = tensor::Cast(value, out.scalar_type());
  at::native::resize_output(out, cast.shape()->dims);
  GetImpl(out)->Write(std::move(cast));
}

void AssignOut(const at::Tensor& out, const at::Tensor& value) {
  CheckCast(value.scalar_type(), out.scalar_type());
  AssignOut(out, GetIrValue(value));
}

void AssignNumbers(const at::Tensor& out, ir::Value numbers) {
  if (IsXla(out) && out.dim() != 1 && out.numel() == numbers.shape()->dims[0]) {
    const int device = GetImpl(out)->root()->device();
    AssignInPlace(out, MakeTensor(std::move(numbers), device).view(out.sizes()));
  } else {
    AssignOut(out, std::move(numbers));
  }
}

void AssignNumbers(const at::Tensor& out, const at::Tensor& numbers) {
  AssignNumbers(out, GetIrValue(numbers));
}

}  // namespace torch_xla::aten
