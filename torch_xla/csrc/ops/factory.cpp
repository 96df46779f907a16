// Factories. A fill is device data at once, and its buffer is made on demand, so that the state of
// a training loop is a parameter of the program from the first step on.
#include <ATen/Dispatch_v2.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/kaiser_window.h>

#include <cmath>
#include <limits>

#include "XLALowerings.h"
#include "XLANativeFunctions.h"
#include "XLAOps.h"
#include "aten/assign.h"
#include "aten/bridge.h"
#include "aten/sharding.h"
#include "lowering/elementwise.h"
#include "stablehlo/arithmetic.h"
#include "tensor/device.h"
#include "tensor/node_factory.h"

namespace torch_xla::lowering::aten {

Value Constant(LoweringContext& cx, const c10::Scalar& value) {
  return stablehlo::Constant(cx.builder(), LiteralOf(value), cx.output_type());
}

namespace {

/// Floats that an integer type cannot hold become what x86 makes of them in PyTorch's CPU kernels:
/// the lowest bits of the smallest 32-bit or 64-bit integer. XLA would give the nearest integer.
Value ToInteger(Value x, ElementType to) {
  if (!runtime::IsInteger(to)) return x;
  if (runtime::IsComplex(x.element())) x = stablehlo::Real(x);
  if (!runtime::IsFloat(x.element())) return x;
  if (x.element() != ElementType::kF64) x = Convert(x, ElementType::kF32);
  const bool is_u32 = to == ElementType::kU32, is_u64 = to == ElementType::kU64;
  const bool wide = to == ElementType::kS64 || to == ElementType::kU8 || is_u64;
  const double limit = wide ? 0x1p63 : 0x1p31;
  Value upper = x >= limit;
  // Numbers in the upper half of an unsigned range are converted after `limit` is subtracted.
  Value within = is_u32 || is_u64 ? Select(upper, x - limit, x) : x;
  within =
      Convert(Select(within < limit, within, -limit), wide ? ElementType::kS64 : ElementType::kS32);
  if (!is_u32 && !is_u64) return within;
  Value bits = Convert(within, to);
  return Select(upper, bits + Convert(FullLike(x, limit), to), bits);
}

}  // namespace

Value AsOutput(LoweringContext& cx, Value self) {
  return ToOutput(cx, ToInteger(self, cx.output_element()));
}

Value arange(LoweringContext& cx, Value start, Value step) {
  // In double as in PyTorch, or in integers if all numbers are integers.
  ElementType element = runtime::IsFloat(start.element()) || runtime::IsFloat(step.element()) ||
                                runtime::IsFloat(cx.output_element())
                            ? cx.Physical(c10::ScalarType::Double)
                            : ElementType::kS64;
  Dims dims = cx.output_dims();
  Value index = stablehlo::Iota(cx.builder(), {element, dims}, 0);
  Value x =
      stablehlo::Add(To(start, element, dims), stablehlo::Multiply(index, To(step, element, dims)));
  return ToOutputElement(cx, x);
}

Value eye(LoweringContext& cx) {
  stablehlo::Type index{ElementType::kS64, cx.output_dims()};
  Value diagonal = stablehlo::Compare(stablehlo::Iota(cx.builder(), index, 0),
                                      stablehlo::Iota(cx.builder(), index, 1), Direction::kEq);
  return ToOutputElement(cx, diagonal);
}

}  // namespace torch_xla::lowering::aten

namespace torch_xla {
namespace {

using aten::MakeFilled;
using aten::MakeTensor;

int OrdinalOf(const std::optional<at::Device>& device) {
  return tensor::DeviceOrdinal(device.value_or(at::Device(at::kXLA)));
}

at::ScalarType DtypeOf(const std::optional<at::ScalarType>& dtype) {
  return dtype.value_or(c10::get_default_dtype_as_scalartype());
}

void CheckSizes(at::IntArrayRef sizes) {
  for (int64_t size : sizes) {
    TORCH_CHECK(size >= 0, "Trying to create tensor with negative dimension ", size, ": ", sizes);
  }
}

/// Refuses a number that overflows the dtype.
void CheckHolds(at::ScalarType dtype, const at::Scalar& value) {
  AT_DISPATCH_V2(dtype, "fill", AT_WRAP([&] { static_cast<void>(value.to<scalar_t>()); }),
                 AT_EXPAND(AT_ALL_TYPES_AND_COMPLEX), AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES),
                 AT_EXPAND(AT_FLOAT8_TYPES), at::kBool, at::kHalf, at::kBFloat16, at::kComplexHalf);
}

at::Tensor Like(const at::Tensor& self, const at::Scalar& value,
                const std::optional<at::ScalarType>& dtype, const std::optional<at::Layout>& layout,
                const std::optional<at::Device>& device, const std::optional<bool>& pin_memory,
                const std::optional<at::MemoryFormat>& format) {
  if (device && !device->is_xla()) {
    return at::empty_like(self, dtype, layout, device, pin_memory, format).fill_(value);
  }
  const int ordinal = tensor::DeviceOrdinal(device.value_or(self.device()));
  at::Tensor filled = MakeFilled(value, dtype.value_or(self.scalar_type()), self.sizes(), ordinal);
  // An optimizer's state gets the sharding of its parameter.
  if (const auto* sharding = aten::IsXla(self) ? aten::MarkedSharding(self) : nullptr) {
    aten::MarkSharding(filled, sharding);
  }
  return filled;
}

}  // namespace

at::Tensor XLANativeFunctions::empty_memory_format(
    at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat>) {
  CheckSizes(size);
  at::Tensor empty = MakeFilled(0, DtypeOf(dtype), size, OrdinalOf(device));
  // torch.utils.deterministic makes uninitialized memory visible.
  const at::Context& context = at::globalContext();
  if (context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory())
      [[unlikely]] {
    at::native::fill_empty_deterministic_(empty);
  }
  return empty;
}

at::Tensor XLANativeFunctions::empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                                             std::optional<at::ScalarType> dtype,
                                             std::optional<at::Layout> layout,
                                             std::optional<at::Device> device,
                                             std::optional<bool> pin_memory) {
  CheckSizes(size);
  TORCH_CHECK(size.size() == stride.size(),
              "empty_strided: expected as many strides as sizes, but got ", stride, " for ", size);
  // Strides are ignored, but the memory that they would need is checked as on the CPU.
  at::detail::computeStorageNbytes(size, stride, c10::elementSize(DtypeOf(dtype)));
  return empty_memory_format(size, dtype, layout, device, pin_memory, std::nullopt);
}

at::Tensor XLANativeFunctions::full(at::IntArrayRef size, const at::Scalar& fill_value,
                                    std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                                    std::optional<at::Device> device, std::optional<bool>) {
  CheckSizes(size);
  at::ScalarType type = dtype.value_or(
      fill_value.isBoolean()         ? at::kBool
      : fill_value.isIntegral(false) ? at::kLong
      : fill_value.isComplex()       ? c10::toComplexType(c10::get_default_dtype_as_scalartype())
                                     : c10::get_default_dtype_as_scalartype());
  CheckHolds(type, fill_value);
  return MakeFilled(fill_value, type, size, OrdinalOf(device));
}

at::Tensor& XLANativeFunctions::fill__Scalar(at::Tensor& self, const at::Scalar& value) {
  CheckHolds(self.scalar_type(), value);
  auto* impl = aten::GetImpl(self);
  ir::ShapeRef shape = ir::GetShape(self.scalar_type(), self.sizes());
  const ir::Value value_now = impl->root()->value();
  tensor::DeviceData* current = tensor::LeafData(value_now);
  if (!impl->view() && current && current->fill()) {
    // A tensor that has only ever been filled: as if it had been made with this value.
    impl->Write(tensor::MakeLeaf(c10::make_intrusive<tensor::DeviceData>(
        shape, impl->root()->device(), value, current->sharding())));
  } else {
    impl->Write(tensor::Fill(value, shape), /*same_for_all=*/true);
  }
  return self;
}

at::Tensor XLANativeFunctions::zeros(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                                     std::optional<at::Layout>, std::optional<at::Device> device,
                                     std::optional<bool>) {
  CheckSizes(size);
  return MakeFilled(0, DtypeOf(dtype), size, OrdinalOf(device));
}

/// PyTorch's zeros that take no memory, which autograd uses; a fill takes none, either.
at::Tensor XLANativeFunctions::_efficientzerotensor(at::IntArrayRef size,
                                                    std::optional<at::ScalarType> dtype,
                                                    std::optional<at::Layout> layout,
                                                    std::optional<at::Device> device,
                                                    std::optional<bool> pin_memory) {
  return zeros(size, dtype, layout, device, pin_memory);
}

at::Tensor XLANativeFunctions::ones(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                                    std::optional<at::Layout>, std::optional<at::Device> device,
                                    std::optional<bool>) {
  CheckSizes(size);
  return MakeFilled(1, DtypeOf(dtype), size, OrdinalOf(device));
}

at::Tensor XLANativeFunctions::scalar_tensor(const at::Scalar& s,
                                             std::optional<at::ScalarType> dtype,
                                             std::optional<at::Layout>,
                                             std::optional<at::Device> device,
                                             std::optional<bool>) {
  // No fill, since the value may differ from step to step.
  at::ScalarType type = DtypeOf(dtype);
  if (at::isReducedFloatingType(type)) {
    s.toDouble();  // A single one may become infinite, as it may on the CPU: where(x > 0, x,
                   // 1e300).
  } else {
    CheckHolds(type, s);
  }
  return MakeTensor(tensor::Cast(tensor::MakeScalar(s), type), OrdinalOf(device));
}

at::Tensor XLANativeFunctions::full_like(const at::Tensor& self, const at::Scalar& fill_value,
                                         std::optional<at::ScalarType> dtype,
                                         std::optional<at::Layout> layout,
                                         std::optional<at::Device> device,
                                         std::optional<bool> pin_memory,
                                         std::optional<at::MemoryFormat> format) {
  CheckHolds(dtype.value_or(self.scalar_type()), fill_value);
  return Like(self, fill_value, dtype, layout, device, pin_memory, format);
}

at::Tensor XLANativeFunctions::zeros_like(const at::Tensor& self,
                                          std::optional<at::ScalarType> dtype,
                                          std::optional<at::Layout> layout,
                                          std::optional<at::Device> device,
                                          std::optional<bool> pin_memory,
                                          std::optional<at::MemoryFormat> format) {
  return Like(self, 0, dtype, layout, device, pin_memory, format);
}

at::Tensor XLANativeFunctions::ones_like(const at::Tensor& self,
                                         std::optional<at::ScalarType> dtype,
                                         std::optional<at::Layout> layout,
                                         std::optional<at::Device> device,
                                         std::optional<bool> pin_memory,
                                         std::optional<at::MemoryFormat> format) {
  return Like(self, 1, dtype, layout, device, pin_memory, format);
}

at::Tensor& XLANativeFunctions::arange_start_out(const at::Scalar& start, const at::Scalar& end,
                                                 const at::Scalar& step, at::Tensor& out) {
  // As at::native::arange: the numbers of an integer tensor are integers from the start, and the
  // numbers asked for determine its size, except in int64.
  const at::ScalarType dtype = out.scalar_type();
  TORCH_CHECK_NOT_IMPLEMENTED(
      dtype != at::kBool && !c10::isComplexType(dtype) && !c10::isBarebonesUnsignedType(dtype),
      "\"arange_cpu\" not implemented for '", dtype, "'");
  const bool integral = c10::isIntegralType(dtype, true);
  const at::Scalar first = integral ? at::Scalar(start.toLong()) : start;
  const at::Scalar last = integral ? at::Scalar(end.toLong()) : end;
  const at::Scalar stride = integral ? at::Scalar(step.toLong()) : step;
  const double from = first.toDouble(), to = last.toDouble(), by = stride.toDouble();
  TORCH_CHECK(step.toDouble() != 0, "step must be nonzero");
  TORCH_CHECK_VALUE(by != 0, "step must be nonzero");  // 0.5 among integers
  TORCH_CHECK(std::isfinite(start.toDouble()) && std::isfinite(end.toDouble()),
              "unsupported range: ", start.toDouble(), " -> ", end.toDouble());
  TORCH_CHECK((by > 0 && to >= from) || (by < 0 && to <= from),
              "upper bound and lower bound inconsistent with step sign");
  double size = std::ceil((end.toDouble() - start.toDouble()) / step.toDouble());
  if (dtype == at::kLong) {
    const int64_t n = stride.toLong();
    size =
        std::ceil(static_cast<double>((last.toLong() - first.toLong() + n - (n > 0 ? 1 : -1)) / n));
  }
  TORCH_CHECK(size >= 0 && size <= static_cast<double>(std::numeric_limits<int64_t>::max()),
              "invalid size, possible overflow?");
  // A lowering may read a step among integers, such as the distance of bags of equal length.
  const ir::Value step_value = integral
                                   ? tensor::MakeConstant(stride, stride.type(), /*wrapped=*/true)
                                   : tensor::MakeScalar(stride);
  aten::AssignNumbers(
      out, tensor::MakeNode(&ir::ops::arange, {tensor::MakeScalar(first), step_value}, {},
                            ir::GetShape(dtype, {static_cast<int64_t>(size)})));
  return out;
}

at::Tensor& XLANativeFunctions::eye_m_out(int64_t n, int64_t m, at::Tensor& out) {
  TORCH_CHECK(n >= 0, "n must be greater or equal to 0, got ", n);
  TORCH_CHECK(m >= 0, "m must be greater or equal to 0, got ", m);
  aten::AssignOut(out,
                  tensor::MakeNode(&ir::ops::eye, {}, {}, ir::GetShape(out.scalar_type(), {n, m})));
  return out;
}

at::Tensor& XLANativeFunctions::eye_out(int64_t n, at::Tensor& out) { return eye_m_out(n, n, out); }

// PyTorch's kernel does not take this device, and a window is short, so the CPU computes it.
at::Tensor XLANativeFunctions::kaiser_window_beta(int64_t window_length, bool periodic, double beta,
                                                  std::optional<at::ScalarType> dtype,
                                                  std::optional<at::Layout> layout,
                                                  std::optional<at::Device> device,
                                                  std::optional<bool>) {
  return at::kaiser_window(window_length, periodic, beta, dtype, layout, at::kCPU, false)
      .to(device.value_or(at::Device(at::kXLA)));
}

at::Tensor XLANativeFunctions::kaiser_window_periodic(int64_t window_length, bool periodic,
                                                      std::optional<at::ScalarType> dtype,
                                                      std::optional<at::Layout> layout,
                                                      std::optional<at::Device> device,
                                                      std::optional<bool> pin_memory) {
  return kaiser_window_beta(window_length, periodic, 12.0, dtype, layout, device, pin_memory);
}

at::Tensor XLANativeFunctions::kaiser_window(int64_t window_length,
                                             std::optional<at::ScalarType> dtype,
                                             std::optional<at::Layout> layout,
                                             std::optional<at::Device> device,
                                             std::optional<bool> pin_memory) {
  return kaiser_window_periodic(window_length, true, dtype, layout, device, pin_memory);
}

}  // namespace torch_xla
