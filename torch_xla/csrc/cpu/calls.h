// What programs call: the name of each call, and what it is told beside its operands, for both who
// writes the call (ops/, lowering/) and who does its work (handlers.h).
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

namespace torch_xla::cpu {

using Words = std::vector<int64_t>;
/// The attribute that has the words of a call.
inline constexpr std::string_view kWords = "words";

/// A struct of fields of eight bytes each as words, and back.
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

/// Of a few rows, of float or bfloat16, with weights [*, n, k], or, by columns, [*, k, n].
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

/// So few queries take keys and values as a cache has them.
inline constexpr int64_t kFewQueries = 4;
/// Of more rows the weights are no longer nearly all, and packing them pays.
inline constexpr int64_t kFewRows = 32;

/// As xla::recurrent and xla::recurrent_backward (ops/recurrent.h), with these operands: gates,
/// weight, bias, hidden, and LSTM's cells before the first time; output's gradient, weight, hidden,
/// the forward's results, and LSTM's cells before the first time and the gradient of those after
/// the last.
inline constexpr const char* kRecurrentTarget = "torch_xla.cpu_recurrent";
inline constexpr const char* kRecurrentBackwardTarget = "torch_xla.cpu_recurrent_backward";
struct RecurrentCall {
  int64_t is_lstm;  // or a GRU
  int64_t reverse;
};

// ---------------------------------------------------------------- rows

/// The sum of a matrix's rows, in float of bfloat16.
inline constexpr const char* kColumnSumsTarget = "torch_xla.cpu_column_sums";

/// Of each row the maximum, and the logarithm of the sum of exp(x - maximum); operands x [rows…,
/// columns], and a bias [columns] to be added to each row, if there is one.
inline constexpr const char* kRowSumsTarget = "torch_xla.cpu_row_sums";
/// Operands x, maximum, logarithm, class and gradient of each row, and the bias, if there is one.
inline constexpr const char* kCrossEntropyBackwardTarget = "torch_xla.cpu_cross_entropy_backward";
inline constexpr const char* kLogSoftmaxTarget = "torch_xla.cpu_log_softmax";
inline constexpr const char* kLogSoftmaxBackwardTarget = "torch_xla.cpu_log_softmax_backward";
inline constexpr const char* kSoftmaxTarget = "torch_xla.cpu_softmax";
inline constexpr const char* kSoftmaxBackwardTarget = "torch_xla.cpu_softmax_backward";
struct SoftmaxCall {
  int64_t safe;  // zeros where all elements are -inf
};

/// Operands: classes, the one that is ignored, the logarithms (or the result's gradient and the
/// total weight), and the weights, if there are any.
inline constexpr const char* kNllLossTarget = "torch_xla.cpu_nll_loss";
inline constexpr const char* kNllLossBackwardTarget = "torch_xla.cpu_nll_loss_backward";
struct NllLossCall {
  int64_t reduction;  // as at::Reduction has it
  int64_t has_weights;
};

/// Where the operands of a call are that make a table of zeros but for a few rows (row_sums.h); -1:
/// there is none.
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

/// What has moments of its own, and what a weight is for.
enum class NormalizedGroups : int64_t {
  kLayers,  // a row; an element of it
  kGroups,  // some channels of a row; a channel
  kBatch,   // a channel of all rows; the channel
};

/// An array of `rows` of `groups` each, of `channels` in a group, of `length` elements. There is
/// one group of one channel in a layer's row, and one of all channels in a batch's.
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

/// Operands: input, eps (of double), and what there is of weight, bias, running mean, running
/// variance, momentum (of double, where there is one of them) and addend. Results: output, mean,
/// inverse standard deviation, and what there is of the running ones.
inline constexpr const char* kNormalizationTarget = "torch_xla.cpu_normalization";
struct NormalizationCall {
  NormalizedForm form;
  int64_t has_weight, has_bias, has_running_mean, has_running_variance;
  int64_t rectifies;  // of a batch: the output is ReLU(normalized + addend)
  int64_t has_addend;
};

/// Operands: the output's gradient, input, mean, inverse standard deviation, and what there is of
/// weight and rectified output. Results: those gradients that are asked for.
inline constexpr const char* kNormalizationBackwardTarget = "torch_xla.cpu_normalization_backward";
struct NormalizationBackwardCall {
  NormalizedForm form;
  int64_t gives_input, gives_weight, gives_bias;
  int64_t has_weight, has_rectified;
};

// ---------------------------------------------------------------- the rest

inline constexpr const char* kPointwiseTarget = "torch_xla.cpu_pointwise";
struct PointwiseCall {
  int64_t function;  // by FindPointwise()
};
/// The number of the function by its operator's name ("aten::sin"); -1 where there is none.
int64_t FindPointwise(std::string_view name);

enum class Reduction : int64_t { kSum, kProduct, kMax, kMin, kNorm };
inline constexpr const char* kReductionTarget = "torch_xla.cpu_reduction";
/// The words of the dimensions follow.
struct ReductionCall {
  Reduction reduction;
  double p;  // of a norm
};
/// Of two vectors.
inline constexpr const char* kDotTarget = "torch_xla.cpu_dot";
/// Of each operand.
inline constexpr const char* kNormsTarget = "torch_xla.cpu_norms";

inline constexpr const char* kMaxPoolBackwardTarget = "torch_xla.cpu_max_pool_backward";
struct MaxPoolBackwardCall {
  int64_t planes, inputs, outputs;  // inputs and outputs of a plane
};

/// What rng_bit_generator (Philox) gives after so many blocks of 4 words, from the state [seed, 0].
inline constexpr const char* kRandomBitsTarget = "torch_xla.cpu_random_bits";
struct RandomBitsCall {
  int64_t blocks;
};

/// Leaves its result as it lies. Of calls that are equal XLA makes one, and a copy for each that
/// writes there.
inline constexpr const char* kEmptyTarget = "torch_xla.cpu_empty";
struct EmptyCall {
  int64_t number;
};

inline constexpr const char* kStackTarget = "torch_xla.cpu_stack";
inline constexpr const char* kUnbindTarget = "torch_xla.cpu_unbind";
struct StackCall {
  int64_t bytes;  // of a part
};

/// [batch, rows, columns] becomes [batch, columns, rows].
inline constexpr const char* kTranspositionTarget = "torch_xla.cpu_transposition";

/// Arrays of numbers to numbers.
inline constexpr const char* kUnpackNumbersTarget = "torch_xla.unpack_numbers";

// ---------------------------------------------------------------- the host's program

/// Hands arrays to the host (host_calls.h).
inline constexpr const char* kHostCallTarget = "torch_xla.cpu_host_call";
/// The number if the first operand has a NaN and the second operand, a number, is not less, else
/// the second operand.
inline constexpr const char* kHasNanTarget = "torch_xla.cpu_has_nan";
struct HasNanCall {
  int64_t number;
};
/// A call with the first operand and the number of this run, by the number that the second operand
/// is, unless the first is the largest number (exec/nan_search.h).
inline constexpr const char* kNanReportTarget = "torch_xla.cpu_nan_report";

}  // namespace torch_xla::cpu
