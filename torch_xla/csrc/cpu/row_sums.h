// Tables in which few rows are not zero, each a sum of other rows: the gradients of embeddings.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/calls.h"
#include "runtime/ffi_abi.h"

namespace torch_xla::cpu {

/// A buffer of integers of 32 or 64 bits.
class FfiIntegers {
 public:
  explicit FfiIntegers(const void* buffer);
  int64_t size() const { return size_; }
  int64_t operator[](int64_t i) const {
    return is_long_ ? static_cast<const int64_t*>(data_)[i] : static_cast<const int32_t*>(data_)[i];
  }

 private:
  const void* data_;
  bool is_long_;
  int64_t size_;
};

/// to += from * scale, of `count` elements.
using AddRow = void (*)(const float* from, float scale, float* to, int64_t count);
AddRow FindAddRow();

/// Such a table of `rows` rows, made from the operands of a call.
class RowSums {
 public:
  RowSums(const runtime::pjrt::XLA_FFI_CallFrame& frame, const AddedRowsCall& call, int64_t rows);

  int64_t columns() const { return columns_; }
  /// How many rows of the table fit into the first cache.
  int64_t few_rows() const { return int64_t{1} << shift_; }
  /// Writes rows `begin` to `end` of the table. Each row is summed in the order of the indices.
  void Make(int64_t begin, int64_t end, float* to) const;

 private:
  struct Added {
    int64_t row;
    const float* from;
    float scale;
  };

  int64_t columns_;
  int shift_;  // few_rows(), as a power of two
  std::vector<Added> added_;
  std::vector<int64_t> starts_;  // in `added_`, of each few rows
};

}  // namespace torch_xla::cpu
