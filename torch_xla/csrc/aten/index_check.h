// Numbers that an operator cannot take. Indices out of range, which XLA clamps or skips: found at
// once where the indices came from the host, else, if so asked, on the device, and told at the next
// read, as other data is that the CPU's operators refuse. Divisors that are 0.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <optional>

namespace torch_xla::aten {

/// Whether indices are checked on the device: torch_xla.config.check_indices.
inline std::atomic<bool> indices_are_checked{false};

/// What the CPU's operator raises. On the device it is IndexError for all.
enum class Raises { kIndexError, kRuntimeError };
using enum Raises;

/// Checks that the elements of `index` are in [low, high), or `ignored`. Of what was uploaded, or
/// filled with a number, the range is known: it raises here. Of what the device computes, and of a
/// part of an upload that goes beyond, it is found out if so asked, and is remembered by a number
/// that the program computes; nothing waits for it.
void CheckIndex(const char* op, const at::Tensor& index, int64_t low, int64_t high,
                std::optional<int64_t> ignored = std::nullopt, Raises raises = kIndexError);
/// The same for an index on the CPU.
void CheckCpuIndex(const char* op, const at::Tensor& index, int64_t low, int64_t high);

/// RuntimeError with `message` at the next read, if indices are checked and what `all_good` gives,
/// a bool that the device computes, turns out to be false.
void NoteGood(const char* op, const char* message, const at::Tensor& good);
template <typename AllGood>
void CheckData(const char* op, const char* message, AllGood all_good) {
  if (indices_are_checked.load(std::memory_order_relaxed)) NoteGood(op, message, all_good());
}

/// Of embedding_bag: the rows of `weight`, and where bags begin in `indices`, from 0 on in
/// ascending order.
void CheckBags(const char* op, const at::Tensor& weight, const at::Tensor& indices,
               const at::Tensor& offsets);

/// By CheckData: inputs and targets in [0, 1].
void CheckProbabilities(const char* op, const at::Tensor& input, const at::Tensor& target);
/// The range of histc, which is that of the data where it is given by two equal numbers.
void CheckRange(const char* op, const at::Tensor& self, const at::Scalar& min,
                const at::Scalar& max);
/// Enough numbers in `source` for the mask, which is as large as `self`.
void CheckEnough(const char* op, const at::Tensor& self, const at::Tensor& mask,
                 const at::Tensor& source);

/// Integers by a zero are an error on the CPU: here of a zero that came from the host.
void CheckDivisor(const at::Tensor& self, const at::Tensor& other);
void CheckDivisor(const at::Tensor& self, const at::Scalar& other);
void CheckDivisor(const at::Scalar& self, const at::Tensor& other);

/// How often elements are repeated, which are to be `total` in all: of numbers from the host.
void CheckRepeats(const at::Tensor& repeats, int64_t total);

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
