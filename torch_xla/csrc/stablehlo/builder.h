// Builds one StableHLO module as MLIR text: a public function @main and any
// private functions. The ops themselves are the free functions of ops.h.
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

/// A handle to one SSA value; copy it freely. It lives as long as its builder, and
/// may be used in the region that made it and in regions nested in that one.
class Value {
 public:
  Value() = default;

  bool valid() const { return builder_ != nullptr; }
  /// The accessors throw Error on an invalid value. References stay good as long
  /// as the builder lives.
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

/// Makes the ops of a region from its arguments; returns what the region returns.
using Body = std::function<std::vector<Value>(std::span<const Value> arguments)>;

/// A finished region, ready to be put in one op.
struct Region {
  std::string text;
  std::vector<Type> results;
};

/// What stablehlo.transpose makes of `operand` (transposition.h).
struct Transposition {
  Value operand;
  Dims permutation;
  Dims swap;  // the operand's dimensions, of which the last two swap, if it may be made in memory
  Value result;  // made there, once it is
};

class Builder {
 public:
  Builder();
  Builder(const Builder&) = delete;
  Builder& operator=(const Builder&) = delete;

  /// The next parameter of @main. Parameters may be added at any time.
  /// `attributes` is the inside of an MLIR dictionary: `mhlo.sharding = "{replicated}"`.
  Value Parameter(const Type& type, std::string_view attributes = {});
  int num_parameters() const { return static_cast<int>(parameters_.size()); }
  /// Donates the buffer of a parameter to an output (`tf.aliasing_output`).
  void SetAlias(int parameter, int output);
  /// Adds attributes to a parameter or an output of @main.
  void AddParameterAttributes(int parameter, std::string_view attributes);
  void AddOutputAttributes(int output, std::string_view attributes);
  /// How many devices the program's values are divided over: one, unless it is said here.
  void SetPartitions(int64_t count) { partitions_ = count; }
  int64_t partitions() const { return partitions_; }

  /// The module's text, with @main returning `outputs`. `name` is the module's name,
  /// which XLA makes the executable's. The builder stays usable.
  std::string Finish(std::span<const Value> outputs, std::string_view name = "main") const;
  std::string Finish(std::initializer_list<Value> outputs, std::string_view name = "main") const;

  /// Where the ops made from now on come from; `name` (may be empty) names them in profiles.
  void SetLocation(std::string_view file, int line, std::string_view name = {});
  void ClearLocation() { location_.clear(); }

  /// Any op, unchecked but for its operands' visibility: `name` with its dialect
  /// ("stablehlo.add"), `attributes` the inside of an MLIR dictionary.
  std::vector<Value> Op(std::string_view name, std::span<const Value> operands,
                        std::span<const Type> results, std::string_view attributes = {},
                        std::span<const Region> regions = {});
  /// The same for an op with one result.
  Value Op(std::string_view name, std::initializer_list<Value> operands, const Type& result,
           std::string_view attributes = {}, std::span<const Region> regions = {});
  Value Op(std::string_view name, std::span<const Value> operands, const Type& result,
           std::string_view attributes = {}, std::span<const Region> regions = {});
  /// An op without operands of which equal ones in a region are made once
  /// (constants, iotas).
  Value UniqueOp(std::string_view name, const Type& result, std::string_view attributes);

  /// `body` as a region with arguments of these types, ended by `stablehlo.return`.
  Region MakeRegion(std::span<const Type> arguments, const Body& body);

  /// A private function; it sees none of the values outside. Returns its symbol,
  /// `name` made unique.
  std::string Function(std::string_view name, std::span<const Type> arguments, const Body& body);
  /// Private functions that are given as text (function_text.h), once for each text. Returns the
  /// symbol of the first.
  std::string AddFunctions(std::string_view text);
  /// In which form they are taken from now on.
  void TakeFunctions(FunctionForm form) { function_form_ = form; }
  /// Calls a private function of this builder.
  std::vector<Value> Call(std::string_view symbol, std::span<const Value> operands);

  /// Whether elementwise ops made from now on may be computed on fewer dimensions (joined_dims.h).
  void JoinDimensions(bool joins) { joins_dimensions_ = joins; }
  bool joins_dimensions() const { return joins_dimensions_; }
  /// A bit for each dimension that a value varies along, as far as is known: not those that it was
  /// broadcast to. The last bit is for all dimensions from it on.
  uint32_t Varies(Value x) const { return values_[x.id_].varies; }
  void SetVaries(Value x, uint32_t dims) { values_[x.id_].varies = dims; }
  /// Whether it reads its elements from other places, dimension by dimension, as a slice does.
  bool IsRearranged(Value x) const { return values_[x.id_].rearranged; }
  /// Notes that it does; returns it.
  Value Rearranged(Value x) {
    values_[x.id_].rearranged = true;
    return x;
  }
  /// What an elementwise op made, of which `x` is a reshape; invalid where there is none that can
  /// be seen here.
  Value JoinedForm(Value x) const;
  void SetJoinedForm(Value x, Value form) { values_[x.id_].joined = form.id_; }

  /// Whether an elementwise op made it, which becomes a part of what reads it.
  bool IsFused(Value x) const { return values_[x.id_].fused; }
  void SetFused(Value x, bool fused) { values_[x.id_].fused = fused; }

  /// What a value is a transposition of, or a reshape of one; null where it is none.
  Transposition* FindTransposition(Value x);
  void SetTransposition(Value x, Transposition transposition);
  /// Notes that `x` is a reshape of `of`.
  void ShareTransposition(Value x, Value of);

  /// Whether it may be used in the region that is being made.
  bool IsVisible(Value x) const { return x.valid() && IsVisible(values_[x.id_]); }

  /// Ops made so far, those in regions and functions included.
  int64_t num_ops() const { return num_ops_; }

  /// Emits `text` with each `$0`, `$1`, … (at most `$9`) replaced by that operand's
  /// name, for ops whose short form says more than the generic one.
  std::vector<Value> PrettyOp(std::string_view text, std::span<const Value> operands,
                              std::span<const Type> results);

 private:
  friend class Value;
  struct Record {
    Type type;
    int block;      // the block that made it
    int number;     // %number, or %argnumber of @main
    int result;     // %number#result; -1 for an op of one result
    bool argument;  // of @main
    uint32_t varies = ~uint32_t{0};
    bool rearranged = false;
    bool fused = false;
    int joined = -1;         // value id
    int transposition = -1;  // in transpositions_
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
  int NewValue(const Type& type, int number, int result, bool argument);
  void AppendName(const Record& record, std::string& out) const;
  void AppendIndent(std::string& out) const;
  void AppendResultNames(int number, size_t results, std::string& out) const;
  std::vector<Value> NewResults(int number, std::span<const Type> results);
  void OpenBlock();
  Block CloseBlock();
  Region RunBody(std::span<const Type> arguments, const Body& body, std::string_view terminator,
                 std::vector<int>& argument_ids);

  bool joins_dimensions_ = false;
  FunctionForm function_form_ = FunctionForm::kPlain;
  std::deque<Record> values_;
  std::deque<Transposition> transpositions_;
  std::vector<Block> blocks_;  // open ones, outermost first; blocks_[0] is @main's
  size_t isolation_ = 0;       // blocks_ below this one cannot be seen
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
