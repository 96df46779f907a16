#include <ATen/Context.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/mkldnn_convolution.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "cpu/aten_calls.h"
#include "cpu/convolution_call.h"
#include "cpu/convolution_ways.h"
#include "cpu/ffi_tensor.h"
#include "cpu/handlers.h"

namespace torch_xla::cpu {
namespace {

using namespace runtime::pjrt;

/// The dimension of each tensor along which the work is cut into parts; -1 if each part has the
/// whole tensor. If the result is not cut, it is the sum of the parts' results.
struct Cut {
  int64_t lhs, rhs, result;
  int64_t extent;
};

struct Call {
  ConvolutionPart part;
  at::Tensor lhs, rhs, result;
  std::optional<at::Tensor> bias;
  at::IntArrayRef stride, padding, dilation;
  int64_t groups;

  /// A cut with which no part reads all of a large tensor, and no tensor must be copied to be cut:
  /// weights can be cut along the first dimension, and maps along the batch.
  Cut BestCut() const {
    // For single images ATen computes gradients by products instead of oneDNN.
    const int64_t images = part == ConvolutionPart::kForward ? lhs.size(0) : lhs.size(0) / 2;
    const bool whole = groups == 1 && images < 2;
    // Whether the weights are large; not used for their gradient.
    const bool heavy = groups == 1 && rhs.numel() > lhs.numel();
    // oneDNN works on vectors of channels.
    auto channels = [](int64_t count) { return std::max<int64_t>(count / 16, 1); };
    switch (part) {
      case ConvolutionPart::kForward:
        if (heavy || whole) return {-1, 0, 1, channels(rhs.size(0))};
        return {0, -1, 0, images};
      case ConvolutionPart::kInputGradient:
        if (heavy || whole) return {1, 0, -1, std::min(channels(rhs.size(0)), choices::kSums)};
        return {0, -1, 0, images};
      case ConvolutionPart::kWeightGradient:
        if (whole || (groups == 1 && result.numel() > rhs.numel())) {
          return {-1, 1, 0, channels(rhs.size(1))};
        }
        return {0, 0, -1, std::min(lhs.size(0) / choices::kImagesOfSum, choices::kSums)};
    }
    TORCH_INTERNAL_ASSERT(false);
  }

  at::Tensor Compute(const at::Tensor& a, const at::Tensor& b,
                     const std::optional<at::Tensor>& bias_part, const at::Tensor& like) const {
    const int64_t zeros[3] = {0, 0, 0};
    const at::IntArrayRef none(zeros, stride.size());
    // ATen chooses oneDNN only under conditions of its own, and its product of few pixels is much
    // slower. The input's gradient with a kernel of one tap is a plain convolution, too.
    const bool is_same = part == ConvolutionPart::kInputGradient &&
                         b.numel() == b.size(0) * b.size(1) && groups == 1 &&
                         c10::multiply_integers(stride) == 1 &&
                         like.sizes().slice(2) == a.sizes().slice(2);
    if (lhs.scalar_type() == at::kFloat && at::hasMKLDNN() &&
        at::globalContext().userEnabledMkldnn() && (part == ConvolutionPart::kForward || is_same)) {
      return at::mkldnn_convolution(a, is_same ? b.transpose(0, 1) : b, bias_part, padding, stride,
                                    dilation, groups);
    }
    if (part == ConvolutionPart::kForward) {
      return at::convolution(a, b, bias_part, stride, padding, dilation, /*transposed=*/false, none,
                             groups);
    }
    // Only the sizes of the operand whose gradient is computed matter.
    const bool of_input = part == ConvolutionPart::kInputGradient;
    auto [input, weight, bias] = at::convolution_backward(
        of_input ? a : b, of_input ? like : a, of_input ? b : like, {}, stride, padding, dilation,
        /*transposed=*/false, none, groups, {of_input, !of_input, false});
    return of_input ? input : weight;
  }

  ConvolutionProduct AsProduct() const {
    const at::Tensor& x = part == ConvolutionPart::kInputGradient ? result : lhs;
    const at::Tensor& w = part == ConvolutionPart::kWeightGradient ? result : rhs;
    const at::Tensor& y = part == ConvolutionPart::kForward         ? result
                          : part == ConvolutionPart::kInputGradient ? lhs
                                                                    : rhs;
    return {part, x, w, y, stride, padding, dilation};
  }

  bool RunWithoutAten(const XLA_FFI_CallFrame& frame) const {
    const float* addend = bias ? bias->const_data_ptr<float>() : nullptr;
    return groups == 1 ? RunProducts(AsProduct(), frame, addend)
                       : RunGroups(AsProduct(), groups, frame, addend);
  }

  void Run(const XLA_FFI_CallFrame& frame) const {
    if (lhs.scalar_type() == at::kFloat && RunWithoutAten(frame)) return;
    const int64_t products = part == ConvolutionPart::kForward ? result.numel() * rhs[0].numel()
                             : part == ConvolutionPart::kInputGradient
                                 ? lhs.numel() * rhs[0].numel()
                                 : rhs.numel() * result[0].numel();
    const Cut cut = BestCut();
    const int64_t cost = products * choices::kProduct;
    const int64_t count =
        cut.result < 0 ? PartsWorthAThread(cost, cut.extent) : FfiParts(frame, cost, cut.extent);
    std::vector<at::Tensor> sums(cut.result < 0 ? count : 0);
    RunAtenParts(frame, count, [&](const AtenPart& share) {
      at::Tensor out = share(result, cut.result);
      // Only the sizes matter, but ATen would copy a view that is not contiguous.
      const at::Tensor like = result.flatten().narrow(0, 0, out.numel()).view(out.sizes());
      std::optional<at::Tensor> bias_part;
      if (bias) bias_part = share(*bias, cut.rhs);
      at::Tensor made = Compute(share(lhs, cut.lhs), share(rhs, cut.rhs), bias_part, like);
      if (sums.empty()) {
        out.copy_(made);
      } else {
        sums[share.index] = std::move(made);
      }
    });
    if (sums.empty()) return;
    const AtenCalls calls;
    result.copy_(sums[0]);
    for (int64_t i = 1; i < count; ++i) result.add_(sums[i]);
  }
};

}  // namespace

void RunConvolution(const XLA_FFI_CallFrame& frame) {
  const ConvolutionCall call = ConvolutionCall::Decode(WordsOf(frame));
  const Call work{
      call.part,
      FfiTensor(frame.args.args[0]),
      FfiTensor(frame.args.args[1]),
      FfiTensor(frame.rets.rets[0]),
      frame.args.size == 3 ? std::optional(FfiTensor(frame.args.args[2])) : std::nullopt,
      call.stride,
      call.padding,
      call.dilation,
      call.groups};
  work.Run(frame);
}

}  // namespace torch_xla::cpu
