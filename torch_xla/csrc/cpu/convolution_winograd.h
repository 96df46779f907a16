// Convolutions by 3 x 3 kernels of stride 1, and 4 x 4 ones of stride 2, by Winograd's tiles
// (winograd_tiles.h): 2.25 and 1.78 times fewer multiplications than in oneDNN, and no weights
// brought into blocks by each thread.
#pragma once

#include "cpu/convolution_columns.h"
#include "runtime/ffi_abi.h"

namespace torch_xla::cpu {

/// Whether it does with half as many multiplications: where the tiles have few pixels to spare.
bool WinogradHalvesProducts(const ConvolutionProduct& call);

/// Writes the part of a convolution of floats that is asked for, on XLA's threads, where it is one
/// of these and large enough; returns whether it has. It has not where the result is not finite: an
/// infinite input makes NaN of what is infinite, or finite, in PyTorch. `bias` [O] may be null.
bool RunWinograd(const ConvolutionProduct& call, const runtime::pjrt::XLA_FFI_CallFrame& frame,
                 const float* bias);

}  // namespace torch_xla::cpu
