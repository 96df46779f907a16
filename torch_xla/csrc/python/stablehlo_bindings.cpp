// The StableHLO builder for lowerings in Python: torch_xla.library.hlo. A traced function becomes
// text, which torch_xla.library.stablehlo calls.
#include <pybind11/complex.h>
#include <pybind11/typing.h>
#include <torch/csrc/utils/pybind.h>

#include <map>
#include <memory>
#include <variant>

#include "lowering/context.h"
#include "ops/stablehlo_op.h"
#include "ops/stack.h"
#include "python/bindings.h"
#include "stablehlo/arithmetic.h"

namespace torch_xla::python {

namespace py = pybind11;

namespace {

using stablehlo::Body;
using stablehlo::Builder;
using stablehlo::Dims;
using stablehlo::Direction;
using stablehlo::Literal;
using stablehlo::ReduceOp;
using stablehlo::Type;

/// A value that keeps its builder alive as long as Python holds the value.
struct Handle {
  std::shared_ptr<Builder> builder;
  stablehlo::Value value;

  Handle With(stablehlo::Value other) const { return {builder, other}; }
};

using Number = std::variant<bool, int64_t, double, std::complex<double>>;
using Operand = std::variant<Handle, Number>;
using Handles = py::typing::Tuple<Handle, py::ellipsis>;
using Function = py::typing::Callable<py::object(py::ellipsis)>;

Literal ToLiteral(const Number& number) {
  return std::visit([](auto v) { return Literal(v); }, number);
}

std::vector<stablehlo::Value> ValuesOf(const std::vector<Handle>& handles) {
  std::vector<stablehlo::Value> values;
  for (const Handle& handle : handles) values.push_back(handle.value);
  return values;
}

Handles AsTuple(const std::shared_ptr<Builder>& builder, std::span<const stablehlo::Value> values) {
  Handles tuple(values.size());
  for (size_t i = 0; i < values.size(); ++i) tuple[i] = py::cast(Handle{builder, values[i]});
  return tuple;
}

/// The values that a Python function returned: a single one, or a sequence.
std::vector<stablehlo::Value> Returned(const py::object& object) {
  if (py::isinstance<Handle>(object)) return {object.cast<Handle>().value};
  if (py::isinstance<py::tuple>(object) || py::isinstance<py::list>(object)) {
    std::vector<stablehlo::Value> values;
    for (py::handle item : object) {
      if (!py::isinstance<Handle>(item)) break;
      values.push_back(item.cast<Handle>().value);
    }
    if (!values.empty() && values.size() == py::len(object)) return values;
  }
  throw py::type_error("hlo: expected the function to return a value or a tuple of values, got " +
                       py::repr(object).cast<std::string>());
}

Body BodyOf(const std::shared_ptr<Builder>& builder, const Function& function) {
  return [builder, function](std::span<const stablehlo::Value> arguments) {
    return Returned(function(*AsTuple(builder, arguments)));
  };
}

template <typename T>
T Named(const char* what, const std::map<std::string, T>& names, const std::string& name) {
  if (auto found = names.find(name); found != names.end()) return found->second;
  std::string known;
  for (const auto& [known_name, _] : names) known += (known.empty() ? "" : ", ") + known_name;
  throw py::value_error("hlo: expected `" + std::string(what) + "` to be one of " + known +
                        ", got \"" + name + "\"");
}

Direction DirectionOf(const std::string& name) {
  return Named<Direction>("direction",
                          {{"eq", Direction::kEq},
                           {"ne", Direction::kNe},
                           {"ge", Direction::kGe},
                           {"gt", Direction::kGt},
                           {"le", Direction::kLe},
                           {"lt", Direction::kLt}},
                          name);
}

ReduceOp ReduceOpOf(const std::string& name) {
  return Named<ReduceOp>("op",
                         {{"add", ReduceOp::kAdd},
                          {"multiply", ReduceOp::kMul},
                          {"maximum", ReduceOp::kMax},
                          {"minimum", ReduceOp::kMin},
                          {"and", ReduceOp::kAnd},
                          {"or", ReduceOp::kOr}},
                         name);
}

/// Applies `op` to both operands, broadcast to one shape; a number takes the type of the other
/// operand.
template <typename F>
Handle Together(const Operand& a, const Operand& b, F op) {
  const Handle* x = std::get_if<Handle>(&a);
  const Handle* y = std::get_if<Handle>(&b);
  if (!x && !y) throw py::type_error("hlo: expected a value among the operands, got two numbers");
  auto value = [](const Operand& operand, const Handle* other) {
    if (auto* handle = std::get_if<Handle>(&operand)) return handle->value;
    return FullLike(other->value, ToLiteral(std::get<Number>(operand)));
  };
  auto [left, right] = stablehlo::BroadcastTogether(value(a, y), value(b, x));
  return (x ? x : y)->With(op(left, right));
}

using Unary = stablehlo::Value (*)(stablehlo::Value);
using Binary = stablehlo::Value (*)(stablehlo::Value, stablehlo::Value);

#define HLO(name, function) {#name, &stablehlo::function}

constexpr std::pair<const char*, Unary> kUnary[] = {HLO(abs, Abs),
                                                    HLO(acos, Acos),
                                                    HLO(acosh, Acosh),
                                                    HLO(asin, Asin),
                                                    HLO(asinh, Asinh),
                                                    HLO(atan, Atan),
                                                    HLO(atanh, Atanh),
                                                    HLO(cbrt, Cbrt),
                                                    HLO(ceil, Ceil),
                                                    HLO(conj, Conj),
                                                    HLO(cosh, Cosh),
                                                    HLO(cosine, Cosine),
                                                    HLO(count_leading_zeros, CountLeadingZeros),
                                                    HLO(digamma, Digamma),
                                                    HLO(erf, Erf),
                                                    HLO(erf_inv, ErfInv),
                                                    HLO(erfc, Erfc),
                                                    HLO(exponential, Exponential),
                                                    HLO(exponential_minus_one, ExponentialMinusOne),
                                                    HLO(floor, Floor),
                                                    HLO(imag, Imag),
                                                    HLO(is_finite, IsFinite),
                                                    HLO(lgamma, Lgamma),
                                                    HLO(log, Log),
                                                    HLO(log_plus_one, LogPlusOne),
                                                    HLO(logistic, Logistic),
                                                    HLO(negate, Negate),
                                                    HLO(not_, Not),
                                                    HLO(popcnt, PopulationCount),
                                                    HLO(real, Real),
                                                    HLO(round_nearest_afz, RoundNearestAfz),
                                                    HLO(round_nearest_even, RoundNearestEven),
                                                    HLO(rsqrt, Rsqrt),
                                                    HLO(sign, Sign),
                                                    HLO(sine, Sine),
                                                    HLO(sinh, Sinh),
                                                    HLO(sqrt, Sqrt),
                                                    HLO(tan, Tan),
                                                    HLO(tanh, Tanh)};

constexpr std::pair<const char*, Binary> kBinary[] = {
    HLO(add, Add),
    HLO(and_, And),
    HLO(atan2, Atan2),
    HLO(complex, Complex),
    HLO(divide, Divide),
    HLO(maximum, Maximum),
    HLO(minimum, Minimum),
    HLO(multiply, Multiply),
    HLO(or_, Or),
    HLO(power, Power),
    HLO(remainder, Remainder),
    HLO(shift_left, ShiftLeft),
    HLO(shift_right_arithmetic, ShiftRightArithmetic),
    HLO(shift_right_logical, ShiftRightLogical),
    HLO(subtract, Subtract),
    HLO(xor, Xor)};

#undef HLO

void BindValue(py::module_& hlo) {
  py::class_<Handle> value(hlo, "Value", "A value of the function that is being traced.");
  value.def_property_readonly("shape", [](const Handle& x) {
    return py::typing::Tuple<int64_t, py::ellipsis>(py::cast(x.value.dims()));
  });
  value.def_property_readonly("dtype",
                              [](const Handle& x) { return aten::DtypeOf(x.value.element()); });
  value.def("__repr__", [](const Handle& x) { return "<hlo " + x.value.type().ToString() + ">"; });
  auto method = [&](const char* name, const char* reflected, Binary op) {
    value.def(
        name, [op](const Operand& a, const Operand& b) { return Together(a, b, op); },
        py::is_operator());
    value.def(
        reflected, [op](const Operand& a, const Operand& b) { return Together(b, a, op); },
        py::is_operator());
  };
  method("__add__", "__radd__", &stablehlo::Add);
  method("__sub__", "__rsub__", &stablehlo::Subtract);
  method("__mul__", "__rmul__", &stablehlo::Multiply);
  method("__truediv__", "__rtruediv__", &stablehlo::Divide);
  method("__and__", "__rand__", &stablehlo::And);
  method("__or__", "__ror__", &stablehlo::Or);
  value.def("__neg__", [](const Handle& x) { return x.With(Negate(x.value)); });
  for (const char* name : {"lt", "le", "gt", "ge"}) {
    const Direction direction = DirectionOf(name);
    value.def((std::string("__") + name + "__").c_str(),
              [direction](const Operand& a, const Operand& b) {
                return Together(a, b, [&](auto x, auto y) { return Compare(x, y, direction); });
              },
              py::is_operator());
  }
}

void BindElementwise(py::module_& hlo) {
  for (const auto& [name, op] : kUnary) {
    hlo.def(name, [op = op](const Handle& x) { return x.With(op(x.value)); }, py::arg("x"));
  }
  for (const auto& [name, op] : kBinary) {
    hlo.def(
        name, [op = op](const Operand& a, const Operand& b) { return Together(a, b, op); },
        py::arg("a"), py::arg("b"));
  }
  hlo.def(
      "compare",
      [](const Operand& a, const Operand& b, const std::string& direction) {
        return Together(a, b,
                        [&](auto x, auto y) { return Compare(x, y, DirectionOf(direction)); });
      },
      py::arg("a"), py::arg("b"), py::arg("direction"));
  hlo.def(
      "select",
      [](const Handle& predicate, const Operand& on_true, const Operand& on_false) {
        return Together(on_true, on_false, [&](auto x, auto y) {
          return Select(BroadcastTo(predicate.value, x.dims()), x, y);
        });
      },
      py::arg("predicate"), py::arg("on_true"), py::arg("on_false"));
  hlo.def(
      "convert",
      [](const Handle& x, at::ScalarType dtype) {
        return x.With(Convert(x.value, lowering::NaturalType(dtype)));
      },
      py::arg("x"), py::arg("dtype"));
  hlo.def(
      "bitcast_convert",
      [](const Handle& x, at::ScalarType dtype) {
        return x.With(BitcastConvert(x.value, lowering::NaturalType(dtype)));
      },
      py::arg("x"), py::arg("dtype"));
  hlo.def(
      "full_like",
      [](const Handle& x, const Number& number) {
        return x.With(FullLike(x.value, ToLiteral(number)));
      },
      py::arg("x"), py::arg("number"));
}

void BindShapes(py::module_& hlo) {
  hlo.def(
      "reshape", [](const Handle& x, const Dims& shape) { return x.With(Reshape(x.value, shape)); },
      py::arg("x"), py::arg("shape"));
  hlo.def(
      "broadcast_to",
      [](const Handle& x, const Dims& shape) { return x.With(BroadcastTo(x.value, shape)); },
      py::arg("x"), py::arg("shape"));
  hlo.def(
      "broadcast_in_dim",
      [](const Handle& x, const Dims& shape, const Dims& dims) {
        return x.With(BroadcastInDim(x.value, shape, dims));
      },
      py::arg("x"), py::arg("shape"), py::arg("dims"));
  hlo.def(
      "transpose",
      [](const Handle& x, const Dims& permutation) {
        return x.With(Transpose(x.value, permutation));
      },
      py::arg("x"), py::arg("permutation"));
  hlo.def(
      "slice",
      [](const Handle& x, const Dims& starts, const Dims& limits, const Dims& strides) {
        return x.With(Slice(x.value, starts, limits, strides));
      },
      py::arg("x"), py::arg("starts"), py::arg("limits"), py::arg("strides") = Dims());
  hlo.def(
      "pad",
      [](const Handle& x, const Number& number, const Dims& low, const Dims& high,
         const Dims& interior) {
        return x.With(Pad(x.value, ScalarLike(x.value, ToLiteral(number)), low, high, interior));
      },
      py::arg("x"), py::arg("number"), py::arg("low"), py::arg("high"),
      py::arg("interior") = Dims());
  hlo.def(
      "concatenate",
      [](const std::vector<Handle>& values, int64_t dim) {
        if (values.empty()) throw py::value_error("hlo.concatenate: expected at least one value");
        return values[0].With(Concatenate(ValuesOf(values), dim));
      },
      py::arg("values"), py::arg("dim"));
  hlo.def(
      "reverse", [](const Handle& x, const Dims& dims) { return x.With(Reverse(x.value, dims)); },
      py::arg("x"), py::arg("dims"));
  hlo.def(
      "dynamic_slice",
      [](const Handle& x, const std::vector<Handle>& starts, const Dims& sizes) {
        return x.With(DynamicSlice(x.value, ValuesOf(starts), sizes));
      },
      py::arg("x"), py::arg("starts"), py::arg("sizes"));
  hlo.def(
      "dynamic_update_slice",
      [](const Handle& x, const Handle& update, const std::vector<Handle>& starts) {
        return x.With(DynamicUpdateSlice(x.value, update.value, ValuesOf(starts)));
      },
      py::arg("x"), py::arg("update"), py::arg("starts"));
  hlo.def(
      "full",
      [](const Handle& like, const Number& number, const Dims& shape, at::ScalarType dtype) {
        return like.With(
            Constant(*like.builder, ToLiteral(number), {lowering::NaturalType(dtype), shape}));
      },
      py::arg("like"), py::arg("number"), py::arg("shape"), py::arg("dtype"));
  hlo.def(
      "empty",
      [](const Handle& like, const Dims& shape, at::ScalarType dtype) {
        return like.With(lowering::Empty(*like.builder, {lowering::NaturalType(dtype), shape}));
      },
      py::arg("like"), py::arg("shape"), py::arg("dtype"));
  hlo.def(
      "unbind", [](const Handle& x) { return AsTuple(x.builder, lowering::Unbind(x.value)); },
      py::arg("x"));
  hlo.def(
      "stack",
      [](const std::vector<Handle>& parts) {
        if (parts.empty()) throw py::value_error("stack: expected one value at least");
        return parts[0].With(lowering::Stack(ValuesOf(parts)));
      },
      py::arg("parts"));
  hlo.def(
      "iota",
      [](const Handle& like, const Dims& shape, at::ScalarType dtype, int64_t dim) {
        return like.With(Iota(*like.builder, {lowering::NaturalType(dtype), shape}, dim));
      },
      py::arg("like"), py::arg("shape"), py::arg("dtype"), py::arg("dim"));
}

void BindControl(py::module_& hlo) {
  hlo.def(
      "while_loop",
      [](const std::vector<Handle>& init, const Function& condition, const Function& body) {
        if (init.empty()) throw py::value_error("hlo.while_loop: expected at least one value");
        const auto& builder = init[0].builder;
        return AsTuple(builder, stablehlo::While(ValuesOf(init), BodyOf(builder, condition),
                                                 BodyOf(builder, body)));
      },
      py::arg("init"), py::arg("condition"), py::arg("body"));
  hlo.def(
      "if_",
      [](const Handle& predicate, const Function& on_true, const Function& on_false) {
        const auto& builder = predicate.builder;
        return AsTuple(builder, stablehlo::If(predicate.value, BodyOf(builder, on_true),
                                              BodyOf(builder, on_false)));
      },
      py::arg("predicate"), py::arg("on_true"), py::arg("on_false"));
  hlo.def(
      "call",
      [](const std::string& function, const std::vector<Handle>& operands,
         const std::optional<Handle>& like) {
        if (operands.empty() && !like) {
          throw py::value_error("hlo.call: expected an operand, or `like`, got neither");
        }
        const auto& builder = like ? like->builder : operands[0].builder;
        return AsTuple(builder, builder->Call(builder->AddFunctions(function), ValuesOf(operands)));
      },
      py::arg("function"), py::arg("operands"), py::arg("like") = py::none());
  hlo.def(
      "optimization_barrier",
      [](const std::vector<Handle>& operands) {
        if (operands.empty()) return Handles(0);
        return AsTuple(operands[0].builder, stablehlo::OptimizationBarrier(ValuesOf(operands)));
      },
      py::arg("operands"));
  hlo.def(
      "custom_call",
      [](const std::string& target, const std::vector<Handle>& operands,
         const std::vector<std::pair<Dims, at::ScalarType>>& results, int api_version,
         const std::string& backend_config, bool has_side_effect, const std::string& attributes) {
        if (operands.empty()) {
          throw py::value_error("hlo.custom_call: expected at least one operand");
        }
        std::vector<Type> types;
        for (const auto& [dims, dtype] : results) {
          types.emplace_back(lowering::NaturalType(dtype), dims);
        }
        const auto& builder = operands[0].builder;
        return AsTuple(builder, stablehlo::CustomCall(*builder, target, ValuesOf(operands), types,
                                                      {.api_version = api_version,
                                                       .backend_config = backend_config,
                                                       .has_side_effect = has_side_effect,
                                                       .attributes = attributes}));
      },
      py::arg("target"), py::arg("operands"), py::arg("results"), py::arg("api_version") = 4,
      py::arg("backend_config") = "", py::arg("has_side_effect") = false,
      py::arg("attributes") = "");
}

void BindReductions(py::module_& hlo) {
  hlo.def(
      "reduce",
      [](const Handle& x, const Dims& dims, const std::string& op) {
        return x.With(Reduce(x.value, dims, ReduceOpOf(op)));
      },
      py::arg("x"), py::arg("dims"), py::arg("op"));
  hlo.def(
      "dot_general",
      [](const Handle& a, const Handle& b, const Dims& a_contracting, const Dims& b_contracting,
         const Dims& a_batch, const Dims& b_batch, std::optional<at::ScalarType> dtype) {
        const auto element =
            dtype ? lowering::NaturalType(*dtype) : stablehlo::ElementType::kInvalid;
        return a.With(DotGeneral(a.value, b.value, {a_batch, b_batch, a_contracting, b_contracting},
                                 stablehlo::Precision::kDefault, element));
      },
      py::arg("a"), py::arg("b"), py::arg("a_contracting"), py::arg("b_contracting"),
      py::arg("a_batch") = Dims(), py::arg("b_batch") = Dims(), py::arg("dtype") = py::none());
  hlo.def(
      "sort",
      [](const std::vector<Handle>& values, int64_t dim, const Function& less, bool stable) {
        if (values.empty()) throw py::value_error("hlo.sort: expected at least one value");
        const auto& builder = values[0].builder;
        return AsTuple(builder, Sort(ValuesOf(values), dim, stable, BodyOf(builder, less)));
      },
      py::arg("values"), py::arg("dim"), py::arg("less"), py::arg("stable") = true);
}

}  // namespace

void BindStableHlo(py::module_& m) {
  py::module_ hlo =
      m.def_submodule("hlo", "StableHLO's operations; see torch_xla.library.stablehlo.");
  BindValue(hlo);
  BindElementwise(hlo);
  BindShapes(hlo);
  BindReductions(hlo);
  BindControl(hlo);
  m.def("_stablehlo_element",
        [](at::ScalarType dtype) { return runtime::MlirName(lowering::NaturalType(dtype)); });
  m.def(
      "_stablehlo_of",
      [](const Function& function, const std::vector<at::Tensor>& like, const std::string& name) {
        auto builder = std::make_shared<Builder>();
        builder->TakeFunctions(stablehlo::FunctionForm::kBoth);
        std::vector<stablehlo::Value> parameters;
        for (const at::Tensor& tensor : like) {
          parameters.push_back(
              builder->Parameter({lowering::NaturalType(tensor.scalar_type()),
                                  Dims(tensor.sizes().begin(), tensor.sizes().end())}));
        }
        return builder->Finish(Returned(function(*AsTuple(builder, parameters))), name);
      },
      py::arg("function"), py::arg("like"), py::arg("name") = "hlo");
  using Callees = std::vector<std::tuple<std::string, std::vector<size_t>, std::vector<int64_t>>>;
  using Form = std::tuple<size_t, size_t, size_t, int64_t, bool, Callees>;
  // The form has the fields of sizes::LoopForm.
  m.def(
      "_loop_text",
      [](Form given, const std::vector<at::Tensor>& like) {
        auto& [carries, sliced, sums, length, reverse, callees] = given;
        sizes::LoopForm form{carries, sliced, sums, length, reverse, {}};
        for (auto& [text, operands, seeds] : callees)
          form.callees.push_back({std::move(text), std::move(operands), std::move(seeds)});
        std::vector<ir::ShapeRef> shapes;
        for (const at::Tensor& tensor : like)
          shapes.push_back(ir::GetShape(tensor.scalar_type(), tensor.sizes()));
        std::string text = lowering::LoopText(form, shapes);
        sizes::KeepLoop(text, {std::move(form), {}, &lowering::LoopText});
        return text;
      },
      py::arg("form"), py::arg("like"));
}

}  // namespace torch_xla::python
