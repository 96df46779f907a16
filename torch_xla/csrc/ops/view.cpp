// PyTorch's view operations, by strides. A node is made only when a view is read.
#include <ATen/InferSize.h>
#include <ATen/TensorUtils.h>
#include <ATen/WrapDimUtilsMulti.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_unsafe_view.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/detach_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/flatten_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/ravel_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/reshape_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/squeeze_compositeexplicitautograd_dispatch.h>
#include <ATen/ops/t_compositeexplicitautograd_dispatch.h>
#include <ATen/ops/transpose_compositeexplicitautograd_dispatch.h>
#include <ATen/ops/unsqueeze_compositeexplicitautograd_dispatch.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <c10/util/safe_numerics.h>
#include <torch/csrc/autograd/graph_task.h>

#include "XLALowerings.h"
#include "XLANativeFunctions.h"
#include "aten/bridge.h"
#include "lowering/context.h"
#include "lowering/strided_view.h"
#include "stablehlo/text.h"
#include "tensor/transposed_product.h"

namespace torch_xla {
namespace {

using aten::GetImpl;
using aten::MakeView;
using aten::XLATensorImpl;
using tensor::Ints;

/// The sizes, strides and offset of a tensor over the base of its last view step.
struct Geometry {
  explicit Geometry(const at::Tensor& tensor)
      : impl(GetImpl(tensor)), sizes(tensor.sizes().begin(), tensor.sizes().end()) {
    const tensor::View* view = impl->view();
    if (view && !view->last().bitcast) {
      strides = view->last().strides;
      offset = view->last().offset;
    } else {
      strides = tensor::ContiguousStrides(sizes);
    }
  }
  at::Tensor Make() && {
    tensor::ViewPtr view =
        tensor::RestrideView(impl->view(), std::move(sizes), std::move(strides), offset);
    c10::IntArrayRef result = view->last().sizes;
    return MakeView(*impl, std::move(view), impl->dtype(), result);
  }
  void Erase(int64_t dim) {
    sizes.erase(sizes.begin() + dim);
    strides.erase(strides.begin() + dim);
  }

  XLATensorImpl* impl;
  Ints sizes, strides;
  int64_t offset = 0;
};

bool IsDense(const Geometry& geometry) { return tensor::IsDense(geometry.sizes, geometry.strides); }

at::Tensor OnMeta(const at::Tensor& like) {
  return at::empty(like.sizes(), like.options().device(at::kMeta));
}

at::Tensor Alias(const at::Tensor& self) {
  auto* impl = GetImpl(self);
  return MakeView(*impl, impl->view_ptr(), impl->dtype(), self.sizes());
}

/// The same elements in row-major order with other sizes.
at::Tensor ViewAs(const at::Tensor& self, at::IntArrayRef size) {
  auto* impl = GetImpl(self);
  at::DimVector sizes = at::infer_size_dv(size, self.numel());
  // The whole storage in its own order: the view is made when someone reads this tensor.
  if (!impl->view_ptr()) return MakeView(*impl, nullptr, impl->dtype(), sizes);
  Geometry geometry(self);
  auto strides = at::detail::computeStride(geometry.sizes, geometry.strides, sizes);
  if (strides) {
    geometry.sizes.assign(sizes.begin(), sizes.end());
    geometry.strides.assign(strides->begin(), strides->end());
    return std::move(geometry).Make();
  }
  // Strides cannot express a view of a transpose; to the user the tensor is contiguous.
  tensor::ViewStep step;
  step.sizes.assign(sizes.begin(), sizes.end());
  step.strides = tensor::ContiguousStrides(step.sizes);
  return MakeView(*impl, tensor::AppendStep(impl->view(), std::move(step)), impl->dtype(), sizes);
}

at::Tensor Bitcast(const at::Tensor& self, at::ScalarType dtype, const Ints& sizes) {
  TORCH_CHECK(!self.is_conj() && !self.is_neg(),
              "a conjugate or negative view cannot be viewed as ", dtype,
              ": call resolve_conj() or resolve_neg() first");
  lowering::NaturalType(dtype);  // throws here, at the call, where the device has no such type
  auto* impl = GetImpl(self);
  // The reinterpretation must not depend on the storage's shape, which resize_ may change.
  tensor::ViewPtr base = impl->view_ptr();
  if (!base) {
    Geometry whole(self);
    base = tensor::RestrideView(nullptr, std::move(whole.sizes), std::move(whole.strides), 0);
  }
  tensor::ViewStep step;
  step.sizes = sizes;
  step.bitcast = dtype;
  return MakeView(*impl, tensor::AppendStep(base.get(), std::move(step)),
                  c10::scalarTypeToTypeMeta(dtype), sizes);
}

/// The number of elements in the base of the last view step of `impl`.
int64_t ElementsBelow(const XLATensorImpl& impl) {
  const tensor::View* view = impl.view();
  if (!view || (view->steps.size() == 1 && !view->last().bitcast)) {
    return impl.root()->shape()->numel;
  }
  const auto& steps = view->steps;
  return c10::multiply_integers(view->last().bitcast ? steps.back().sizes
                                                     : steps[steps.size() - 2].sizes);
}

/// The stride of every `step`-th element; refuses one that overflows.
int64_t Spaced(int64_t stride, int64_t step) {
  int64_t spaced = 0;
  TORCH_CHECK(!c10::mul_overflows(stride, step, &spaced), "a step of ", step,
              " between elements that are ", stride, " apart overflows");
  return spaced;
}

/// Whether `self` is the placeholder for a tensor while torch.compile traces. Only its sizes and
/// strides change.
bool IsStandIn(const at::Tensor& self) { return !aten::IsXla(self); }

/// The in-place forms of views: `self` becomes the same view as `view`.
template <typename Tensor>
Tensor& Become(Tensor& self, const at::Tensor& view) {
  auto* to = GetImpl(view);
  GetImpl(self)->Reset(to->root(), to->view_ptr(), view.sizes());
  return self;
}

/// Exchanges the last two dimensions of `self`.
///
/// The gradient of a weight whose transpose was multiplied is the transpose of a product. The
/// optimizer would read that with bad strides. So compute the transposed product instead, and make
/// `self` a view of it. Do so only in a backward pass, and only if the caller alone holds `self`:
/// elsewhere the product itself may be read more, and another thread might read `self`.
at::Tensor Transpose(const at::Tensor& self) {
  auto* impl = GetImpl(self);
  ir::Value product;
  if (self.use_count() == 1 && impl->root().use_count() == 1 && impl->is_whole() &&
      !impl->root()->sharding() && torch::autograd::get_current_graph_task_id() != -1) {
    product = tensor::TransposedProduct(impl->root()->value());
  }
  Geometry geometry(self);
  if (!product) {
    std::swap(geometry.sizes.end()[-1], geometry.sizes.end()[-2]);
    std::swap(geometry.strides.end()[-1], geometry.strides.end()[-2]);
    return std::move(geometry).Make();
  }
  auto root = c10::make_intrusive<tensor::Storage>(std::move(product), impl->root()->device());
  Ints strides = tensor::ContiguousStrides(root->shape()->dims);
  std::swap(strides.end()[-1], strides.end()[-2]);
  impl->Reset(std::move(root), tensor::RestrideView(nullptr, geometry.sizes, std::move(strides), 0),
              geometry.sizes);
  return MakeView(*impl, nullptr, impl->dtype(), impl->root()->shape()->dims);
}

at::Tensor SqueezeDims(const at::Tensor& self, const std::vector<bool>& which) {
  Geometry geometry(self);
  for (int64_t dim = self.dim() - 1; dim >= 0; --dim) {
    if (which[dim] && self.size(dim) == 1) geometry.Erase(dim);
  }
  return std::move(geometry).Make();
}

/// Whether the user sees a block of memory where the elements of `self` lie otherwise, so that
/// `reshape`, `flatten` and `ravel` may have to copy as they do on the CPU.
bool MayCopy(const at::Tensor& self) {
  if (!aten::IsXla(self)) return false;
  const tensor::View* view = GetImpl(self)->view();
  return view && !view->last().bitcast &&
         !tensor::IsDense(view->last().sizes, view->last().strides);
}

}  // namespace

at::Tensor autograd::reshape(const at::Tensor& self, c10::SymIntArrayRef shape) {
  const auto sizes = c10::asIntArrayRefSlowOpt(shape);
  if (sizes && MayCopy(self)) {
    const tensor::ViewStep& step = GetImpl(self)->view()->last();
    const at::DimVector inferred = at::infer_size_dv(*sizes, self.numel());
    if (!at::detail::computeStride(step.sizes, step.strides, inferred)) {
      return at::_unsafe_view(self.clone(), inferred);
    }
  }
  return at::compositeimplicitautograd::reshape_symint(self, shape);
}

at::Tensor autograd::flatten_using_ints(const at::Tensor& self, int64_t start_dim,
                                        int64_t end_dim) {
  at::Tensor view = at::compositeimplicitautograd::flatten(self, start_dim, end_dim);
  return MayCopy(self) && !view.is_same(self) ? self.reshape(view.sizes()) : view;
}

at::Tensor autograd::ravel(const at::Tensor& self) {
  return at::compositeimplicitautograd::ravel(MayCopy(self) ? self.clone() : self);
}

at::Tensor XLANativeFunctions::alias(const at::Tensor& self) { return Alias(self); }

at::Tensor XLANativeFunctions::detach(const at::Tensor& self) {
  // Making a FakeTensor detaches its meta tensor, which has the keys of this device.
  if (!aten::IsXla(self)) return at::native::detach(self);
  return Alias(self);
}

at::Tensor XLANativeFunctions::view(const at::Tensor& self, at::IntArrayRef size) {
  return ViewAs(self, size);
}

at::Tensor XLANativeFunctions::_unsafe_view(const at::Tensor& self, at::IntArrayRef size) {
  return ViewAs(self, size);
}

at::Tensor XLANativeFunctions::_reshape_alias(const at::Tensor& self, at::IntArrayRef size,
                                              at::IntArrayRef) {
  return ViewAs(self, size);
}

at::Tensor XLANativeFunctions::as_strided(const at::Tensor& self, at::IntArrayRef size,
                                          at::IntArrayRef stride,
                                          std::optional<int64_t> storage_offset) {
  TORCH_CHECK(size.size() == stride.size(), "as_strided: sizes ", size, " and strides ", stride,
              " must have the same length");
  // Strides and offset refer to the memory that the user believes the tensor to have, which
  // stride() and storage_offset() describe: a contiguous block. If the tensor is not contiguous in
  // truth, that is a block of its own that begins at storage_offset().
  Geometry geometry(self);
  const bool dense = IsDense(geometry);
  const int64_t have = dense ? ElementsBelow(*geometry.impl) : self.numel();
  const int64_t moved = storage_offset ? *storage_offset - self.storage_offset() : 0;
  geometry.offset = moved + (dense ? geometry.offset : 0);
  int64_t last = geometry.offset;
  bool empty = false, overflows = false;
  for (size_t i = 0; i < size.size(); ++i) {
    TORCH_CHECK(size[i] >= 0, "as_strided: negative size in ", size);
    TORCH_CHECK(stride[i] >= 0,
                "as_strided: Negative strides are not supported at the moment, got ", stride);
    empty |= size[i] == 0;
    int64_t extent = 0;
    overflows |= size[i] > 0 && (c10::mul_overflows(size[i] - 1, stride[i], &extent) ||
                                 c10::add_overflows(last, extent, &last));
  }
  TORCH_CHECK(empty || (!overflows && geometry.offset >= 0 && last < have), "as_strided: sizes ",
              size, ", strides ", stride, ", storage offset ", geometry.offset,
              " are out of bounds for a storage of ", have, " elements");
  geometry.sizes.assign(size.begin(), size.end());
  geometry.strides.assign(stride.begin(), stride.end());
  if (dense) return std::move(geometry).Make();
  tensor::ViewStep step{geometry.sizes, geometry.strides, geometry.offset, std::nullopt};
  return MakeView(*geometry.impl, tensor::AppendStep(geometry.impl->view(), std::move(step)),
                  geometry.impl->dtype(), size);
}

at::Tensor XLANativeFunctions::expand(const at::Tensor& self, at::IntArrayRef size, bool) {
  TORCH_CHECK(static_cast<int64_t>(size.size()) >= self.dim(), "expand(", self.toString(),
              self.sizes(), ", size=", size, "): the number of sizes provided (", size.size(),
              ") must be greater or equal to the number of dimensions in the tensor (", self.dim(),
              ")");
  Geometry geometry(self);
  const int64_t added = static_cast<int64_t>(size.size()) - self.dim();
  Ints sizes(size.size()), strides(size.size());
  for (int64_t i = static_cast<int64_t>(size.size()) - 1; i >= 0; --i) {
    const bool is_new = i < added;
    const int64_t have = is_new ? 1 : geometry.sizes[i - added];
    const int64_t want = size[i] == -1 && !is_new ? have : size[i];
    TORCH_CHECK(want >= 0, "The expanded size of the tensor (", want,
                ") isn't allowed in a leading, non-existing dimension ", i);
    TORCH_CHECK(have == want || have == 1, "The expanded size of the tensor (", want,
                ") must match the existing size (", have, ") at non-singleton dimension ", i,
                ".  Target sizes: ", size, ".  Tensor sizes: ", self.sizes());
    sizes[i] = want;
    strides[i] = have == want && !is_new ? geometry.strides[i - added] : 0;
  }
  geometry.sizes = std::move(sizes);
  geometry.strides = std::move(strides);
  return std::move(geometry).Make();
}

at::Tensor XLANativeFunctions::permute(const at::Tensor& self, at::IntArrayRef dims) {
  TORCH_CHECK(static_cast<int64_t>(dims.size()) == self.dim(),
              "permute(sparse_coo): number of dimensions in the tensor input does not match the "
              "length of the desired ordering of dimensions i.e. input.dim() = ",
              self.dim(), " is not equal to len(dims) = ", dims.size());
  Ints order;
  std::vector<bool> seen(dims.size(), false);
  for (int64_t dim : dims) {
    order.push_back(at::maybe_wrap_dim(dim, self.dim()));
    TORCH_CHECK(!seen[order.back()], "permute(): duplicate dims are not allowed.");
    seen[order.back()] = true;
  }
  if (const size_t n = order.size(); n >= 2 && order[n - 1] + 1 == order[n - 2] &&
                                     std::is_sorted(order.begin(), order.end() - 1)) {
    return Transpose(self);
  }
  Geometry geometry(self);
  Ints sizes, strides;
  for (int64_t dim : order) {
    sizes.push_back(geometry.sizes[dim]);
    strides.push_back(geometry.strides[dim]);
  }
  geometry.sizes = std::move(sizes);
  geometry.strides = std::move(strides);
  return std::move(geometry).Make();
}

at::Tensor XLANativeFunctions::transpose_int(const at::Tensor& self, int64_t dim0, int64_t dim1) {
  dim0 = at::maybe_wrap_dim(dim0, self.dim());
  dim1 = at::maybe_wrap_dim(dim1, self.dim());
  if (dim0 != dim1 && std::min(dim0, dim1) == self.dim() - 2) return Transpose(self);
  Geometry geometry(self);
  if (dim0 != dim1) {
    std::swap(geometry.sizes[dim0], geometry.sizes[dim1]);
    std::swap(geometry.strides[dim0], geometry.strides[dim1]);
  }
  return std::move(geometry).Make();
}

at::Tensor XLANativeFunctions::t(const at::Tensor& self) {
  TORCH_CHECK(self.dim() <= 2, "t() expects a tensor with <= 2 dimensions, but self is ",
              self.dim(), "D");
  return self.dim() == 2 ? Transpose(self) : Alias(self);
}

at::Tensor XLANativeFunctions::select_int(const at::Tensor& self, int64_t dim, int64_t index) {
  TORCH_CHECK_INDEX(self.dim() > 0, "select() cannot be applied to a 0-dim tensor.");
  dim = at::maybe_wrap_dim(dim, self.dim());
  const int64_t size = self.size(dim);
  TORCH_CHECK_INDEX(index >= -size && index < size, "select(): index ", index,
                    " out of range for tensor of size ", self.sizes(), " at dimension ", dim);
  Geometry geometry(self);
  geometry.offset += (index < 0 ? index + size : index) * geometry.strides[dim];
  geometry.Erase(dim);
  return std::move(geometry).Make();
}

at::Tensor XLANativeFunctions::slice_Tensor(const at::Tensor& self, int64_t dim,
                                            std::optional<int64_t> start,
                                            std::optional<int64_t> end, int64_t step) {
  TORCH_CHECK_INDEX(self.dim() > 0, "slice() cannot be applied to a 0-dim tensor.");
  dim = at::maybe_wrap_dim(dim, self.dim());
  TORCH_CHECK(step > 0, "slice step must be positive");
  const int64_t size = self.size(dim);
  auto clamp = [size](int64_t i) {
    return std::min(std::max<int64_t>(i < 0 ? i + size : i, 0), size);
  };
  const int64_t from = clamp(start.value_or(0));
  const int64_t to = std::max(clamp(end.value_or(size)), from);
  Geometry geometry(self);
  geometry.offset += from * geometry.strides[dim];
  geometry.sizes[dim] = to > from ? (to - from - 1) / step + 1 : 0;
  geometry.strides[dim] = Spaced(geometry.strides[dim], step);
  return std::move(geometry).Make();
}

at::Tensor XLANativeFunctions::diagonal(const at::Tensor& self, int64_t offset, int64_t dim1,
                                        int64_t dim2) {
  dim1 = at::maybe_wrap_dim(dim1, self.dim());
  dim2 = at::maybe_wrap_dim(dim2, self.dim());
  TORCH_CHECK(dim1 != dim2, "diagonal dimensions cannot be identical ", dim1, ", ", dim2);
  Geometry geometry(self);
  const int64_t rows = geometry.sizes[dim1], columns = geometry.sizes[dim2];
  const int64_t size = offset >= 0 ? std::max<int64_t>(std::min(rows, columns - offset), 0)
                                   : std::max<int64_t>(std::min(rows + offset, columns), 0);
  if (size > 0) {
    geometry.offset +=
        offset >= 0 ? offset * geometry.strides[dim2] : -offset * geometry.strides[dim1];
  }
  const int64_t stride = geometry.strides[dim1] + geometry.strides[dim2];
  geometry.Erase(std::max(dim1, dim2));
  geometry.Erase(std::min(dim1, dim2));
  geometry.sizes.push_back(size);
  geometry.strides.push_back(stride);
  return std::move(geometry).Make();
}

at::Tensor XLANativeFunctions::unfold(const at::Tensor& self, int64_t dimension, int64_t size,
                                      int64_t step) {
  dimension = at::maybe_wrap_dim(dimension, self.dim());
  const int64_t have = self.dim() == 0 ? 1 : self.size(dimension);
  TORCH_CHECK(size >= 0, "size is ", size, " but must be >= 0");
  TORCH_CHECK(size <= have, "maximum size for tensor at dimension ", dimension, " is ", have,
              " but size is ", size);
  TORCH_CHECK(step > 0, "step is ", step, " but must be > 0");
  Geometry geometry(self);
  if (self.dim() == 0) {
    geometry.sizes.push_back(size);
    geometry.strides.push_back(1);
    return std::move(geometry).Make();
  }
  geometry.sizes.push_back(size);
  geometry.strides.push_back(geometry.strides[dimension]);
  geometry.sizes[dimension] = (have - size) / step + 1;
  geometry.strides[dimension] = Spaced(geometry.strides[dimension], step);
  return std::move(geometry).Make();
}

at::Tensor XLANativeFunctions::unsqueeze(const at::Tensor& self, int64_t dim) {
  dim = at::maybe_wrap_dim(dim, self.dim() + 1);
  Geometry geometry(self);
  const int64_t stride =
      dim < self.dim() ? geometry.sizes[dim] * geometry.strides[dim] : int64_t{1};
  geometry.sizes.insert(geometry.sizes.begin() + dim, 1);
  geometry.strides.insert(geometry.strides.begin() + dim, stride);
  return std::move(geometry).Make();
}

at::Tensor XLANativeFunctions::squeeze(const at::Tensor& self) {
  return SqueezeDims(self, std::vector<bool>(self.dim(), true));
}

at::Tensor XLANativeFunctions::squeeze_dim(const at::Tensor& self, int64_t dim) {
  std::vector<bool> which(std::max<int64_t>(self.dim(), 1), false);
  which[at::maybe_wrap_dim(dim, self.dim())] = true;
  return SqueezeDims(self, which);
}

at::Tensor XLANativeFunctions::squeeze_dims(const at::Tensor& self, at::IntArrayRef dim) {
  const auto chosen = at::dim_list_to_bitset(dim, self.dim());  // refuses a dimension given twice
  std::vector<bool> which;
  for (int64_t d = 0; d < self.dim(); ++d) which.push_back(chosen[d]);
  return SqueezeDims(self, which);
}

at::Tensor XLANativeFunctions::view_dtype(const at::Tensor& self, at::ScalarType dtype) {
  if (dtype == self.scalar_type()) return Alias(self);
  const int64_t from = static_cast<int64_t>(self.element_size());
  const int64_t to = static_cast<int64_t>(c10::elementSize(dtype));
  Ints sizes(self.sizes().begin(), self.sizes().end());
  if (from != to) {
    TORCH_CHECK(self.dim() > 0, "self.dim() cannot be 0 to view ", self.scalar_type(), " as ",
                dtype, " (different element sizes)");
    TORCH_CHECK(from > to || (sizes.back() * from) % to == 0, "self.size(-1) must be divisible by ",
                to / from, " to view ", self.scalar_type(), " as ", dtype,
                " (different element sizes), but got ", sizes.back());
    sizes.back() = sizes.back() * from / to;
  }
  return Bitcast(self, dtype, sizes);
}

// Use PyTorch's own checks, since the classes of their errors differ between versions.
at::Tensor XLANativeFunctions::view_as_real(const at::Tensor& self) {
  const at::Tensor like = at::view_as_real(OnMeta(self));
  return Bitcast(self, like.scalar_type(), Ints(like.sizes()));
}

at::Tensor XLANativeFunctions::view_as_complex(const at::Tensor& self) {
  const at::Tensor like = at::view_as_complex(OnMeta(self));
  return Bitcast(self, like.scalar_type(), Ints(like.sizes()));
}

const at::Tensor& XLANativeFunctions::as_strided_(const at::Tensor& self, at::IntArrayRef size,
                                                  at::IntArrayRef stride,
                                                  std::optional<int64_t> storage_offset) {
  if (IsStandIn(self)) {
    return at::native::as_strided__symint(
        self, c10::fromIntArrayRefSlow(size), c10::fromIntArrayRefSlow(stride),
        storage_offset ? std::optional<c10::SymInt>(*storage_offset) : std::nullopt);
  }
  return Become(self, as_strided(self, size, stride, storage_offset));
}

at::Tensor& XLANativeFunctions::squeeze_(at::Tensor& self) {
  if (IsStandIn(self)) return at::compositeexplicitautograd::squeeze_(self);
  return Become(self, squeeze(self));
}

at::Tensor& XLANativeFunctions::squeeze__dim(at::Tensor& self, int64_t dim) {
  if (IsStandIn(self)) return at::compositeexplicitautograd::squeeze_(self, dim);
  return Become(self, squeeze_dim(self, dim));
}

at::Tensor& XLANativeFunctions::squeeze__dims(at::Tensor& self, at::IntArrayRef dim) {
  if (IsStandIn(self)) return at::compositeexplicitautograd::squeeze_(self, dim);
  return Become(self, squeeze_dims(self, dim));
}

at::Tensor& XLANativeFunctions::t_(at::Tensor& self) {
  if (IsStandIn(self)) return at::compositeexplicitautograd::t_(self);
  return Become(self, t(self));
}

at::Tensor& XLANativeFunctions::transpose_(at::Tensor& self, int64_t dim0, int64_t dim1) {
  if (IsStandIn(self)) return at::compositeexplicitautograd::transpose_(self, dim0, dim1);
  return Become(self, transpose_int(self, dim0, dim1));
}

at::Tensor& XLANativeFunctions::unsqueeze_(at::Tensor& self, int64_t dim) {
  if (IsStandIn(self)) return at::compositeexplicitautograd::unsqueeze_(self, dim);
  return Become(self, unsqueeze(self, dim));
}

}  // namespace torch_xla

namespace torch_xla::lowering {
namespace {

/// A view's offset is the last attribute; it may be a parameter.
ViewOffset Offset(LoweringContext& cx, int64_t storage_offset) {
  return {storage_offset, cx.NumberParameter(cx.node().attributes().size() - 1)};
}

/// Real and imaginary parts side by side in a new last dimension.
Value SplitComplex(Value x) {
  Dims dims = x.dims();
  dims.push_back(1);
  return stablehlo::Concatenate(
      {stablehlo::Reshape(stablehlo::Real(x), dims), stablehlo::Reshape(stablehlo::Imag(x), dims)},
      x.rank());
}

Value JoinComplex(Value x, Dims dims) {
  dims.push_back(2);
  x = stablehlo::Reshape(x, dims);
  auto part = [&](int64_t i) {
    Dims starts(dims.size(), 0), limits = dims;
    starts.back() = i;
    limits.back() = i + 1;
    Dims squeezed(dims.begin(), dims.end() - 1);
    return stablehlo::Reshape(stablehlo::Slice(x, starts, limits), squeezed);
  };
  return stablehlo::Complex(part(0), part(1));
}

/// Reinterprets bits. If the widths differ, the last dimension is split or joined.
Value BitcastTo(Value x, const stablehlo::Type& to) {
  if (x.element() == ElementType::kPred || to.element == ElementType::kPred) {
    // A bool takes a byte in PyTorch and a bit in XLA.
    if (x.element() == ElementType::kPred)
      return BitcastTo(stablehlo::Convert(x, ElementType::kU8), to);
    return stablehlo::Convert(BitcastTo(x, {ElementType::kU8, to.dims}), ElementType::kPred);
  }
  if (x.type() == to) return x;
  if (runtime::IsComplex(x.element())) {
    Value parts = SplitComplex(x);
    Dims flat = x.dims();
    (flat.empty() ? flat.emplace_back(1) : flat.back()) *= 2;
    return BitcastTo(stablehlo::Reshape(parts, flat), to);
  }
  if (runtime::IsComplex(to.element)) {
    Dims parts = to.dims;
    parts.push_back(2);
    return JoinComplex(BitcastTo(x, {stablehlo::RealOf(to.element), parts}), to.dims);
  }
  const auto from_width = static_cast<int64_t>(runtime::ByteWidth(x.element()));
  const auto to_width = static_cast<int64_t>(runtime::ByteWidth(to.element));
  if (from_width < to_width) {
    Dims dims = to.dims;
    dims.push_back(to_width / from_width);
    x = stablehlo::BitcastConvert(stablehlo::Reshape(x, dims), to.element);
    // XLA makes one bitcast of two, also where their dimensions do not fit: four bytes, which are
    // joined and split into two halves.
    return stablehlo::OptimizationBarrier({x})[0];
  }
  return stablehlo::Reshape(stablehlo::BitcastConvert(x, to.element), to.dims);
}

}  // namespace

namespace aten {

Value as_strided(LoweringContext& cx, Value self, c10::IntArrayRef size, c10::IntArrayRef stride,
                 int64_t storage_offset) {
  return ReadStrided(self, size, stride, Offset(cx, storage_offset));
}

Value as_strided_view_update(LoweringContext& cx, Value self, Value value, c10::IntArrayRef size,
                             c10::IntArrayRef stride, int64_t storage_offset) {
  return WriteStrided(self, value, size, stride, Offset(cx, storage_offset));
}

Value bitcast(LoweringContext& cx, Value self) { return BitcastTo(self, cx.output_type()); }

}  // namespace aten
}  // namespace torch_xla::lowering
