// One function per StableHLO operation. Each function checks its operands, infers the result type
// and emits the operation in the builder of its operands. Throws Error for anything that StableHLO
// does not allow. Dimension numbers are never negative. Unless said otherwise, the operands of an
// operation have equal types; use BroadcastTo and Convert before.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "stablehlo/builder.h"
#include "stablehlo/constants.h"

namespace torch_xla::stablehlo {

// ---- Elementwise, one operand -------------------------------------------------------

Value Abs(Value x);  // the result of a complex operand is real
Value Cbrt(Value x);
Value Ceil(Value x);
Value Cosine(Value x);
Value CountLeadingZeros(Value x);
Value Exponential(Value x);
Value ExponentialMinusOne(Value x);
Value Floor(Value x);
Value Imag(Value x);      // 0 for a float operand
Value IsFinite(Value x);  // kPred
Value Log(Value x);
Value LogPlusOne(Value x);
Value Logistic(Value x);
Value Negate(Value x);
Value Not(Value x);  // kPred: logical; integers: bitwise
Value PopulationCount(Value x);
Value Real(Value x);
Value Reciprocal(Value x);  // 1 / x
Value RoundNearestAfz(Value x);
Value RoundNearestEven(Value x);
Value Rsqrt(Value x);
Value Sign(Value x);
Value Sine(Value x);
Value Sqrt(Value x);
Value Tan(Value x);
Value Tanh(Value x);

// CHLO, which the plugin's compiler expands.
Value Acos(Value x);
Value Acosh(Value x);
Value Asin(Value x);
Value Asinh(Value x);
Value Atan(Value x);
Value Atanh(Value x);
Value Conj(Value x);
Value Cosh(Value x);
Value Digamma(Value x);
Value Erf(Value x);
Value ErfInv(Value x);
Value Erfc(Value x);
Value Lgamma(Value x);
Value Sinh(Value x);
Value IsInf(Value x);     // kPred
Value IsNegInf(Value x);  // kPred

// ---- Elementwise, several operands --------------------------------------------------

Value Add(Value a, Value b);  // kPred: or
Value And(Value a, Value b);
Value Atan2(Value a, Value b);
Value Complex(Value real, Value imag);
Value Divide(Value a, Value b);  // integers truncate towards zero
Value Maximum(Value a, Value b);
Value Minimum(Value a, Value b);
Value Multiply(Value a, Value b);  // kPred: and
Value Or(Value a, Value b);
Value Power(Value a, Value b);
Value Remainder(Value a, Value b);  // the sign is the dividend's
Value ShiftLeft(Value a, Value b);
Value ShiftRightArithmetic(Value a, Value b);
Value ShiftRightLogical(Value a, Value b);
Value Subtract(Value a, Value b);
Value Xor(Value a, Value b);
Value NextAfter(Value a, Value b);  // CHLO

enum class Direction { kEq, kNe, kGe, kGt, kLe, kLt };
/// Returns kPred. With `total_order` (for floats): -NaN < -inf < … < -0 < 0 < … < inf < NaN.
Value Compare(Value a, Value b, Direction direction, bool total_order = false);
/// `predicate` is kPred with the shape of the branches, or rank 0.
Value Select(Value predicate, Value on_true, Value on_false);
/// `low` and `high` have the shape of `x` or rank 0.
Value Clamp(Value low, Value x, Value high);

// ---- Element types ------------------------------------------------------------------

/// Converts values like a C++ cast (to kPred: x != 0). Returns `x` itself if nothing changes.
Value Convert(Value x, ElementType element);
/// Reinterprets bits. If the widths differ, the minormost dimension is split or joined.
Value BitcastConvert(Value x, ElementType element);

// ---- Shapes -------------------------------------------------------------------------

/// The same elements in row-major order. Returns `x` itself if nothing changes.
Value Reshape(Value x, const Dims& dims);
/// Dimension i of `x` becomes dimension broadcast_dimensions[i] of the result. The sizes must be
/// equal, or the size in `x` must be 1.
Value BroadcastInDim(Value x, const Dims& dims, const Dims& broadcast_dimensions);
/// Broadcasts with trailing dimensions aligned, like numpy and PyTorch. Returns `x` itself if
/// nothing changes.
Value BroadcastTo(Value x, const Dims& dims);
/// The common shape to which two operands broadcast.
Dims BroadcastShape(const Dims& a, const Dims& b);
/// Dimension i of the result is dimension permutation[i] of `x`. Returns `x` itself if nothing
/// moves.
Value Transpose(Value x, const Dims& permutation);
/// Empty `strides` mean 1 in all dimensions. Returns `x` itself if everything is taken.
Value Slice(Value x, const Dims& starts, const Dims& limits, const Dims& strides = {});
/// `starts` are rank-0 integers of one type, one per dimension; they are clamped so that the slice
/// fits.
Value DynamicSlice(Value x, const std::vector<Value>& starts, const Dims& sizes);
/// `known_starts` are the values of `starts`, if they are known.
Value DynamicUpdateSlice(Value x, Value update, const std::vector<Value>& starts,
                         const std::optional<Dims>& known_starts = {});
/// `low` and `high` may be negative. An empty `interior` means 0 in all dimensions.
Value Pad(Value x, Value value, const Dims& low, const Dims& high, const Dims& interior = {});
Value Concatenate(const std::vector<Value>& operands, int64_t dimension);
Value Reverse(Value x, const Dims& dimensions);
Value Iota(Builder& builder, const Type& type, int64_t dimension);

// ---- Indexing -----------------------------------------------------------------------

struct GatherDimensionNumbers {
  Dims offset_dims = {};
  Dims collapsed_slice_dims = {};
  Dims operand_batching_dims = {};
  Dims start_indices_batching_dims = {};
  Dims start_index_map = {};
  int64_t index_vector_dim = 0;
};
Value Gather(Value operand, Value start_indices, const GatherDimensionNumbers& numbers,
             const Dims& slice_sizes, bool indices_are_sorted = false);

struct ScatterDimensionNumbers {
  Dims update_window_dims = {};
  Dims inserted_window_dims = {};
  Dims input_batching_dims = {};
  Dims scatter_indices_batching_dims = {};
  Dims scatter_dims_to_operand_dims = {};
  int64_t index_vector_dim = 0;
};
/// `update` gets the old elements of all inputs and then the elements of all updates, with rank 0,
/// and returns the new elements.
std::vector<Value> Scatter(const std::vector<Value>& inputs, Value scatter_indices,
                           const std::vector<Value>& updates,
                           const ScatterDimensionNumbers& numbers, const Body& update,
                           bool indices_are_sorted = false, bool unique_indices = false);

enum class ReduceOp { kAdd, kMul, kMax, kMin, kAnd, kOr };
/// Scatters into a single input. Without `op` the update replaces the element.
Value Scatter(Value input, Value scatter_indices, Value updates,
              const ScatterDimensionNumbers& numbers, std::optional<ReduceOp> op = std::nullopt,
              bool indices_are_sorted = false, bool unique_indices = false);

// ---- Dot and convolution ------------------------------------------------------------

enum class Precision { kDefault, kHigh, kHighest };

struct DotDimensionNumbers {
  Dims lhs_batch = {}, rhs_batch = {};
  Dims lhs_contracting = {}, rhs_contracting = {};
};
/// The result has the dimensions [batch…, lhs free…, rhs free…] and the element type `result`
/// (kInvalid: the operands' type).
Value DotGeneral(Value lhs, Value rhs, const DotDimensionNumbers& numbers,
                 Precision precision = Precision::kDefault,
                 ElementType result = ElementType::kInvalid);

/// (low, high) per spatial dimension; both may be negative.
using Padding = std::vector<std::pair<int64_t, int64_t>>;

struct ConvolutionDimensionNumbers {
  int64_t input_batch = 0, input_feature = 1;
  Dims input_spatial = {};
  int64_t kernel_output_feature = 0, kernel_input_feature = 1;
  Dims kernel_spatial = {};
  int64_t output_batch = 0, output_feature = 1;
  Dims output_spatial = {};

  /// PyTorch's layout: [N, C, spatial…], [O, I, spatial…], [N, O, spatial…].
  static ConvolutionDimensionNumbers Nchw(int64_t spatial_rank);
};
struct ConvolutionOptions {
  // Per spatial dimension; empty lists mean 1, (0, 0), 1, 1 and false.
  Dims strides = {};
  Padding padding = {};
  Dims lhs_dilation = {}, rhs_dilation = {};
  std::vector<bool> window_reversal = {};
  int64_t feature_group_count = 1;
  int64_t batch_group_count = 1;
  Precision precision = Precision::kDefault;
  ElementType result = ElementType::kInvalid;  // kInvalid: the operands' type
};
Value Convolution(Value input, Value kernel, const ConvolutionDimensionNumbers& numbers,
                  const ConvolutionOptions& options = {});

// ---- Reductions ---------------------------------------------------------------------

/// The identity of `op` for an element type, rank 0.
Value ReduceIdentity(Builder& builder, ReduceOp op, ElementType element);
/// a op b.
Value Apply(ReduceOp op, Value a, Value b);

/// Reduces all operands (of equal shape) together over `dimensions`. `body` gets one accumulator
/// per operand and then one element per operand, with rank 0.
std::vector<Value> Reduce(const std::vector<Value>& operands, const std::vector<Value>& inits,
                          const Dims& dimensions, const Body& body);
Value Reduce(Value x, Value init, const Dims& dimensions, ReduceOp op);
/// Reduces with the identity of `op` as the initial value.
Value Reduce(Value x, const Dims& dimensions, ReduceOp op);

struct Window {
  Dims dimensions = {};
  // Per dimension of the operand; empty lists mean 1, 1, 1 and (0, 0).
  Dims strides = {}, base_dilations = {}, dilations = {};
  Padding padding = {};
};
std::vector<Value> ReduceWindow(const std::vector<Value>& operands, const std::vector<Value>& inits,
                                const Window& window, const Body& body);
Value ReduceWindow(Value x, Value init, const Window& window, ReduceOp op);
Value ReduceWindow(Value x, const Window& window, ReduceOp op);

/// Sorts all operands (of equal shape) together. `comparator` gets two elements of each operand
/// (a0, b0, a1, b1, …) and returns whether the first ones come first.
std::vector<Value> Sort(const std::vector<Value>& operands, int64_t dimension, bool stable,
                        const Body& comparator);
struct TopKResult {
  Value values, indices;  // indices are kS32
};
/// The k largest along the last dimension, descending (chlo.top_k).
TopKResult TopK(Value x, int64_t k);

// ---- Random numbers, FFT, linear algebra ----------------------------------------------

enum class RngAlgorithm { kDefault, kThreeFry, kPhilox };
struct RngResult {
  Value state, bits;
};
/// `state` is a rank-1 kU64 (of size 2 for ThreeFry, 2 or 3 for Philox). `type` is an integer or
/// float type.
RngResult RngBitGenerator(Value state, RngAlgorithm algorithm, const Type& type);

enum class FftType { kFft, kIfft, kRfft, kIrfft };
/// Transforms the last length.size() dimensions.
Value Fft(Value x, FftType fft_type, const Dims& length);
Value Cholesky(Value a, bool lower);
enum class Side { kLeft, kRight };  // op(a) x = b, x op(a) = b
enum class TransposeA { kNoTranspose, kTranspose, kAdjoint };
Value TriangularSolve(Value a, Value b, Side side, bool lower, bool unit_diagonal,
                      TransposeA transpose_a);

// ---- Control ------------------------------------------------------------------------

/// `condition` and `body` get the state; they may use values from outside.
std::vector<Value> While(const std::vector<Value>& init, const Body& condition, const Body& body);
/// The branches get no arguments, may use values from outside, and return equal types.
std::vector<Value> If(Value predicate, const Body& on_true, const Body& on_false);
std::vector<Value> OptimizationBarrier(const std::vector<Value>& operands);

struct OutputOperandAlias {
  int64_t output = 0;
  int64_t operand = 0;
};
struct CustomCallOptions {
  /// 1: a status-returning function with an opaque string; 4: a typed XLA FFI handler.
  int api_version = 4;
  /// For api_version 4 the inside of an MLIR dictionary (`axis = 1 : i64`); for earlier versions
  /// any bytes.
  std::string backend_config = {};
  bool has_side_effect = false;
  std::vector<OutputOperandAlias> aliases = {};
  /// Minor-to-major layouts; set both or neither.
  std::vector<Dims> operand_layouts = {}, result_layouts = {};
  /// More attributes, as the inside of an MLIR dictionary: `mhlo.sharding = "{…}"`.
  std::string attributes = {};
};
std::vector<Value> CustomCall(Builder& builder, std::string_view target,
                              const std::vector<Value>& operands, const std::vector<Type>& results,
                              const CustomCallOptions& options = {});

// ---- Collectives --------------------------------------------------------------------

/// Groups of replica (or device) numbers; empty: a single group of all.
using ReplicaGroups = std::vector<std::vector<int64_t>>;
struct CollectiveOptions {
  /// 0: across replicas; else the channel of a cross-partition collective.
  int64_t channel_id = 0;
  /// Whether the groups hold flattened ids (needs a channel).
  bool use_global_device_ids = false;
};
std::vector<Value> AllReduce(const std::vector<Value>& operands, const ReplicaGroups& groups,
                             const Body& body, const CollectiveOptions& options = {});
std::vector<Value> AllReduce(const std::vector<Value>& operands, const ReplicaGroups& groups,
                             ReduceOp op, const CollectiveOptions& options = {});
/// `group_size` is the number of members of a group (of all replicas if `groups` is empty).
Value AllGather(Value x, int64_t dimension, int64_t group_size, const ReplicaGroups& groups,
                const CollectiveOptions& options = {});
Value ReduceScatter(Value x, int64_t dimension, int64_t group_size, const ReplicaGroups& groups,
                    ReduceOp op, const CollectiveOptions& options = {});
Value AllToAll(Value x, int64_t split_dimension, int64_t concat_dimension, int64_t split_count,
               const ReplicaGroups& groups, const CollectiveOptions& options = {});
/// A replica that is no target gets zeros.
Value CollectivePermute(Value x, const std::vector<std::pair<int64_t, int64_t>>& source_targets,
                        const CollectiveOptions& options = {});
Value ReplicaId(Builder& builder);  // kU32, rank 0

}  // namespace torch_xla::stablehlo
