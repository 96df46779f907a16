// The ways in which this library computes convolutions. Each function returns whether it did.
#pragma once

#include "cpu/convolution_columns.h"
#include "runtime/ffi_abi.h"

namespace torch_xla::cpu {

// Groups of few channels, such as depthwise convolutions, are sums of planes (convolution_plane.h)
// times a weight: a product of matrices would be too small.

/// Computes a convolution of floats with `groups` groups and one or two dimensions, or a gradient,
/// on XLA's threads, if the groups are small enough. Returns false if a weight or its gradient is
/// not finite, because the product with a padded zero would be NaN, and ATen computes no such
/// product. `bias` [O] may be null.
bool RunGroups(const ConvolutionProduct& call, int64_t groups,
               const runtime::pjrt::XLA_FFI_CallFrame& frame, const float* bias);

// A convolution and its gradients are products of the weights and the columns of the input
// (convolution_columns.h). oneDNN copies weights and maps into blocks of its own and back, which
// takes longer than the products if there are few pixels or little work.

/// Computes y, or the gradient of x or w, for one group on XLA's threads, if that is the fastest
/// way. `bias` [O] is for y only and may be null.
bool RunProducts(const ConvolutionProduct& call, const runtime::pjrt::XLA_FFI_CallFrame& frame,
                 const float* bias);

// Kernels of 3 x 3 with stride 1, and of 4 x 4 with stride 2, are computed in Winograd's tiles
// (winograd_tiles.h). They take fewer multiplications than oneDNN, and no thread copies weights
// into blocks.

/// Whether tiles halve the multiplications: few of their pixels lie outside of the maps.
bool WinogradHalvesProducts(const ConvolutionProduct& call);

/// Computes such a convolution of floats, or a gradient, on XLA's threads, if it is large enough.
/// Returns false if a result is not finite: the transforms make NaN of an infinite input, where
/// PyTorch's result is infinite or finite. `bias` [O] may be null.
bool RunWinograd(const ConvolutionProduct& call, const runtime::pjrt::XLA_FFI_CallFrame& frame,
                 const float* bias);

}  // namespace torch_xla::cpu
