// The call that computes a convolution or one of its gradients: by this library's products, tiles
// or planes where these are faster (convolution_ways.h), else by ATen's kernels (oneDNN).
#pragma once

#include <cstdint>
#include <span>

#include "cpu/calls.h"

namespace torch_xla::cpu {

enum class ConvolutionPart : int64_t { kForward, kInputGradient, kWeightGradient };

/// Operands: x, w and optionally a bias for y; dy and w for the gradient of x; x and dy for the
/// gradient of w. All have the same element type, float or bfloat16, and none is empty.
inline constexpr const char* kConvolutionTarget = "torch_xla.cpu_convolution";

/// The convolution of x [N, C, input…] with w [O, C / groups, kernel…] is y [N, O, output…].
struct ConvolutionCall {
  ConvolutionPart part;
  int64_t groups;
  Words stride, padding, dilation;

  Words Encode() const {
    Words words{static_cast<int64_t>(part), groups};
    for (const Words* list : {&stride, &padding, &dilation}) {
      words.insert(words.end(), list->begin(), list->end());
    }
    return words;
  }
  static ConvolutionCall Decode(std::span<const int64_t> words) {
    const size_t rank = (words.size() - 2) / 3;
    auto list = [&](size_t i) {
      const auto values = words.subspan(2 + i * rank, rank);
      return Words(values.begin(), values.end());
    };
    return {static_cast<ConvolutionPart>(words[0]), words[1], list(0), list(1), list(2)};
  }
};

}  // namespace torch_xla::cpu
