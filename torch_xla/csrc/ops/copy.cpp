// Copies, fills, conversions, and reading a value.
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "XLANativeFunctions.h"
#include "XLAOps.h"
#include "aten/assign.h"
#include "aten/bridge.h"
#include "aten/overlap.h"
#include "aten/torch_storage.h"
#include "debug/metrics.h"
#include "exec/transfer.h"
#include "tensor/device.h"
#include "tensor/origin.h"

namespace torch_xla {
namespace {

using aten::GetImpl;
using aten::GetIrValue;
using aten::IsXla;
using aten::MakeTensor;

/// Copies to or from other devices go by way of the host.
at::Tensor OnHost(const at::Tensor& tensor) {
  return IsXla(tensor) ? aten::ToCpu(tensor) : tensor.cpu();
}

/// The value of `src` on the device of `self`, of the dtype and sizes of `self`.
ir::Value ValueFor(const at::Tensor& self, const at::Tensor& src) {
  const int device = GetImpl(self)->root()->device();
  ir::Value value;
  if (IsXla(src) && GetImpl(src)->root()->device() == device) {
    value = GetIrValue(src);
  } else if (src.device().is_cpu() && src.dim() == 0 && self.dim() > 0) {
    value = tensor::MakeScalar(at::_local_scalar_dense(src), src.scalar_type(), false);
  } else {
    value = tensor::MakeLeaf(exec::ToDevice(OnHost(src).to(self.scalar_type()), device));
  }
  return tensor::Expand(tensor::Cast(value, self.scalar_type()), self.sizes());
}

void CheckExpandable(const at::Tensor& from, const at::Tensor& to) {
  bool fits = from.dim() <= to.dim();
  for (int64_t i = 1; fits && i <= from.dim(); ++i) {
    fits = from.size(-i) == to.size(-i) || from.size(-i) == 1;
  }
  TORCH_CHECK(fits, "output with shape ", to.sizes(), " doesn't match the broadcast shape of ",
              from.sizes());
}

at::Tensor& CopyInto(at::Tensor& self, const at::Tensor& src) {
  CheckExpandable(src, self);
  if (IsXla(self)) {
    aten::CheckNoPartialOverlap(self, src);
    GetImpl(self)->Write(ValueFor(self, src));
    return self;
  }
  // A storage without bytes has no address.
  if ((self.is_xla() || !IsXla(src)) && src.numel() == 0) return self;
  if (self.is_xla() && src.is_cpu()) {
    aten::WriteToStorage(self, src);
    return self;
  }
  if (src.is_xla() && !IsXla(src)) return self.copy_(aten::ReadStorage(src));
  if (self.is_cpu() && self.sizes() == src.sizes()) {
    aten::CopyToCpu(src, self);
  } else {
    self.copy_(OnHost(src));
  }
  return self;
}

}  // namespace

at::Tensor& XLANativeFunctions::copy_(at::Tensor& self, const at::Tensor& src, bool) {
  return CopyInto(self, src);
}

at::Tensor XLANativeFunctions::copy(const at::Tensor& self, const at::Tensor& src, bool) {
  CheckExpandable(src, self);
  return MakeTensor(ValueFor(self, src), GetImpl(self)->root()->device());
}

at::Tensor XLANativeFunctions::_copy_from(const at::Tensor& self, const at::Tensor& dst, bool) {
  at::Tensor target = dst;
  return CopyInto(target, self);
}

at::Tensor XLANativeFunctions::_copy_from_and_resize(const at::Tensor& self,
                                                     const at::Tensor& dst) {
  at::Tensor target = dst;
  if (target.sizes() != self.sizes()) target.resize_(self.sizes());
  return CopyInto(target, self);
}

at::Tensor XLANativeFunctions::_to_copy(const at::Tensor& self, std::optional<at::ScalarType> dtype,
                                        std::optional<at::Layout>, std::optional<at::Device> device,
                                        std::optional<bool>, bool,
                                        std::optional<at::MemoryFormat>) {
  const at::Device target = device.value_or(self.device());
  const at::ScalarType type = dtype.value_or(self.scalar_type());
  if (!IsXla(self) || !target.is_xla()) {
    at::Tensor copy = at::empty(self.sizes(), self.options().device(target).dtype(type));
    return CopyInto(copy, self);
  }
  const int ordinal = tensor::DeviceOrdinal(target);
  if (ordinal != GetImpl(self)->root()->device()) {
    return aten::FromCpu(aten::ToCpu(self).to(type), ordinal);
  }
  return MakeTensor(tensor::Cast(GetIrValue(self), type), ordinal);
}

at::Tensor XLANativeFunctions::clone(const at::Tensor& self, std::optional<at::MemoryFormat>) {
  // Values are immutable and storages are not, so a new storage with the same value is a copy.
  auto* impl = GetImpl(self);
  return MakeTensor(impl->Read(), impl->root()->device());
}

at::Tensor& XLANativeFunctions::fill__Tensor(at::Tensor& self, const at::Tensor& value) {
  TORCH_CHECK(value.dim() == 0, "fill_ only supports 0-dimension value tensor but got tensor with ",
              value.dim(), " dimensions.");
  return copy_(self, value, false);
}

at::Tensor& XLANativeFunctions::zero_(at::Tensor& self) { return fill__Scalar(self, 0); }

at::Scalar XLANativeFunctions::_local_scalar_dense(const at::Tensor& self) {
  // This read is no fallback, but PyTorch/XLA has always counted reads in this way.
  static auto& reads = debug::GetCounter("aten::_local_scalar_dense");
  reads.Add();
  tensor::CauseScope cause(".item()");
  return at::_local_scalar_dense(aten::ToCpu(self));
}

const at::Tensor& XLANativeFunctions::resize_(const at::Tensor& self, at::IntArrayRef size,
                                              std::optional<at::MemoryFormat>) {
  auto* impl = GetImpl(self);
  if (self.sizes() == size) return self;
  int64_t offset = 0;
  if (const tensor::View* view = impl->view()) {
    const bool is_part = view->steps.size() == 1 && !view->last().bitcast;
    if (!is_part && impl->root()->shape()->numel == 0) {
      // Other views of the storage cannot see any element.
      ir::Value content = tensor::Fill(0, ir::GetShape(self.scalar_type(), size));
      impl->Reset(c10::make_intrusive<tensor::Storage>(std::move(content), impl->root()->device()),
                  nullptr, size);
      return self;
    }
    TORCH_CHECK(is_part,
                "resize_: a view of a reshaped transpose or of another dtype cannot be resized");
    offset = view->last().offset;
  }
  tensor::Ints sizes(size.begin(), size.end()), strides = tensor::ContiguousStrides(size);
  tensor::Storage& root = *impl->root();
  // As in PyTorch, elements keep their places in memory, and room is added at the end. Other views
  // of the storage keep their elements.
  const int64_t have = root.shape()->numel;
  const int64_t need = offset + c10::multiply_integers(size);
  if (need > have) {
    ir::Value content =
        GetIrValue(at::empty(offset == 0 ? size : c10::IntArrayRef(need), self.options()));
    if (have > 0) {
      ir::Value old = tensor::ReadView(root, tensor::RestrideView(nullptr, {have}, {1}, 0).get());
      auto larger = c10::make_intrusive<tensor::Storage>(std::move(content), root.device());
      tensor::WriteView(*larger, tensor::RestrideView(nullptr, {have}, {1}, 0).get(),
                        std::move(old));
      content = larger->value();
    }
    root.Assign(std::move(content));
  }
  impl->Reset(impl->root(),
              tensor::RestrideView(nullptr, std::move(sizes), std::move(strides), offset), size);
  if (c10::IntArrayRef(root.shape()->dims) == size) impl->Reset(impl->root(), nullptr, size);
  return self;
}

at::Tensor& XLANativeFunctions::set__source_Tensor(at::Tensor& self, const at::Tensor& source) {
  auto* from = GetImpl(source, "set_");
  TORCH_CHECK(self.scalar_type() == source.scalar_type(), "set_: expected a source of dtype ",
              self.scalar_type(), ", got ", source.scalar_type());
  GetImpl(self, "set_")->Reset(from->root(), from->view_ptr(), source.sizes());
  return self;
}

}  // namespace torch_xla
