// The functions that do the work of the calls (calls.h) on XLA's threads.
#pragma once

#include "runtime/ffi_abi.h"

namespace torch_xla::cpu {

using Work = void(const runtime::pjrt::XLA_FFI_CallFrame& frame);

Work RunAddRows;
Work RunAttention;
Work RunAttentionBackward;
Work RunColumnSums;
Work RunConvolution;
Work RunCrossEntropyBackward;
Work RunDot;
Work RunEmbeddingBag;
Work RunEmpty;
Work RunFewRows;
Work RunForeach;
Work RunHasNan;
Work RunHostCall;
Work RunMatmul;
Work RunMaxPoolBackward;
Work RunNanReport;
Work RunNormalization;
Work RunNormalizationBackward;
Work RunNorms;
Work RunPointwise;
Work RunRandomBits;
Work RunRecurrent;
Work RunRecurrentBackward;
Work RunReduction;
Work RunRowSums;
Work RunSoftmax;
Work RunSoftmaxBackward;
Work RunStack;
Work RunTransposition;
Work RunUnbind;
Work RunUnpackNumbers;

}  // namespace torch_xla::cpu
