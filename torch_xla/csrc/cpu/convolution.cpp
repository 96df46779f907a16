#include <ATen/Context.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "cpu/aten_calls.h"
#include "cpu/convolution_call.h"
#include "cpu/convolution_ways.h"
#include "cpu/ffi_tensor.h"
#include "cpu/ffi_threads.h"
#include "cpu/handlers.h"

namespace torch_xla::cpu {
namespace {

using namespace runtime::pjrt;

/// A dimension of each tensor that parts of the work are cut along; -1: all of it. Where the result
/// is not cut, it is the sum of the parts.
struct Cut {
  int64_t lhs, rhs, result;
  int64_t extent;
};

/// Whether ATen would not take oneDNN, on one thread, but MKL's product, which of so few pixels to
/// many channels is up to 20 times slower. These are ATen's conditions, but for the pixels.
bool IsSlowProduct(const at::Tensor& maps, const at::Tensor& weight) {
  constexpr int64_t kPixels = 64;
  return weight.numel() == weight.size(0) * weight.size(1) && maps.scalar_type() == at::kFloat &&
         maps.numel() < kPixels * maps.size(0) * maps.size(1) && maps.size(0) > 1 &&
         at::globalContext().userEnabledMkldnn();
}

struct Call {
  ConvolutionPart part;
  at::Tensor lhs, rhs, result;
  std::optional<at::Tensor> bias;
  at::IntArrayRef stride, padding, dilation;
  int64_t groups;

  /// Whether each thread may have images of its own: there are as many, and ATen does not take its
  /// slow products for so few small ones. These are its conditions for one group.
  bool HasImagesFor(int64_t threads) const {
    if (lhs.size(0) < threads) return false;
    const at::Tensor& maps = part == ConvolutionPart::kInputGradient ? result : lhs;
    const at::Tensor& weight = part == ConvolutionPart::kWeightGradient ? result : rhs;
    const int64_t images = lhs.size(0) / threads;
    if (images > 1 || (weight.size(-1) > 3 && weight.size(-2) > 3)) return true;
    constexpr int64_t kLarge = 20480;
    const auto sizes = maps.sizes().slice(1, std::min<size_t>(3, maps.dim() - 1));
    return c10::multiply_integers(sizes) > kLarge;
  }

  /// Such that no large tensor is read by each part, nor copied to be cut: weights can be cut along
  /// the first dimension, maps along the batch.
  Cut BestCut(int64_t threads) const {
    const bool whole = groups == 1 && !HasImagesFor(threads);
    const bool heavy = groups == 1 && rhs.numel() > lhs.numel();  // weights, but for their gradient
    // oneDNN takes a vector of channels at a time.
    auto channels = [](int64_t count) { return std::max<int64_t>(count / 16, 1); };
    switch (part) {
      case ConvolutionPart::kForward:
        if (heavy || whole) return {-1, 0, 1, channels(rhs.size(0))};
        return {0, -1, 0, lhs.size(0)};
      case ConvolutionPart::kInputGradient:
        if (heavy || whole) return {1, 0, -1, channels(rhs.size(0))};
        return {0, -1, 0, lhs.size(0)};
      case ConvolutionPart::kWeightGradient:
        if (whole || (groups == 1 && result.numel() > rhs.numel())) {
          return {-1, 1, 0, channels(rhs.size(1))};
        }
        return {0, 0, -1, lhs.size(0)};
    }
    TORCH_INTERNAL_ASSERT(false);
  }

  at::Tensor Compute(const at::Tensor& a, const at::Tensor& b,
                     const std::optional<at::Tensor>& bias_part, const at::Tensor& like) const {
    const int64_t zeros[3] = {0, 0, 0};
    const at::IntArrayRef none(zeros, stride.size());
    // To one weight a channel it is nothing, but what is dilated is oneDNN's.
    const int64_t twos[3] = {2, 2, 2};
    const at::IntArrayRef dilation = part != ConvolutionPart::kWeightGradient && IsSlowProduct(a, b)
                                         ? at::IntArrayRef(twos, stride.size())
                                         : this->dilation;
    if (part == ConvolutionPart::kForward) {
      return at::convolution(a, b, bias_part, stride, padding, dilation, /*transposed=*/false, none,
                             groups);
    }
    // Of the operand whose gradient it is, only the sizes count.
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
    // Less than this is not worth a second thread.
    constexpr int64_t kLeast = 1 << 21;
    const int64_t products = part == ConvolutionPart::kForward ? result.numel() * rhs[0].numel()
                             : part == ConvolutionPart::kInputGradient
                                 ? lhs.numel() * rhs[0].numel()
                                 : rhs.numel() * result[0].numel();
    const int64_t threads = FfiThreads(frame);
    const Cut cut = BestCut(threads);
    const int64_t count = FfiParts(frame, products, kLeast, cut.extent);
    std::vector<at::Tensor> sums(cut.result < 0 ? count : 0);
    RunOnFfiThreads(frame, count, [&](int64_t i) {
      const AtenCalls calls;
      at::Tensor out = Part(result, cut.result, i, count);
      // Only its sizes count, but those of a view that is not contiguous would be copied.
      const at::Tensor like = result.flatten().narrow(0, 0, out.numel()).view(out.sizes());
      std::optional<at::Tensor> bias_part;
      if (bias) bias_part = Part(*bias, cut.rhs, i, count);
      at::Tensor made =
          Compute(Part(lhs, cut.lhs, i, count), Part(rhs, cut.rhs, i, count), bias_part, like);
      if (sums.empty()) {
        out.copy_(made);
      } else {
        sums[i] = std::move(made);
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
