// The ways of this library to compute a convolution; each says whether it has.
#pragma once

#include "cpu/convolution_columns.h"
#include "runtime/ffi_abi.h"

namespace torch_xla::cpu {

// Convolutions in groups of few channels, down to those of each channel by a kernel of its own:
// sums of planes (convolution_plane.h) times a weight, where there is too little for a product.

/// Writes the part of a convolution of floats in `groups`, of one or two dimensions, that is asked
/// for, on XLA's threads, where groups are so small; returns whether it has. It has not where
/// weights or their gradients are not finite: those by which ATen does not multiply padding would
/// be NaN. `bias` [O] may be null.
bool RunGroups(const ConvolutionProduct& call, int64_t groups,
               const runtime::pjrt::XLA_FFI_CallFrame& frame, const float* bias);

// A convolution and its gradients as products of matrices: its weights, and the columns of what
// each position of the output sees. oneDNN brings weights and maps into blocks of its own and back,
// and is asked by way of ATen: of few pixels, and of little work, that takes longer than the
// products.

/// Writes y, or the gradient of x or of w, of one group, on XLA's threads, where that is faster so;
/// returns whether it is. `bias` [O], of y alone, may be null.
bool RunProducts(const ConvolutionProduct& call, const runtime::pjrt::XLA_FFI_CallFrame& frame,
                 const float* bias);

// Convolutions by 3 x 3 kernels of stride 1, and 4 x 4 ones of stride 2, by Winograd's tiles
// (winograd_tiles.h): 2.25 and 1.78 times fewer multiplications than in oneDNN, and no weights
// brought into blocks by each thread.

/// Whether it does with half as many multiplications: where the tiles have few pixels to spare.
bool WinogradHalvesProducts(const ConvolutionProduct& call);

/// Writes the part of a convolution of floats that is asked for, on XLA's threads, where it is one
/// of these and large enough; returns whether it has. It has not where the result is not finite: an
/// infinite input makes NaN of what is infinite, or finite, in PyTorch. `bias` [O] may be null.
bool RunWinograd(const ConvolutionProduct& call, const runtime::pjrt::XLA_FFI_CallFrame& frame,
                 const float* bias);

}  // namespace torch_xla::cpu
