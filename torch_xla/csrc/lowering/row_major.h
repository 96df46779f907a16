// The memory layout that libraries expect.
#pragma once

#include "stablehlo/type.h"

namespace torch_xla::lowering {

/// The minor-to-major order of a dense row-major array.
inline stablehlo::Dims RowMajor(int64_t rank) {
  stablehlo::Dims minor_to_major;
  for (int64_t i = rank; i-- > 0;) minor_to_major.push_back(i);
  return minor_to_major;
}

}  // namespace torch_xla::lowering
