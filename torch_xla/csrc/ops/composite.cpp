// Operators that are composed of others here, since PyTorch has neither a Meta kernel nor a
// decomposition for them.
#include <ATen/TensorOperators.h>
#include <ATen/ops/_conj_physical.h>
#include <ATen/ops/_weight_norm_differentiable_backward.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/einsum.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ldexp_native.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/linear_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "XLANativeFunctions.h"
#include "XLAOps.h"
#include "aten/assign.h"
#include "aten/node_builder.h"

namespace torch_xla {
namespace {

/// As at::native::linspace, which counts each half from its own end, so that the last number is
/// `end`. The ends are rounded to the dtype of `options`; the result has a wider dtype.
at::Tensor Linspace(const at::Scalar& start, const at::Scalar& end, int64_t steps,
                    const at::TensorOptions& options) {
  TORCH_CHECK(steps >= 0, "number of steps must be non-negative");
  const at::ScalarType dtype = c10::typeMetaToScalarType(options.dtype());
  const at::ScalarType wide = c10::isIntegralType(dtype, true)    ? at::kDouble
                              : c10::isReducedFloatingType(dtype) ? at::kFloat
                                                                  : dtype;
  // Without numbers the ends may be anything.
  if (steps == 0) return at::empty({0}, options.dtype(wide));
  const at::Tensor first = at::scalar_tensor(start, options).to(wide);
  if (steps == 1) return first.reshape({1});
  TORCH_CHECK_NOT_IMPLEMENTED(dtype != at::kBool, "\"linspace_cpu\" not implemented for 'Bool'");
  const at::Tensor last = at::scalar_tensor(end, options).to(wide);
  const at::Tensor step = (last - first) / (steps - 1);
  const at::Tensor index = at::arange(steps, options.dtype(c10::toRealValueType(wide)));
  const at::Tensor low = first + step * index, high = last - step * ((steps - 1) - index);
  return at::where(at::arange(steps, options.dtype(at::kLong)) < steps / 2, low, high);
}

/// `result` after `src` was copied to `slice`, a view of it.
at::Tensor CopyTo(const at::Tensor& slice, const at::Tensor& src, at::Tensor result) {
  TORCH_CHECK(src.sizes() == slice.sizes(),
              "expected src to have a size equal to the slice of self. src size = ", src.sizes(),
              ", slice size = ", slice.sizes());
  slice.copy_(src);
  return result;
}

/// A letter for each dimension that is not in `without`.
std::string Letters(int64_t rank, at::IntArrayRef without) {
  std::string letters;
  for (int64_t i = 0; i < rank; ++i) {
    if (std::find(without.begin(), without.end(), i) == without.end()) {
      letters += static_cast<char>('a' + i);
    }
  }
  return letters;
}

at::OptionalIntArrayRef Given(at::IntArrayRef dim) {
  return dim.empty() ? at::OptionalIntArrayRef() : at::OptionalIntArrayRef(dim);
}

}  // namespace

at::Tensor autograd::linear(const at::Tensor& input, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias) {
  // PyTorch's formula for all other devices; for this device it would add the bias in place.
  const bool has_bias = bias && bias->defined() && bias->dim() == 1;
  if (!has_bias || input.dim() < 3 || weight.dim() != 2) {
    return at::compositeimplicitautograd::linear(input, weight, bias);
  }
  std::vector<c10::SymInt> sizes = input.sym_sizes().vec();
  sizes.back() = weight.sym_size(0);
  return at::addmm(*bias, input.flatten(0, -2), weight.t()).view_symint(sizes);
}

// `torch.norm` calls these for this device, and `linalg.vector_norm` for PyTorch's list of devices.
// DTensor can split the latter alone, and takes an empty list for no dimension.
at::Tensor autograd::norm_ScalarOpt_dim(const at::Tensor& self, const std::optional<at::Scalar>& p,
                                        at::IntArrayRef dim, bool keepdim) {
  return at::linalg_vector_norm(self, p.value_or(2.0), Given(dim), keepdim);
}

at::Tensor autograd::norm_ScalarOpt_dim_dtype(const at::Tensor& self,
                                              const std::optional<at::Scalar>& p,
                                              at::IntArrayRef dim, bool keepdim,
                                              at::ScalarType dtype) {
  return at::linalg_vector_norm(self, p.value_or(2.0), Given(dim), keepdim, dtype);
}

at::Tensor& XLANativeFunctions::conj_physical_(at::Tensor& self) {
  return self.is_complex() ? self.copy_(at::_conj_physical(self)) : self;
}

namespace {

/// Whether ldexp is exact here. For other dtypes it is composed of pow and mul.
bool ScalesExactly(const at::Tensor& self, const at::Tensor& other) {
  return self.is_floating_point() && at::isIntegralType(other.scalar_type(), true);
}

}  // namespace

at::Tensor XLANativeFunctions::ldexp_Tensor(const at::Tensor& self, const at::Tensor& other) {
  if (!ScalesExactly(self, other)) return at::native::ldexp(self, other);
  aten::NodeBuilder builder(ir::ops::ldexp_Tensor);
  builder.Add(self, other);
  return builder.Single();
}

at::Tensor& XLANativeFunctions::ldexp_(at::Tensor& self, const at::Tensor& other) {
  if (!ScalesExactly(self, other)) return at::native::ldexp_(self, other);
  aten::NodeBuilder builder(ir::ops::ldexp_Tensor);
  builder.Writes(self, &self);
  builder.Add(self, other);
  builder.InPlace(self);
  return self;
}

at::Tensor& XLANativeFunctions::ldexp_out(const at::Tensor& self, const at::Tensor& other,
                                          at::Tensor& out) {
  if (!ScalesExactly(self, other)) return at::native::ldexp_out(self, other, out);
  aten::NodeBuilder builder(ir::ops::ldexp_Tensor);
  builder.Writes(out);
  builder.Add(self, other);
  builder.Out({&out}, "out");
  return out;
}

// Python's operators << and >> have names of their own.
#define SHIFT(name, inplace, shift)                                                               \
  at::Tensor XLANativeFunctions::name##_Scalar(const at::Tensor& self, const at::Scalar& other) { \
    return self.shift(other);                                                                     \
  }                                                                                               \
  at::Tensor XLANativeFunctions::name##_Tensor(const at::Tensor& self, const at::Tensor& other) { \
    return self.shift(other);                                                                     \
  }                                                                                               \
  at::Tensor& XLANativeFunctions::inplace##_Scalar(at::Tensor& self, const at::Scalar& other) {   \
    return self.shift##_(other);                                                                  \
  }                                                                                               \
  at::Tensor& XLANativeFunctions::inplace##_Tensor(at::Tensor& self, const at::Tensor& other) {   \
    return self.shift##_(other);                                                                  \
  }
SHIFT(__lshift__, __ilshift__, bitwise_left_shift)
SHIFT(__rshift__, __irshift__, bitwise_right_shift)
#undef SHIFT

at::Tensor& XLANativeFunctions::linspace_out(const at::Scalar& start, const at::Scalar& end,
                                             int64_t steps, at::Tensor& out) {
  aten::AssignNumbers(out, Linspace(start, end, steps, out.options()).to(out.scalar_type()));
  return out;
}

at::Tensor& XLANativeFunctions::logspace_out(const at::Scalar& start, const at::Scalar& end,
                                             int64_t steps, double base, at::Tensor& out) {
  if (steps == 1) {  // PyTorch does not round the exponent to the dtype here.
    const bool is_complex = at::isComplexType(out.scalar_type());
    const at::Scalar power = is_complex
                                 ? at::Scalar(std::pow(base, start.to<c10::complex<double>>()))
                                 : at::Scalar(std::pow(base, start.to<double>()));
    aten::AssignNumbers(out, at::full({1}, power, out.options()));
    return out;
  }
  const at::Tensor exponents = Linspace(start, end, steps, out.options());
  aten::AssignNumbers(out, at::pow(base, exponents).to(out.scalar_type()));
  return out;
}

at::Tensor XLANativeFunctions::_trilinear(const at::Tensor& i1, const at::Tensor& i2,
                                          const at::Tensor& i3, at::IntArrayRef expand1,
                                          at::IntArrayRef expand2, at::IntArrayRef expand3,
                                          at::IntArrayRef sumdim, int64_t /*unroll_dim*/) {
  const auto rank = i1.dim() + static_cast<int64_t>(expand1.size());
  return at::einsum(Letters(rank, expand1) + ',' + Letters(rank, expand2) + ',' +
                        Letters(rank, expand3) + "->" + Letters(rank, sumdim),
                    {i1, i2, i3});
}

at::Tensor XLANativeFunctions::fractional_max_pool3d_backward(const at::Tensor& grad_output,
                                                              const at::Tensor& self,
                                                              at::IntArrayRef /*kernel_size*/,
                                                              at::IntArrayRef /*output_size*/,
                                                              const at::Tensor& indices) {
  return at::zeros_like(self)
      .flatten(-3)
      .scatter_add(-1, indices.flatten(-3), grad_output.flatten(-3))
      .view_as(self);
}

// Write to a view of a copy, so that the offset is not part of the program.
at::Tensor XLANativeFunctions::as_strided_scatter(const at::Tensor& self, const at::Tensor& src,
                                                  at::IntArrayRef size, at::IntArrayRef stride,
                                                  std::optional<int64_t> storage_offset) {
  at::Tensor result = self.clone();
  return CopyTo(result.as_strided(size, stride, storage_offset), src, result);
}

at::Tensor XLANativeFunctions::slice_scatter(const at::Tensor& self, const at::Tensor& src,
                                             int64_t dim, std::optional<int64_t> start,
                                             std::optional<int64_t> end, int64_t step) {
  at::Tensor result = self.clone();
  return CopyTo(result.slice(dim, start, end, step), src, result);
}

at::Tensor XLANativeFunctions::select_scatter(const at::Tensor& self, const at::Tensor& src,
                                              int64_t dim, int64_t index) {
  at::Tensor result = self.clone();
  return CopyTo(result.select(dim, index), src, result);
}

at::Tensor XLANativeFunctions::diagonal_scatter(const at::Tensor& self, const at::Tensor& src,
                                                int64_t offset, int64_t dim1, int64_t dim2) {
  at::Tensor result = self.clone();
  return CopyTo(result.diagonal(offset, dim1, dim2), src, result);
}

std::tuple<at::Tensor, at::Tensor> XLANativeFunctions::_weight_norm_interface_backward(
    const at::Tensor& grad_w, const at::Tensor& saved_v, const at::Tensor& saved_g,
    const at::Tensor& saved_norms, int64_t dim) {
  return at::_weight_norm_differentiable_backward(grad_w, saved_v, saved_g, saved_norms, dim);
}

}  // namespace torch_xla
