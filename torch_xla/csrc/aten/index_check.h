// Indices out of range, which XLA clamps or skips: found on the device, told at the next read.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <optional>

namespace torch_xla::aten {

/// Whether indices are checked: torch_xla.config.check_indices.
inline std::atomic<bool> indices_are_checked{false};

/// Checks, if so asked, that the elements of `index` are in [low, high), or `ignored`. What is not
/// is remembered by a number that the program computes; nothing waits for it.
void CheckIndex(const char* op, const at::Tensor& index, int64_t low, int64_t high,
                std::optional<int64_t> ignored = std::nullopt);
/// The same for an index on the host, always and at once: IndexError.
void CheckHostIndex(const at::Tensor& index, int64_t low, int64_t high, int64_t dim);

/// IndexError for the first index of `device` that was found out of range since the last time:
/// operator, line and value. For those who are about to wait for a result.
void ThrowIndexError(int device);

/// Of an index into dimension `dim` of `tensor`; a number counts as a vector of one.
inline int64_t SizeAt(const at::Tensor& tensor, int64_t dim) {
  const int64_t rank = std::max<int64_t>(tensor.dim(), 1);
  dim = dim < 0 ? dim + rank : dim;
  // Where there is no such dimension the operator says so.
  if (dim < 0 || dim >= rank) return std::numeric_limits<int64_t>::max();
  return tensor.dim() == 0 ? 1 : tensor.size(dim);
}

}  // namespace torch_xla::aten
