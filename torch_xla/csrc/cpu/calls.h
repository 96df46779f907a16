// The custom calls of programs on the CPU: the name of each call and its attribute, shared by the
// code that writes the call (ops/, lowering/) and the handler that does its work (handlers.h).
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

namespace torch_xla::cpu {

using Words = std::vector<int64_t>;
/// The name of the attribute, a list of 64-bit words.
inline constexpr std::string_view kWords = "words";

/// Converts a struct whose fields have eight bytes each to words, and back.
template <typename T>
Words ToWords(const T& call) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % sizeof(int64_t) == 0);
  Words words(sizeof(T) / sizeof(int64_t));
  std::memcpy(words.data(), &call, sizeof(T));
  return words;
}
template <typename T>
T FromWords(std::span<const int64_t> words) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % sizeof(int64_t) == 0);
  T call;
  std::memcpy(&call, words.data(), sizeof(T));
  return call;
}

// ---------------------------------------------------------------- products

inline constexpr const char* kMatmulTarget = "torch_xla.cpu_matmul";
struct MatmulCall {
  int64_t lhs_transposed, rhs_transposed;
};

/// Multiplies a few rows of float or bfloat16 by weights [*, n, k], or [*, k, n] `by_columns`.
inline constexpr const char* kFewRowsTarget = "torch_xla.cpu_few_rows";
struct FewRowsCall {
  int64_t by_columns;
};

inline constexpr const char* kAttentionTarget = "torch_xla.cpu_attention";
inline constexpr const char* kAttentionBackwardTarget = "torch_xla.cpu_attention_backward";
struct AttentionCall {
  int64_t is_causal, has_scale;
  double scale;
};

/// xla::recurrent and xla::recurrent_backward (ops/recurrent.h). The operands of the former: gates,
/// weight, bias, hidden, and an LSTM's initial cells. The operands of the latter: the gradient of
/// the output, weight, hidden, the results of the forward call, and an LSTM's initial cells and the
/// gradient of its last cells.
inline constexpr const char* kRecurrentTarget = "torch_xla.cpu_recurrent";
inline constexpr const char* kRecurrentBackwardTarget = "torch_xla.cpu_recurrent_backward";
struct RecurrentCall {
  int64_t is_lstm;  // or a GRU
  int64_t reverse;
};

// ---------------------------------------------------------------- rows

/// Adds the rows of a matrix of float or bfloat16. The result is float.
inline constexpr const char* kColumnSumsTarget = "torch_xla.cpu_column_sums";

/// The maximum of each row, and the logarithm of its sum of exp(x - maximum). Operands: x [rows…,
/// columns], and optionally a bias [columns], which is added to each row.
inline constexpr const char* kRowSumsTarget = "torch_xla.cpu_row_sums";
/// Operands: x; maximum, logarithm, class and gradient of each row; and optionally the bias.
inline constexpr const char* kCrossEntropyBackwardTarget = "torch_xla.cpu_cross_entropy_backward";
inline constexpr const char* kSoftmaxTarget = "torch_xla.cpu_softmax";
inline constexpr const char* kSoftmaxBackwardTarget = "torch_xla.cpu_softmax_backward";
struct SoftmaxCall {
  int64_t safe;  // a row of which all elements are -inf becomes zeros, not NaN
};

/// The positions of the operands from which a call makes a table with a few nonzero rows
/// (row_sums.h); -1 for an operand that is absent.
struct AddedRowsCall {
  int64_t grad, index, of, scale, padding;
};
inline constexpr const char* kAddRowsTarget = "torch_xla.cpu_add_rows";

inline constexpr const char* kEmbeddingBagTarget = "torch_xla.cpu_embedding_bag";
struct EmbeddingBagCall {
  int64_t is_mean;
  int64_t padding;  // -1: none
};

// ---------------------------------------------------------------- normalization

/// The part of an array that has its own moments; and the part that has its own weight.
enum class NormalizedGroups : int64_t {
  kLayers,  // a row; an element of the row
  kGroups,  // some channels of a row; a channel
  kBatch,   // a channel of all rows; the channel
};

/// The sizes of an array [rows, groups, channels, length]. For a layer norm a row has one group of
/// one channel; for a batch norm it has one group of all channels.
struct NormalizedForm {
  NormalizedGroups kind;
  int64_t rows, groups, channels, length;

  bool is_batch() const { return kind == NormalizedGroups::kBatch; }
  int64_t num_groups() const { return is_batch() ? channels : rows * groups; }
  int64_t group_size() const { return (is_batch() ? rows : channels) * length; }
  int64_t num_parameters() const {
    return kind == NormalizedGroups::kLayers ? length : groups * channels;
  }
};

/// Operands: input, eps (double); then, as far as the call has them: weight, bias, running mean,
/// running variance, momentum (double, with either statistic), addend. Results: output, mean,
/// inverse standard deviation, and the new running statistics.
inline constexpr const char* kNormalizationTarget = "torch_xla.cpu_normalization";
struct NormalizationCall {
  NormalizedForm form;
  int64_t has_weight, has_bias, has_running_mean, has_running_variance;
  int64_t rectifies;  // batch norm only: the output is ReLU(normalized + addend)
  int64_t has_addend;
};

/// Operands: the gradient of the output, input, mean, inverse standard deviation; then weight and
/// rectified output, as far as the call has them. Results: the gradients that the call gives.
inline constexpr const char* kNormalizationBackwardTarget = "torch_xla.cpu_normalization_backward";
struct NormalizationBackwardCall {
  NormalizedForm form;
  int64_t gives_input, gives_weight, gives_bias;
  int64_t has_weight, has_rectified;
};

// ---------------------------------------------------------------- the rest

inline constexpr const char* kPointwiseTarget = "torch_xla.cpu_pointwise";
struct PointwiseCall {
  int64_t function;  // as FindPointwise() returns it
};
/// The number of the function for an operator ("aten::sin"); -1 if there is none.
int64_t FindPointwise(std::string_view name);

enum class Reduction : int64_t { kSum, kProduct, kMax, kMin, kNorm };
inline constexpr const char* kReductionTarget = "torch_xla.cpu_reduction";
/// The dimensions to reduce follow, a word for each.
struct ReductionCall {
  Reduction reduction;
  double p;  // the order of a norm
};
/// The inner product of two vectors.
inline constexpr const char* kDotTarget = "torch_xla.cpu_dot";
/// The Euclidean norm of each operand.
inline constexpr const char* kNormsTarget = "torch_xla.cpu_norms";

inline constexpr const char* kMaxPoolBackwardTarget = "torch_xla.cpu_max_pool_backward";
struct MaxPoolBackwardCall {
  int64_t planes, inputs, outputs;  // a plane has `inputs` and `outputs` elements
};

/// The output of rng_bit_generator (Philox) from the state [seed, 0], after `blocks` blocks.
inline constexpr const char* kRandomBitsTarget = "torch_xla.cpu_random_bits";
struct RandomBitsCall {
  int64_t blocks;  // of four 32-bit words
};

/// Leaves its result uninitialized. `number` keeps calls apart: XLA would merge equal calls, and
/// then copy the result for each operation that writes to it.
inline constexpr const char* kEmptyTarget = "torch_xla.cpu_empty";
struct EmptyCall {
  int64_t number;
};

inline constexpr const char* kStackTarget = "torch_xla.cpu_stack";
inline constexpr const char* kUnbindTarget = "torch_xla.cpu_unbind";
struct StackCall {
  int64_t bytes;  // the size of one part
};

/// Transposes [batch, rows, columns] to [batch, columns, rows].
inline constexpr const char* kTranspositionTarget = "torch_xla.cpu_transposition";

/// Splits arrays of numbers into arrays of rank 0.
inline constexpr const char* kUnpackNumbersTarget = "torch_xla.unpack_numbers";

// ---------------------------------------------------------------- the host's program

/// Hands arrays to a function of the host (host_calls.h).
inline constexpr const char* kHostCallTarget = "torch_xla.cpu_host_call";
/// Returns the smaller of `number` and the second operand if the first operand contains a NaN, else
/// the second operand.
inline constexpr const char* kHasNanTarget = "torch_xla.cpu_has_nan";
struct HasNanCall {
  int64_t number;
};
/// Calls the function of the host whose number is the second operand, with the first operand and
/// the number of this run, unless the first operand is the largest int64 (exec/nan_search.h).
inline constexpr const char* kNanReportTarget = "torch_xla.cpu_nan_report";

}  // namespace torch_xla::cpu
