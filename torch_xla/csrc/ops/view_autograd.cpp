// AutogradXLA kernels of the views that programs make most.
//
// PyTorch's own kernels save, for devices whose tensors have no real strides, two functions
// that make the view again; their copies cost as much as the view. These do the same with
// one object of fixed size.
#include <ATen/Functions.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/csrc/autograd/generated/Functions.h>

#include "XLANativeFunctions.h"
#include "aten/autograd_node.h"
#include "aten/bridge.h"
#include "lazy/view.h"

namespace torch_xla::autograd {
namespace {

using torch::autograd::ViewFunc;
using torch::autograd::generated::SliceBackward0;
using torch::autograd::generated::ViewBackward0;

/// The view of `self` that `replay` makes, as autograd wants it. `save` fills a node of type
/// Backward where there will be a gradient.
template <typename Backward, typename Replay, typename Save>
at::Tensor DifferentiableView(const at::Tensor& self, std::unique_ptr<Replay> replay, Save save) {
  using torch::autograd::CreationMeta;
  decltype(MakeBackward<Backward>()) grad_fn;
  if (torch::autograd::compute_requires_grad(self)) {
    grad_fn = MakeBackward<Backward>();
    grad_fn->set_next_edges(torch::autograd::collect_next_edges(self));
    save(*grad_fn);
  }
  at::Tensor view;
  {
    at::AutoDispatchBelowADInplaceOrView guard;
    view = (*replay)(self);
  }
  at::Tensor tangent = self._fw_grad(/*level=*/0);
  const bool has_tangent = tangent.defined();
  if (has_tangent) tangent = (*replay)(tangent);
  // Over the memory: as_strided sees no more of it than the view shows.
  auto reverse = [sizes = lazy::Ints(self.sizes())](const at::Tensor& input) {
    const auto* impl = aten::GetImpl(input);
    return aten::MakeView(
        *impl, lazy::RestrideView(impl->view(), sizes, lazy::ContiguousStrides(sizes), 0),
        impl->dtype(), sizes);
  };
  view = torch::autograd::as_view(
      self, view, /*is_bw_differentiable=*/true, /*is_fw_differentiable=*/true, std::move(replay),
      std::move(reverse),
      at::GradMode::is_enabled() ? CreationMeta::DEFAULT : CreationMeta::NO_GRAD_MODE);
  if (grad_fn) torch::autograd::set_history(view, grad_fn);
  if (has_tangent) view._set_fw_grad(tangent, /*level=*/0, /*is_inplace_op=*/false);
  return view;
}

struct ReplayView final : ViewFunc {
  explicit ReplayView(at::IntArrayRef size) : sizes(size) {}
  at::Tensor operator()(const at::Tensor& base) const override { return base.view(sizes); }
  std::unique_ptr<ViewFunc> clone_and_set(std::optional<std::vector<c10::SymInt>>,
                                          std::optional<std::vector<at::Tensor>>) const override {
    return std::make_unique<ReplayView>(*this);
  }
  lazy::Ints sizes;
};

struct ReplaySlice final : ViewFunc {
  ReplaySlice(int64_t dim, std::optional<int64_t> start, std::optional<int64_t> end, int64_t step)
      : dim(dim), step(step), start(start), end(end) {}
  at::Tensor operator()(const at::Tensor& base) const override {
    return at::slice(base, dim, start, end, step);
  }
  std::unique_ptr<ViewFunc> clone_and_set(std::optional<std::vector<c10::SymInt>>,
                                          std::optional<std::vector<at::Tensor>>) const override {
    return std::make_unique<ReplaySlice>(*this);
  }
  int64_t dim, step;
  std::optional<int64_t> start, end;
};

}  // namespace

at::Tensor view(const at::Tensor& self, at::IntArrayRef size) {
  return DifferentiableView<ViewBackward0>(
      self, std::make_unique<ReplayView>(size),
      [&](ViewBackward0& node) { node.self_sym_sizes = self.sym_sizes().vec(); });
}

at::Tensor slice_Tensor(const at::Tensor& self, int64_t dim, std::optional<int64_t> start,
                        std::optional<int64_t> end, int64_t step) {
  return DifferentiableView<SliceBackward0>(
      self, std::make_unique<ReplaySlice>(dim, start, end, step), [&](SliceBackward0& node) {
        node.self_sym_sizes = self.sym_sizes().vec();
        node.dim = dim;
        node.start = start;
        node.end = end;
        node.step = step;
      });
}

}  // namespace torch_xla::autograd
