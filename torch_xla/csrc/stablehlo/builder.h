// Builds one StableHLO module as MLIR text: a public function @main and any number of private
// functions. The operations themselves are the free functions of ops.h.
#pragma once

#include <deque>
#include <functional>
#include <initializer_list>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "stablehlo/function_text.h"
#include "stablehlo/type.h"

namespace torch_xla::stablehlo {

class Builder;

/// A handle to an SSA value; cheap to copy. It is valid as long as its builder lives, and may be
/// used in the region that made it and in regions nested in that region.
class Value {
 public:
  Value() = default;

  bool valid() const { return builder_ != nullptr; }
  /// The accessors throw Error for an invalid value. References stay valid as long as the builder
  /// lives.
  Builder& builder() const;
  const Type& type() const;
  ElementType element() const { return type().element; }
  const Dims& dims() const { return type().dims; }
  /// Size of dimension `i`; a negative `i` counts from the end.
  int64_t dim(int64_t i) const;
  int64_t rank() const { return type().rank(); }
  bool operator==(const Value&) const = default;

 private:
  friend class Builder;
  Value(Builder* builder, int id) : builder_(builder), id_(id) {}
  Builder* builder_ = nullptr;
  int id_ = -1;
};

/// Makes the operations of a region from its arguments, and returns the results of the region.
using Body = std::function<std::vector<Value>(std::span<const Value> arguments)>;

/// A finished region, ready to be put into one operation.
struct Region {
  std::string text;
  std::vector<Type> results;
};

/// The result of stablehlo.transpose on `operand` (transposition.h).
struct Transposition {
  Value operand;
  Dims permutation;
  Dims swap;  // if it may be made in memory: the operand as three dimensions, of which the last two
              // are swapped
  Value result;  // the value made in memory, once it exists
};

/// What the search for updates in place needs to know of an operation (in_place_update.h).
enum class OpKind : uint8_t {
  kOther,
  kReshape,
  kSlice,
  kUpdate,      // dynamic_update_slice
  kNeverFused,  // XLA computes the operation's operands before it
};

class Builder {
 public:
  Builder();
  Builder(const Builder&) = delete;
  Builder& operator=(const Builder&) = delete;

  /// Adds the next parameter of @main; may be called at any time. `attributes` is the inside of an
  /// MLIR dictionary: `mhlo.sharding = "{replicated}"`.
  Value Parameter(const Type& type, std::string_view attributes = {});
  int num_parameters() const { return static_cast<int>(parameters_.size()); }
  /// Donates the buffer of a parameter to an output (`tf.aliasing_output`).
  void SetAlias(int parameter, int output);
  /// Adds attributes to a parameter or an output of @main.
  void AddParameterAttributes(int parameter, std::string_view attributes);
  void AddOutputAttributes(int output, std::string_view attributes);
  /// Sets the number of devices over which the program's values are partitioned; 1 by default.
  void SetPartitions(int64_t count) { partitions_ = count; }
  int64_t partitions() const { return partitions_; }

  /// The text of the module, with @main returning `outputs`. XLA gives the module's `name` to the
  /// executable. The builder can be used further.
  std::string Finish(std::span<const Value> outputs, std::string_view name = "main") const;
  std::string Finish(std::initializer_list<Value> outputs, std::string_view name = "main") const;

  /// Sets the source location of the operations made from now on. `name` (may be empty) names them
  /// in profiles.
  void SetLocation(std::string_view file, int line, std::string_view name = {});
  void ClearLocation() { location_.clear(); }

  /// Emits any operation; only the visibility of its operands is checked. `name` includes the
  /// dialect ("stablehlo.add"), `attributes` is the inside of an MLIR dictionary.
  std::vector<Value> Op(std::string_view name, std::span<const Value> operands,
                        std::span<const Type> results, std::string_view attributes = {},
                        std::span<const Region> regions = {});
  /// The same for an operation with one result.
  Value Op(std::string_view name, std::initializer_list<Value> operands, const Type& result,
           std::string_view attributes = {}, std::span<const Region> regions = {});
  Value Op(std::string_view name, std::span<const Value> operands, const Type& result,
           std::string_view attributes = {}, std::span<const Region> regions = {});
  /// Emits an operation without operands (a constant, an iota); equal ones in a region are emitted
  /// only once.
  Value UniqueOp(std::string_view name, const Type& result, std::string_view attributes);

  /// Makes `body` a region with arguments of these types, ended by `stablehlo.return`.
  Region MakeRegion(std::span<const Type> arguments, const Body& body);

  /// Makes a private function, which sees no values from outside. Returns its symbol: `name`, made
  /// unique.
  std::string Function(std::string_view name, std::span<const Type> arguments, const Body& body);
  /// Adds private functions that are given as text (function_text.h), once for each text. Returns
  /// the symbol of the first function.
  std::string AddFunctions(std::string_view text);
  /// Sets the form in which AddFunctions takes functions from now on.
  void TakeFunctions(FunctionForm form) { function_form_ = form; }
  /// Calls a private function of this builder.
  std::vector<Value> Call(std::string_view symbol, std::span<const Value> operands);

  /// Sets whether elementwise operations made from now on may be computed on fewer dimensions
  /// (joined_dims.h).
  void JoinDimensions(bool joins) { joins_dimensions_ = joins; }
  bool joins_dimensions() const { return joins_dimensions_; }
  /// A bit for each dimension along which a value may vary; a value does not vary along dimensions
  /// that it was broadcast to. The last bit stands for all further dimensions.
  uint32_t Varies(Value x) const { return values_[x.id_].varies; }
  void SetVaries(Value x, uint32_t dims) { values_[x.id_].varies = dims; }
  /// Whether the value reads its elements from other positions, dimension by dimension, as a slice
  /// does.
  bool IsRearranged(Value x) const { return values_[x.id_].rearranged; }
  /// Notes that IsRearranged() is true for the value, and returns it.
  Value Rearranged(Value x) {
    values_[x.id_].rearranged = true;
    return x;
  }
  /// The result of an elementwise operation of which `x` is a reshape; invalid if there is none
  /// that is visible here.
  Value JoinedForm(Value x) const;
  void SetJoinedForm(Value x, Value form) { values_[x.id_].joined = form.id_; }

  /// Whether an elementwise operation made the value, which XLA will fuse into its readers.
  bool IsFused(Value x) const { return values_[x.id_].fused; }
  void SetFused(Value x, bool fused) { values_[x.id_].fused = fused; }

  /// The transposition that a value is, or is a reshape of; null if there is none.
  Transposition* FindTransposition(Value x);
  void SetTransposition(Value x, Transposition transposition);
  /// Notes that `x` is a reshape of `of`.
  void ShareTransposition(Value x, Value of);

  /// The operation that made a value, and its operands.
  OpKind KindOf(Value x) const { return MadeBy(x).kind; }
  std::vector<Value> OperandsOf(Value x);
  /// Where a slice with steps of 1 starts; null for other values.
  const Dims* StartsOf(Value x) const;
  void SetStarts(Value x, const Dims& starts) { starts_.emplace(x.id_, starts); }
  /// The number of values so far. They are numbered in the order in which they were made.
  size_t num_values() const { return values_.size(); }
  size_t NumberOf(Value x) const { return x.id_; }

  /// Whether the value may be used in the region that is being made.
  bool IsVisible(Value x) const { return x.valid() && IsVisible(values_[x.id_]); }

  /// The number of operations made so far, including those in regions and functions.
  int64_t num_ops() const { return num_ops_; }

  /// Emits `text` with each `$0`, `$1`, … (at most `$9`) replaced by the name of that operand. For
  /// operations whose short form says more than the generic form.
  std::vector<Value> PrettyOp(std::string_view text, std::span<const Value> operands,
                              std::span<const Type> results);

 private:
  friend class Value;
  struct Record {
    Type type;
    int block;      // id of the block that made it
    int number;     // %number, or %argnumber of @main
    int result;     // %number#result; -1 for an operation with one result
    bool argument;  // whether it is a parameter of @main
    uint32_t varies = ~uint32_t{0};
    bool rearranged = false;
    bool fused = false;
    int joined = -1;         // value id
    int transposition = -1;  // index in transpositions_
  };
  struct Operation {
    OpKind kind = OpKind::kOther;
    int first = 0, count = 0;  // its operands in operands_
  };
  struct Block {
    int id;
    std::string text;
    std::unordered_map<std::string, int> unique;  // text of a UniqueOp -> value id
  };
  struct FunctionSignature {
    std::vector<Type> arguments, results;
  };
  struct ParameterInfo {
    int value;
    int alias = -1;
    std::string attributes;
  };

  std::string UniqueSymbol(std::string_view name) const;
  const Record& Check(Value value, std::string_view op) const;
  bool IsVisible(const Record& record) const;
  Operation MadeBy(Value x) const;
  int NewValue(const Type& type, int number, int result, bool argument);
  void AppendName(const Record& record, std::string& out) const;
  void AppendIndent(std::string& out) const;
  void AppendResultNames(int number, size_t results, std::string& out) const;
  std::vector<Value> NewResults(int number, std::span<const Value> operands, OpKind kind,
                                std::span<const Type> results);
  void OpenBlock();
  Block CloseBlock();
  Region RunBody(std::span<const Type> arguments, const Body& body, std::string_view terminator,
                 std::vector<int>& argument_ids);

  bool joins_dimensions_ = false;
  FunctionForm function_form_ = FunctionForm::kPlain;
  std::deque<Record> values_;
  std::vector<Operation> operations_;  // by %number
  std::vector<int> operands_;          // value ids
  std::unordered_map<int, Dims> starts_;
  std::deque<Transposition> transpositions_;
  std::vector<Block> blocks_;  // open blocks, outermost first; blocks_[0] is @main's
  size_t isolation_ = 0;       // blocks below this index are not visible
  int next_block_ = 0, next_number_ = 0;
  int64_t num_ops_ = 0;
  std::vector<ParameterInfo> parameters_;
  std::map<int, std::string> output_attributes_;
  int64_t partitions_ = 1;
  std::string location_;
  std::string functions_;
  std::map<std::string, FunctionSignature, std::less<>> signatures_;
  std::map<std::string, std::string, std::less<>> texts_;  // AddFunctions: text -> symbol
};

}  // namespace torch_xla::stablehlo
