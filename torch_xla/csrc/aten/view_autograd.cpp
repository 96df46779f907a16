// AutogradXLA kernels of the views that programs make most.
//
// For devices whose tensors have no real strides, PyTorch's own kernels save two functions that
// make the view again. Copying these costs as much as the view, and they grow with each view of a
// view. The kernels here save one object of fixed size instead, and views of views share one.
#include <ATen/Functions.h>
#include <ATen/Operators.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/csrc/autograd/generated/Functions.h>
#include <torch/library.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "XLANativeFunctions.h"
#include "aten/autograd_node.h"
#include "aten/bridge.h"
#include "tensor/view.h"

namespace torch_xla::autograd {
namespace {

using torch::autograd::ViewFunc;
using namespace torch::autograd::generated;  // NOLINT: nodes of views

/// Makes a view of its base by `function`.
template <typename Function>
struct Replay final : ViewFunc {
  explicit Replay(Function function) : function(std::move(function)) {}
  at::Tensor operator()(const at::Tensor& base) const override { return function(base); }
  std::unique_ptr<ViewFunc> clone_and_set(std::optional<std::vector<c10::SymInt>>,
                                          std::optional<std::vector<at::Tensor>>) const override {
    return std::make_unique<Replay>(*this);
  }
  Function function;
};

/// The last view of a chain of views, and the views before it.
struct Link final : c10::intrusive_ptr_target {
  Link(c10::intrusive_ptr<Link> before, std::unique_ptr<ViewFunc> view)
      : before(std::move(before)), view(std::move(view)) {}
  ~Link() override {  // iteratively, since thousands would not fit on the stack
    auto next = std::move(before);
    while (next && next.use_count() == 1) next = std::move(next->before);
  }

  c10::intrusive_ptr<Link> before;
  std::unique_ptr<ViewFunc> view;
};

/// A view of views of a base, which shares the chain of the earlier views. PyTorch's own chains
/// copy that with each view, so that n views of each other cost n * n.
struct Chain final : ViewFunc {
  explicit Chain(c10::intrusive_ptr<Link> last) : last(std::move(last)) {}
  at::Tensor operator()(const at::Tensor& base) const override {
    std::vector<const ViewFunc*> views;
    for (const Link* link = last.get(); link; link = link->before.get()) {
      views.push_back(link->view.get());
    }
    at::Tensor view = base;
    for (auto it = views.rbegin(); it != views.rend(); ++it) view = (**it)(view);
    return view;
  }
  std::unique_ptr<ViewFunc> clone_and_set(std::optional<std::vector<c10::SymInt>>,
                                          std::optional<std::vector<at::Tensor>>) const override {
    return std::make_unique<Chain>(*this);
  }

  c10::intrusive_ptr<Link> last;
};

/// Goes back from a view, or a view of views, to its base, as a view of the same memory.
struct ToBase {
  explicit ToBase(const at::Tensor& base)
      : look(aten::GetImpl(base)->view_ptr()), sizes(base.sizes()) {}
  at::Tensor operator()(const at::Tensor& view) const {
    const auto* impl = aten::GetImpl(view);
    return aten::MakeView(*impl, look, impl->dtype(), sizes);
  }
  tensor::ViewPtr look;
  tensor::Ints sizes;
};

/// The same for a base that is itself a view; `before` goes back from there.
struct ToBaseOfOthers {
  at::Tensor operator()(const at::Tensor& view) const { return (*before)(to(view)); }
  std::shared_ptr<const std::function<at::Tensor(const at::Tensor&)>> before;
  ToBase to;
};

/// PyTorch's as_view, but with a Chain if `self` is a view itself.
at::Tensor AsView(const at::Tensor& self, const at::Tensor& view,
                  std::unique_ptr<ViewFunc> replay) {
  using torch::autograd::CreationMeta;
  const auto creation =
      at::GradMode::is_enabled() ? CreationMeta::DEFAULT : CreationMeta::NO_GRAD_MODE;
  const auto* meta = torch::autograd::impl::get_view_autograd_meta(self);
  if (!meta || self.is_inference() || !meta->shared_view_info() ||
      !meta->get_backward_view().has_view_fn()) {
    return torch::autograd::as_view(self, view, /*is_bw_differentiable=*/true,
                                    /*is_fw_differentiable=*/true, std::move(replay), ToBase(self),
                                    creation);
  }
  const torch::autograd::ViewInfo& info = meta->get_backward_view();
  const auto* chain = dynamic_cast<const Chain*>(&info.view_fn());
  auto before =
      chain ? chain->last
            : c10::make_intrusive<Link>(c10::intrusive_ptr<Link>(), info.view_fn().clone_and_set());
  auto last = c10::make_intrusive<Link>(std::move(before), std::move(replay));
  std::function<at::Tensor(const at::Tensor&)> reverse = info.rev_view_fn_;
  if (!reverse.target<ToBase>() && !reverse.target<ToBaseOfOthers>()) {
    using Reverse = decltype(reverse);
    reverse = ToBaseOfOthers{std::make_shared<const Reverse>(std::move(reverse)), ToBase(self)};
  }
  return torch::autograd::make_variable_differentiable_view(
      view,
      torch::autograd::ViewInfo(info.base_, std::make_unique<Chain>(std::move(last)), reverse),
      std::nullopt, /*shared_view_info=*/true,
      torch::autograd::propagate_creation_meta(meta->get_creation_meta(), creation));
}

/// The view of `self` that `function` makes, as a differentiable view. `save` fills a node of type
/// Backward if there will be a gradient.
template <typename Backward, typename Function, typename Save>
at::Tensor DifferentiableView(const at::Tensor& self, Function function, Save save) {
  decltype(MakeBackward<Backward>()) grad_fn;
  if (torch::autograd::compute_requires_grad(self)) {
    grad_fn = MakeBackward<Backward>();
    grad_fn->set_next_edges(torch::autograd::collect_next_edges(self));
    save(*grad_fn);
  }
  at::Tensor view;
  {
    at::AutoDispatchBelowADInplaceOrView guard;
    view = function(self);
  }
  at::Tensor tangent = self._fw_grad(/*level=*/0);
  const bool has_tangent = tangent.defined();
  if (has_tangent) tangent = function(tangent);
  view = AsView(self, view, std::make_unique<Replay<Function>>(std::move(function)));
  if (grad_fn) torch::autograd::set_history(view, grad_fn);
  if (has_tangent) view._set_fw_grad(tangent, /*level=*/0, /*is_inplace_op=*/false);
  return view;
}

/// Out of line: where it is inlined into a capture, GCC takes the copy for uninitialized.
[[gnu::noinline]] tensor::Ints Copied(at::IntArrayRef list) { return tensor::Ints(list); }

tensor::Ints Integers(c10::SymIntArrayRef list) {
  tensor::Ints copy;
  copy.resize(list.size());
  std::ranges::transform(list, copy.begin(),
                         [](const c10::SymInt& one) { return one.guard_int(__FILE__, __LINE__); });
  return copy;
}

std::optional<int64_t> Integer(const std::optional<c10::SymInt>& number) {
  return number ? std::optional(number->guard_int(__FILE__, __LINE__)) : std::nullopt;
}

// Tensors that only have the keys of the device, such as those that torch.compile traces with,
// whose sizes and numbers may be symbols, go to PyTorch's kernels.

at::Tensor view(c10::DispatchKeySet keys, const at::Tensor& self, c10::SymIntArrayRef size) {
  if (!aten::IsXla(self)) return OfPyTorch<at::_ops::view>(keys, self, size);
  return DifferentiableView<ViewBackward0>(
      self, [sizes = Integers(size)](const at::Tensor& base) { return base.view(sizes); },
      [&](ViewBackward0& node) { node.self_sym_sizes = self.sym_sizes().vec(); });
}

at::Tensor slice_Tensor(c10::DispatchKeySet keys, const at::Tensor& self, int64_t dim,
                        std::optional<c10::SymInt> first, std::optional<c10::SymInt> last,
                        c10::SymInt by) {
  if (!aten::IsXla(self)) {
    return OfPyTorch<at::_ops::slice_Tensor>(keys, self, dim, std::move(first), std::move(last),
                                             std::move(by));
  }
  const std::optional<int64_t> start = Integer(first), end = Integer(last);
  const int64_t step = by.guard_int(__FILE__, __LINE__);
  return DifferentiableView<SliceBackward0>(
      self, [=](const at::Tensor& base) { return at::slice(base, dim, start, end, step); },
      [&](SliceBackward0& node) {
        node.self_sym_sizes = self.sym_sizes().vec();
        node.dim = dim;
        node.start = start;
        node.end = end;
        node.step = step;
      });
}

at::Tensor select_int(c10::DispatchKeySet keys, const at::Tensor& self, int64_t dim,
                      c10::SymInt place) {
  if (!aten::IsXla(self)) {
    return OfPyTorch<at::_ops::select_int>(keys, self, dim, std::move(place));
  }
  const int64_t index = place.guard_int(__FILE__, __LINE__);
  return DifferentiableView<SelectBackward0>(
      self, [=](const at::Tensor& base) { return base.select(dim, index); },
      [&](SelectBackward0& node) {
        node.self_sym_sizes = self.sym_sizes().vec();
        node.dim = dim;
        node.index = index;
      });
}

at::Tensor t(c10::DispatchKeySet keys, const at::Tensor& self) {
  if (!aten::IsXla(self)) return OfPyTorch<at::_ops::t>(keys, self);
  return DifferentiableView<TBackward0>(
      self, [](const at::Tensor& base) { return base.t(); }, [](TBackward0&) {});
}

at::Tensor transpose_int(c10::DispatchKeySet keys, const at::Tensor& self, int64_t dim0,
                         int64_t dim1) {
  if (!aten::IsXla(self)) return OfPyTorch<at::_ops::transpose_int>(keys, self, dim0, dim1);
  return DifferentiableView<TransposeBackward0>(
      self, [=](const at::Tensor& base) { return base.transpose(dim0, dim1); },
      [&](TransposeBackward0& node) {
        node.dim0 = dim0;
        node.dim1 = dim1;
      });
}

at::Tensor permute(c10::DispatchKeySet keys, const at::Tensor& self, at::IntArrayRef dims) {
  if (!aten::IsXla(self)) return OfPyTorch<at::_ops::permute>(keys, self, dims);
  return DifferentiableView<PermuteBackward0>(
      self, [order = Copied(dims)](const at::Tensor& base) { return base.permute(order); },
      [&](PermuteBackward0& node) { node.dims = dims.vec(); });
}

at::Tensor unsqueeze(c10::DispatchKeySet keys, const at::Tensor& self, int64_t dim) {
  if (!aten::IsXla(self)) return OfPyTorch<at::_ops::unsqueeze>(keys, self, dim);
  return DifferentiableView<UnsqueezeBackward0>(
      self, [=](const at::Tensor& base) { return base.unsqueeze(dim); },
      [&](UnsqueezeBackward0& node) { node.dim = dim; });
}

at::Tensor squeeze_dim(c10::DispatchKeySet keys, const at::Tensor& self, int64_t dim) {
  if (!aten::IsXla(self)) return OfPyTorch<at::_ops::squeeze_dim>(keys, self, dim);
  return DifferentiableView<SqueezeBackward1>(
      self, [=](const at::Tensor& base) { return base.squeeze(dim); },
      [&](SqueezeBackward1& node) {
        node.self_sym_sizes = self.sym_sizes().vec();
        node.dim = dim;
      });
}

at::Tensor expand(c10::DispatchKeySet keys, const at::Tensor& self, c10::SymIntArrayRef size,
                  bool implicit) {
  if (!aten::IsXla(self)) return OfPyTorch<at::_ops::expand>(keys, self, size, implicit);
  return DifferentiableView<ExpandBackward0>(
      self,
      [sizes = Integers(size), implicit](const at::Tensor& base) {
        return base.expand(sizes, implicit);
      },
      [&](ExpandBackward0& node) { node.self_sym_sizes = self.sym_sizes().vec(); });
}

TORCH_LIBRARY_IMPL(aten, AutogradXLA, m) {
  m.impl("view", TORCH_FN(view));
  m.impl("slice.Tensor", TORCH_FN(slice_Tensor));
  m.impl("select.int", TORCH_FN(select_int));
  m.impl("t", TORCH_FN(t));
  m.impl("transpose.int", TORCH_FN(transpose_int));
  m.impl("permute", TORCH_FN(permute));
  m.impl("unsqueeze", TORCH_FN(unsqueeze));
  m.impl("squeeze.dim", TORCH_FN(squeeze_dim));
  m.impl("expand", TORCH_FN(expand));
}

}  // namespace
}  // namespace torch_xla::autograd
