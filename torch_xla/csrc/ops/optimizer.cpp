// Fused optimizers (`fused=True`), and the two operations of the gradient scaler. Each is a few
// `_foreach_` nodes for all parameters together, with the formulas of torch.optim.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "XLANativeFunctions.h"
#include "aten/bridge.h"

namespace torch_xla {
namespace {

using Tensors = std::vector<at::Tensor>;
using OptionalTensor = std::optional<at::Tensor>;

/// The gradients for an update: unscaled in place, and negated in a copy to maximize.
Tensors Gradients(at::TensorList grads, const OptionalTensor& grad_scale, bool maximize) {
  if (grad_scale) at::_foreach_div_(grads, grad_scale->to(grads[0].device()).reshape({}));
  return maximize ? at::_foreach_neg(grads) : grads.vec();
}

/// Undoes the changes of `lists` if the flag `found_inf` is set on the device.
class Transaction {
 public:
  Transaction(const OptionalTensor& found_inf, std::initializer_list<at::TensorList> lists) {
    if (!found_inf) return;
    for (at::TensorList list : lists) {
      for (const at::Tensor& tensor : list) {
        tensors_.push_back(tensor);
        before_.push_back(tensor.clone());
      }
    }
    if (!tensors_.empty()) undo_ = found_inf->to(tensors_[0].device()).reshape({}).ne(0);
  }
  void Finish() {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      tensors_[i].copy_(at::where(undo_, before_[i], tensors_[i]));
    }
  }

 private:
  at::Tensor undo_;
  Tensors tensors_, before_;
};

/// The step counts as one vector of doubles; in float, 1 - beta^step would lose digits.
at::Tensor StepVector(at::TensorList steps) { return at::stack(steps).to(at::kDouble).reshape(-1); }

/// An element of `vector` for each parameter, as float zero-dim tensors.
Tensors PerParameter(const at::Tensor& vector) { return vector.to(at::kFloat).unbind(); }

/// A learning rate as a zero-dim tensor. It is a parameter of the program even if it is 0 or 1, so
/// that a schedule that begins there (warm-up) compiles no program of its own.
at::Tensor RateTensor(const at::Tensor& rate, at::TensorList) { return rate; }
at::Tensor RateTensor(double rate, at::TensorList params) {
  if (params.empty()) return {};
  const int device = aten::GetImpl(params[0], "a parameter")->root()->device();
  return aten::MakeTensor(tensor::MakeScalarParameter(rate, at::kDouble, /*wrapped=*/false),
                          device);
}

void Adam(at::TensorList params, at::TensorList grads, at::TensorList exp_avgs,
          at::TensorList exp_avg_sqs, at::TensorList max_exp_avg_sqs, at::TensorList steps,
          const at::Tensor& rate, double beta1, double beta2, double weight_decay, double eps,
          bool amsgrad, bool maximize, const OptionalTensor& grad_scale,
          const OptionalTensor& found_inf, bool decoupled_decay) {
  if (params.empty()) return;
  Transaction transaction(found_inf, {params, exp_avgs, exp_avg_sqs, max_exp_avg_sqs});
  Tensors g = Gradients(grads, grad_scale, maximize);
  if (weight_decay != 0) {
    if (decoupled_decay) {
      at::_foreach_mul_(params, 1 - rate * weight_decay);
    } else {
      g = at::_foreach_add(g, params, weight_decay);
    }
  }
  at::_foreach_lerp_(exp_avgs, g, 1 - beta1);
  at::_foreach_mul_(exp_avg_sqs, beta2);
  at::_foreach_addcmul_(exp_avg_sqs, g, g, 1 - beta2);
  if (amsgrad) at::_foreach_maximum_(max_exp_avg_sqs, exp_avg_sqs);

  at::Tensor step = StepVector(steps);
  Tensors denominator = at::_foreach_sqrt(amsgrad ? max_exp_avg_sqs : exp_avg_sqs);
  at::_foreach_div_(denominator, PerParameter((1 - at::pow(beta2, step)).sqrt()));
  at::_foreach_add_(denominator, eps);
  Tensors update = at::_foreach_div(exp_avgs, denominator);
  at::_foreach_mul_(update, PerParameter(rate / (1 - at::pow(beta1, step))));
  at::_foreach_sub_(params, update);
  transaction.Finish();
}

void Sgd(at::TensorList params, at::TensorList grads, at::TensorList momentum_buffers,
         double weight_decay, double momentum, const at::Tensor& rate, double dampening,
         bool nesterov, bool maximize, bool is_first_step, const OptionalTensor& grad_scale,
         const OptionalTensor& found_inf) {
  if (params.empty()) return;
  Transaction transaction(found_inf, {params, momentum_buffers});
  Tensors g = Gradients(grads, grad_scale, maximize);
  if (weight_decay != 0) g = at::_foreach_add(g, params, weight_decay);
  if (momentum != 0) {
    if (is_first_step) {
      for (size_t i = 0; i < g.size(); ++i) momentum_buffers[i].copy_(g[i]);
    } else {
      at::_foreach_mul_(momentum_buffers, momentum);
      at::_foreach_add_(momentum_buffers, g, 1 - dampening);
    }
    g = nesterov ? at::_foreach_add(g, momentum_buffers, momentum) : momentum_buffers.vec();
  }
  at::_foreach_sub_(params, at::_foreach_mul(g, rate));
  transaction.Finish();
}

void Adagrad(at::TensorList params, at::TensorList grads, at::TensorList state_sums,
             at::TensorList steps, const at::Tensor& rate, double lr_decay, double weight_decay,
             double eps, bool maximize, const OptionalTensor& grad_scale,
             const OptionalTensor& found_inf) {
  if (params.empty()) return;
  Transaction transaction(found_inf, {params, state_sums});
  Tensors g = Gradients(grads, grad_scale, maximize);
  if (weight_decay != 0) g = at::_foreach_add(g, params, weight_decay);
  at::_foreach_addcmul_(state_sums, g, g);
  Tensors denominator = at::_foreach_sqrt(state_sums);
  at::_foreach_add_(denominator, eps);
  Tensors update = at::_foreach_div(g, denominator);
  at::_foreach_mul_(update, PerParameter(rate / (1 + (StepVector(steps) - 1) * lr_decay)));
  at::_foreach_sub_(params, update);
  transaction.Finish();
}

}  // namespace

#define TORCH_XLA_ADAM(name, Rate, decoupled)                                                    \
  void XLANativeFunctions::name(                                                                 \
      at::TensorList self, at::TensorList grads, at::TensorList exp_avgs,                        \
      at::TensorList exp_avg_sqs, at::TensorList max_exp_avg_sqs, at::TensorList state_steps,    \
      Rate lr, double beta1, double beta2, double weight_decay, double eps, bool amsgrad,        \
      bool maximize, const OptionalTensor& grad_scale, const OptionalTensor& found_inf) {        \
    Adam(self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, RateTensor(lr, self), \
         beta1, beta2, weight_decay, eps, amsgrad, maximize, grad_scale, found_inf, decoupled);  \
  }
TORCH_XLA_ADAM(_fused_adam_, double, false)
TORCH_XLA_ADAM(_fused_adam__tensor_lr, const at::Tensor&, false)
TORCH_XLA_ADAM(_fused_adamw_, double, true)
TORCH_XLA_ADAM(_fused_adamw__tensor_lr, const at::Tensor&, true)
#undef TORCH_XLA_ADAM

#define TORCH_XLA_SGD(name, Rate)                                                        \
  void XLANativeFunctions::name(                                                         \
      at::TensorList self, at::TensorList grads, at::TensorList momentum_buffer_list,    \
      double weight_decay, double momentum, Rate lr, double dampening, bool nesterov,    \
      bool maximize, bool is_first_step, const OptionalTensor& grad_scale,               \
      const OptionalTensor& found_inf) {                                                 \
    Sgd(self, grads, momentum_buffer_list, weight_decay, momentum, RateTensor(lr, self), \
        dampening, nesterov, maximize, is_first_step, grad_scale, found_inf);            \
  }
TORCH_XLA_SGD(_fused_sgd_, double)
TORCH_XLA_SGD(_fused_sgd__tensor_lr, const at::Tensor&)
#undef TORCH_XLA_SGD

#define TORCH_XLA_ADAGRAD(name, Rate)                                                           \
  void XLANativeFunctions::name(                                                                \
      at::TensorList self, at::TensorList grads, at::TensorList state_sums,                     \
      at::TensorList state_steps, Rate lr, double lr_decay, double weight_decay, double eps,    \
      bool maximize, const OptionalTensor& grad_scale, const OptionalTensor& found_inf) {       \
    Adagrad(self, grads, state_sums, state_steps, RateTensor(lr, self), lr_decay, weight_decay, \
            eps, maximize, grad_scale, found_inf);                                              \
  }
TORCH_XLA_ADAGRAD(_fused_adagrad_, double)
TORCH_XLA_ADAGRAD(_fused_adagrad__tensor_lr, const at::Tensor&)
#undef TORCH_XLA_ADAGRAD

void XLANativeFunctions::_amp_foreach_non_finite_check_and_unscale_(at::TensorList self,
                                                                    at::Tensor& found_inf,
                                                                    const at::Tensor& inv_scale) {
  TORCH_CHECK(
      found_inf.numel() == 1 && inv_scale.numel() == 1,
      "_amp_foreach_non_finite_check_and_unscale_: found_inf and inv_scale must be 1-element "
      "tensors, got ",
      found_inf.sizes(), " and ", inv_scale.sizes());
  if (self.empty()) return;
  Tensors bad;
  for (const at::Tensor& tensor : self) bad.push_back(at::isfinite(tensor).logical_not().any());
  at::Tensor any = at::stack(bad).any().to(found_inf.scalar_type()).reshape(found_inf.sizes());
  found_inf.copy_(at::maximum(found_inf, any));
  at::_foreach_mul_(self, inv_scale.reshape({}));
}

at::Tensor& XLANativeFunctions::_amp_update_scale_(at::Tensor& self, at::Tensor& growth_tracker,
                                                   const at::Tensor& found_inf,
                                                   double growth_factor, double backoff_factor,
                                                   int64_t growth_interval) {
  const at::Tensor failed = found_inf.ne(0).reshape(self.sizes());
  const at::Tensor grown = self * growth_factor;
  const at::Tensor is_due = (growth_tracker + 1).eq(growth_interval).reshape(self.sizes());
  // As in PyTorch, a scale that would overflow stays unchanged.
  const at::Tensor kept = at::where(is_due.logical_and(at::isfinite(grown)), grown, self);
  const at::Tensor tracker = at::where(failed.logical_or(is_due), 0, growth_tracker + 1);
  self.copy_(at::where(failed, self * backoff_factor, kept));
  growth_tracker.copy_(tracker.reshape(growth_tracker.sizes()));
  return self;
}

}  // namespace torch_xla
