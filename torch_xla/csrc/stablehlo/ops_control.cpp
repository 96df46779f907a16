#include "stablehlo/ops.h"
#include "stablehlo/text.h"

namespace torch_xla::stablehlo {
namespace {

const Type& PredType() {
  static const Type type = ScalarType(ElementType::kPred);
  return type;
}

/// Like CheckTensors, but allows tokens.
Builder& CheckValues(std::string_view op, std::span<const Value> operands) {
  if (operands.empty()) Fail(op, "at least one operand", operands);
  for (Value v : operands) {
    if (!v.valid()) Fail(op, "valid values", operands);
    if (&v.builder() != &operands[0].builder()) Fail(op, "values of the same builder", operands);
  }
  return operands[0].builder();
}

std::vector<Value> Branch(std::string_view op, Value selector, const std::vector<Body>& branches) {
  Builder& builder = selector.builder();
  std::vector<Region> regions;
  for (const Body& branch : branches) {
    regions.push_back(builder.MakeRegion({}, branch));
    if (!SameTypes(regions.back().results, regions[0].results)) {
      throw Error(Cat(op, ": expected branches of equal types, got (",
                      TypeNames(regions[0].results), ") and (", TypeNames(regions.back().results),
                      ")"));
    }
  }
  std::vector<Type> results = regions[0].results;
  return builder.Op(op, std::span<const Value>(&selector, 1), results, {}, regions);
}

std::string LayoutsText(const std::vector<Dims>& layouts) {
  std::string out = "[";
  for (size_t i = 0; i < layouts.size(); ++i) {
    if (i > 0) out += ", ";
    out += Cat("dense<", layouts[i].empty() ? "" : List(layouts[i]), "> : tensor<",
               layouts[i].size(), "xindex>");
  }
  return out + "]";
}

/// Checks that there is one permutation per value.
void CheckLayouts(std::string_view op, const std::vector<Dims>& layouts,
                  const std::vector<Type>& types, std::span<const Value> operands) {
  if (layouts.size() != types.size()) {
    Fail(op, Cat(types.size(), " layouts, not ", layouts.size()), operands);
  }
  for (size_t i = 0; i < types.size(); ++i) {
    CheckDistinct(op, "a layout", layouts[i], types[i].rank(), operands);
    if (static_cast<int64_t>(layouts[i].size()) != types[i].rank()) {
      Fail(op, Cat("a layout of ", types[i].ToString(), ", not ", List(layouts[i])), operands);
    }
  }
}

}  // namespace

std::vector<Value> While(const std::vector<Value>& init, const Body& condition, const Body& body) {
  constexpr std::string_view kOp = "stablehlo.while";
  Builder& builder = CheckValues(kOp, init);
  std::vector<Type> types = TypesOf(init);
  Region regions[2];
  regions[0] = builder.MakeRegion(types, condition);
  if (!SameTypes(regions[0].results, {&PredType(), 1})) {
    Fail(kOp, Cat("a condition that returns tensor<i1>, not ", TypeNames(regions[0].results)),
         init);
  }
  regions[1] = builder.MakeRegion(types, body);
  if (!SameTypes(regions[1].results, types)) {
    Fail(kOp,
         Cat("a body that returns the types of the state, not ", TypeNames(regions[1].results)),
         init);
  }
  return builder.Op(kOp, init, types, {}, regions);
}

std::vector<Value> If(Value predicate, const Body& on_true, const Body& on_false) {
  constexpr std::string_view kOp = "stablehlo.if";
  CheckTensors(kOp, {predicate});
  if (predicate.type() != PredType()) Fail(kOp, "a predicate of type tensor<i1>", {predicate});
  return Branch(kOp, predicate, {on_true, on_false});
}

std::vector<Value> OptimizationBarrier(const std::vector<Value>& operands) {
  constexpr std::string_view kOp = "stablehlo.optimization_barrier";
  if (operands.empty()) return {};
  Builder& builder = CheckValues(kOp, operands);
  return builder.Op(kOp, operands, TypesOf(operands));
}

std::vector<Value> CustomCall(Builder& builder, std::string_view target,
                              const std::vector<Value>& operands, const std::vector<Type>& results,
                              const CustomCallOptions& options) {
  constexpr std::string_view kOp = "stablehlo.custom_call";
  for (Value v : operands) {
    if (!v.valid()) Fail(kOp, "valid values", operands);
  }
  std::string attributes =
      Cat("call_target_name = ", Quoted(target), ", api_version = ", options.api_version, " : i32");
  if (options.has_side_effect) attributes += ", has_side_effect = true";
  if (!options.backend_config.empty()) {
    attributes += options.api_version >= 4
                      ? Cat(", backend_config = {", options.backend_config, "}")
                      : Cat(", backend_config = ", Quoted(options.backend_config));
  }
  if (!options.operand_layouts.empty() || !options.result_layouts.empty()) {
    CheckLayouts(kOp, options.operand_layouts, TypesOf(operands), operands);
    CheckLayouts(kOp, options.result_layouts, results, operands);
    attributes += Cat(", operand_layouts = ", LayoutsText(options.operand_layouts),
                      ", result_layouts = ", LayoutsText(options.result_layouts));
  }
  if (!options.aliases.empty()) {
    attributes += ", output_operand_aliases = [";
    for (size_t i = 0; i < options.aliases.size(); ++i) {
      OutputOperandAlias alias = options.aliases[i];
      bool valid = alias.output >= 0 && alias.output < static_cast<int64_t>(results.size()) &&
                   alias.operand >= 0 && alias.operand < static_cast<int64_t>(operands.size());
      if (!valid || results[alias.output] != operands[alias.operand].type()) {
        Fail(kOp,
             Cat("output ", alias.output, " to be aliased to an operand of its type, not ",
                 alias.operand),
             operands);
      }
      if (i > 0) attributes += ", ";
      attributes += Cat("#stablehlo.output_operand_alias<output_tuple_indices = ",
                        results.size() == 1 ? "[]" : List({{alias.output}}),
                        ", operand_index = ", alias.operand, ", operand_tuple_indices = []>");
    }
    attributes += "]";
  }
  if (!options.attributes.empty()) attributes += Cat(", ", options.attributes);
  return builder.Op(kOp, operands, results, attributes);
}

}  // namespace torch_xla::stablehlo
