// Checks for numbers that an operator cannot accept, such as divisors that are 0 and indices out of
// range, which XLA clamps or skips. Indices from the host are checked at once. Others are checked
// on the device if that is enabled, and reported at the next read; so is other data that the CPU's
// operators refuse.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <optional>

namespace torch_xla::aten {

/// Whether indices are checked on the device: torch_xla.config.check_indices.
inline std::atomic<bool> indices_are_checked{false};

/// The exception that the CPU's operator raises. Checks on the device always raise IndexError.
enum class Raises { kIndexError, kRuntimeError };
using enum Raises;

/// Checks that the elements of `index` are in [low, high), or equal `ignored`. The range is known
/// for uploaded data and for fills, so a violation raises here. Data computed on the device, and a
/// part of an upload that is out of range as a whole, are checked only if checks on the device are
/// enabled: the program computes a result that is kept until the next read, and nothing waits for
/// it.
void CheckIndex(const char* op, const at::Tensor& index, int64_t low, int64_t high,
                std::optional<int64_t> ignored = std::nullopt, Raises raises = kIndexError);
/// The same for an index on the CPU.
void CheckCpuIndex(const char* op, const at::Tensor& index, int64_t low, int64_t high);

/// If checks on the device are enabled, raises RuntimeError with `message` at the next read if the
/// bool on the device that `all_good` returns is false.
void NoteGood(const char* op, const char* message, const at::Tensor& good);
template <typename AllGood>
void CheckData(const char* op, const char* message, AllGood all_good) {
  if (indices_are_checked.load(std::memory_order_relaxed)) NoteGood(op, message, all_good());
}

/// Checks for embedding_bag that indices are rows of `weight`, and that the offsets of bags in
/// `indices` begin with 0 and ascend.
void CheckBags(const char* op, const at::Tensor& weight, const at::Tensor& indices,
               const at::Tensor& offsets);

/// Checks by CheckData that inputs and targets are in [0, 1].
void CheckProbabilities(const char* op, const at::Tensor& input, const at::Tensor& target);
/// Checks the range of histc, which is the range of the data if `min` equals `max`.
void CheckRange(const char* op, const at::Tensor& self, const at::Scalar& min,
                const at::Scalar& max);
/// Checks that `source` has enough numbers for the mask, which is broadcast to `self`.
void CheckEnough(const char* op, const at::Tensor& self, const at::Tensor& mask,
                 const at::Tensor& source);

/// Checks for integers divided by 0, which is an error on the CPU. Only zeros from the host are
/// found.
void CheckDivisor(const at::Tensor& self, const at::Tensor& other);
void CheckDivisor(const at::Tensor& self, const at::Scalar& other);
void CheckDivisor(const at::Scalar& self, const at::Tensor& other);

/// Checks the number of repeats of each element, which must add up to `total`. Only numbers from
/// the host are checked.
void CheckRepeats(const at::Tensor& repeats, int64_t total);

/// Throws IndexError for the first index of `device` found out of range since the last call, with
/// operator, line and value. Called before a thread waits for a result.
void ThrowIndexError(int device);

/// The size that an index into dimension `dim` of `tensor` must stay below; a zero-dim tensor
/// counts as a vector with one element.
inline int64_t SizeAt(const at::Tensor& tensor, int64_t dim) {
  const int64_t rank = std::max<int64_t>(tensor.dim(), 1);
  dim = dim < 0 ? dim + rank : dim;
  // If there is no such dimension, the operator reports that.
  if (dim < 0 || dim >= rank) return std::numeric_limits<int64_t>::max();
  return tensor.dim() == 0 ? 1 : tensor.size(dim);
}

}  // namespace torch_xla::aten
