// Losses whose kernels read or check their arguments first.
#include <ATen/core/Reduction.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "XLANativeFunctions.h"
#include "XLAOps.h"
#include "aten/index_check.h"
#include "aten/node_builder.h"

namespace torch_xla {
namespace {

// ---- CTC: PyTorch has the lengths on the host. Here they are operands, so that other lengths do
// not need another program.

/// Labels as [B, S]. Concatenated labels are split into rows.
at::Tensor LabelRows(const at::Tensor& targets, at::IntArrayRef lengths) {
  if (targets.dim() > 1) return targets;
  const int64_t batch = static_cast<int64_t>(lengths.size());
  const int64_t longest = lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
  if (longest == 0) return at::zeros({batch, 0}, targets.options());
  const at::Tensor places = at::empty({batch, longest}, at::kLong);
  auto place = places.accessor<int64_t, 2>();
  int64_t begin = 0;
  for (int64_t i = 0; i < batch; ++i) {
    for (int64_t j = 0; j < longest; ++j) place[i][j] = std::min(begin + j, targets.numel() - 1);
    begin += lengths[i];
  }
  return targets.take(aten::FromCpu(places, aten::GetImpl(targets)->root()->device()));
}

at::Tensor OnDevice(at::IntArrayRef lengths, const at::Tensor& like) {
  return aten::FromCpu(at::tensor(lengths, at::kLong), aten::GetImpl(like)->root()->device());
}

std::vector<int64_t> OnHost(const at::Tensor& lengths) {
  TORCH_CHECK(c10::isIntegralType(lengths.scalar_type(), /*includeBool=*/false),
              "lengths must be integral");
  const at::Tensor host = lengths.to(at::kCPU, at::kLong).contiguous();
  return {host.data_ptr<int64_t>(), host.data_ptr<int64_t>() + host.numel()};
}

void CheckCtc(const at::Tensor& log_probs, const at::Tensor& targets, at::IntArrayRef input_lengths,
              at::IntArrayRef target_lengths, int64_t blank) {
  TORCH_CHECK(log_probs.numel() > 0, "log_probs tensor must not be empty");
  TORCH_CHECK(targets.scalar_type() == at::kInt || targets.scalar_type() == at::kLong,
              "Expected targets to be int or long, but got ", targets.scalar_type());
  TORCH_CHECK(log_probs.dim() == 3 && (targets.dim() == 1 || targets.dim() == 2),
              "ctc_loss expects log_probs of 3 and targets of 1 or 2 dimensions");
  TORCH_CHECK_NOT_IMPLEMENTED(
      log_probs.scalar_type() == at::kFloat || log_probs.scalar_type() == at::kDouble,
      "\"ctc_loss_cpu\" not implemented for '", log_probs.scalar_type(), "'");
  const auto batch = static_cast<size_t>(log_probs.size(1));
  TORCH_CHECK(0 <= blank && blank < log_probs.size(2), "blank must be in label range");
  TORCH_CHECK(input_lengths.size() == batch, "input_lengths must be of size batch_size");
  TORCH_CHECK(target_lengths.size() == batch, "target_lengths must be of size batch_size");
  int64_t total = 0, longest = 0;
  for (size_t i = 0; i < batch; ++i) {
    TORCH_CHECK(target_lengths[i] >= 0,
                "Expected target_lengths to have value at least 0, but got ", target_lengths[i],
                " at batch ", i);
    TORCH_CHECK(0 <= input_lengths[i] && input_lengths[i] <= log_probs.size(0),
                "Expected input_lengths to have value in [0, ", log_probs.size(0), "], but got ",
                input_lengths[i], " at batch ", i);
    total += target_lengths[i];
    longest = std::max(longest, target_lengths[i]);
  }
  if (targets.dim() == 1) {
    TORCH_CHECK(targets.numel() >= total, "Expected targets to hold ", total, " labels, but got ",
                targets.numel());
  } else {
    TORCH_CHECK(targets.size(0) == static_cast<int64_t>(batch) && targets.size(1) >= longest,
                "Expected targets of size [", batch, ", ", longest, "] or wider, but got ",
                targets.sizes());
  }
}

ir::Words CtcWords(int64_t blank, bool zero_infinity) {
  ir::Words words;
  ir::AttributeWriter writer(words);
  writer.Int(blank);
  writer.Int(zero_infinity);
  return words;
}

}  // namespace

at::Tensor XLANativeFunctions::multi_margin_loss(const at::Tensor& self, const at::Tensor& target,
                                                 const at::Scalar& p, const at::Scalar& margin,
                                                 const std::optional<at::Tensor>& weight,
                                                 int64_t reduction) {
  aten::CheckIndex("aten::multi_margin_loss", target, 0, aten::SizeAt(self, -1), {},
                   aten::kRuntimeError);
  aten::NodeBuilder builder(ir::ops::multi_margin_loss);
  builder.Add(self, target);
  builder.FixedScalar(p);
  builder.ConstantScalar(margin);
  builder.Add(weight, reduction);
  const at::Tensor loss = builder.Single();
  // The Meta kernel gives a single sample a dimension.
  return reduction == at::Reduction::None ? loss.view(target.sizes()) : loss;
}

std::tuple<at::Tensor, at::Tensor> XLANativeFunctions::multilabel_margin_loss_forward(
    const at::Tensor& self, const at::Tensor& target, int64_t reduction) {
  // A label of -1 ends the labels.
  aten::CheckIndex("aten::multilabel_margin_loss", target, -1, aten::SizeAt(self, -1), {},
                   aten::kRuntimeError);
  aten::NodeBuilder builder(ir::ops::multilabel_margin_loss_forward);
  builder.Add(self, target, reduction);
  auto [loss, is_target] = builder.Tuple<2>();
  // The Meta kernel gives a single sample a dimension.
  return {target.dim() <= 1 ? loss.view(at::IntArrayRef()) : loss, is_target};
}

std::tuple<at::Tensor, at::Tensor> XLANativeFunctions::_ctc_loss(
    const at::Tensor& log_probs, const at::Tensor& targets, at::IntArrayRef input_lengths,
    at::IntArrayRef target_lengths, int64_t blank, bool zero_infinity) {
  CheckCtc(log_probs, targets, input_lengths, target_lengths, blank);
  const ir::OpSpec& op = ir::ops::_ctc_loss_Tensor;
  const at::Tensor labels = LabelRows(targets, target_lengths);
  const int64_t times = log_probs.size(0), batch = log_probs.size(1);
  ir::NodePtr node = tensor::MakeOpNode(
      &op,
      {aten::GetIrValue(log_probs), aten::GetIrValue(labels),
       aten::GetIrValue(OnDevice(input_lengths, log_probs)),
       aten::GetIrValue(OnDevice(target_lengths, log_probs))},
      CtcWords(blank, zero_infinity), [&] {
        const at::ScalarType dtype = log_probs.scalar_type();
        return ir::OutputShapes{{ir::GetShape(dtype, {batch}),
                                 ir::GetShape(dtype, {batch, times, 2 * labels.size(1) + 1})}};
      });
  const int device = aten::GetImpl(log_probs)->root()->device();
  return {aten::MakeTensor({node, 0}, device), aten::MakeTensor({node, 1}, device)};
}

std::tuple<at::Tensor, at::Tensor> XLANativeFunctions::_ctc_loss_Tensor(
    const at::Tensor& log_probs, const at::Tensor& targets, const at::Tensor& input_lengths,
    const at::Tensor& target_lengths, int64_t blank, bool zero_infinity) {
  return _ctc_loss(log_probs, targets, OnHost(input_lengths), OnHost(target_lengths), blank,
                   zero_infinity);
}

at::Tensor XLANativeFunctions::_ctc_loss_backward(
    const at::Tensor& grad, const at::Tensor& log_probs, const at::Tensor& targets,
    at::IntArrayRef input_lengths, at::IntArrayRef target_lengths,
    const at::Tensor& neg_log_likelihood, const at::Tensor& log_alpha, int64_t blank,
    bool zero_infinity) {
  aten::NodeBuilder builder(ir::ops::_ctc_loss_backward_Tensor);
  builder.Add(grad, log_probs, LabelRows(targets, target_lengths),
              OnDevice(input_lengths, log_probs), OnDevice(target_lengths, log_probs),
              neg_log_likelihood, log_alpha, blank, zero_infinity);
  builder.Like(log_probs);
  return builder.Single();
}

at::Tensor XLANativeFunctions::_ctc_loss_backward_Tensor(
    const at::Tensor& grad, const at::Tensor& log_probs, const at::Tensor& targets,
    const at::Tensor& input_lengths, const at::Tensor& target_lengths,
    const at::Tensor& neg_log_likelihood, const at::Tensor& log_alpha, int64_t blank,
    bool zero_infinity) {
  return _ctc_loss_backward(grad, log_probs, targets, OnHost(input_lengths), OnHost(target_lengths),
                            neg_log_likelihood, log_alpha, blank, zero_infinity);
}

}  // namespace torch_xla
