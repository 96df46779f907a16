#include "ops/stablehlo_op.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <mutex>
#include <span>
#include <unordered_set>

#include "XLALowerings.h"
#include "XLAOps.h"
#include "aten/node_builder.h"
#include "lowering/elementwise.h"
#include "ops/stack.h"
#include "stablehlo/arithmetic.h"
#include "stablehlo/function_text.h"
#include "tensor/device.h"
#include "tensor/rng.h"

namespace torch_xla::lowering::aten {

/// Calls the user's functions, which get the user's dtypes.
std::vector<Value> StableHloText(LoweringContext& cx, std::string_view text,
                                 const std::vector<Value>& inputs) {
  const std::string symbol = cx.builder().AddFunctions(text);
  std::vector<Value> operands = inputs;
  for (size_t i = 0; i < operands.size(); ++i) {
    operands[i] = stablehlo::Convert(operands[i], NaturalType(cx.operand_shape(i)->dtype));
  }
  return ToOutputElements(cx, cx.builder().Call(symbol, operands));
}

}  // namespace torch_xla::lowering::aten

namespace torch_xla::lowering {
namespace {

/// The turns of a loop. As an int64, which is a pair on TPUs, they would hide the loop's length.
constexpr ElementType kTurns = ElementType::kS32;
/// The distance of the seeds of two turns. Other seeds are drawn between them.
const auto kSeedsApart = static_cast<int64_t>(tensor::NextRngState(0, 1'000'003));

std::vector<Value> StartsAt(const Value& index, size_t rank) {
  std::vector<Value> starts(rank, FullLike(index, 0));
  starts[0] = index;
  return starts;
}

/// The element of an array at a turn.
Value At(const Value& array, const Value& index) {
  Dims sizes = array.dims();
  sizes[0] = 1;
  return Reshape(DynamicSlice(array, StartsAt(index, sizes.size()), sizes),
                 Dims(sizes.begin() + 1, sizes.end()));
}

Value Put(const Value& array, const Value& element, const Value& index) {
  Dims sizes = array.dims();
  sizes[0] = 1;
  return DynamicUpdateSlice(array, Reshape(element, sizes), StartsAt(index, sizes.size()));
}

}  // namespace

std::string LoopText(const sizes::LoopForm& form, const std::vector<ir::ShapeRef>& operands) {
  stablehlo::Builder builder;
  builder.TakeFunctions(stablehlo::FunctionForm::kBoth);
  std::vector<Value> values;
  for (ir::ShapeRef shape : operands)
    values.push_back(builder.Parameter(
        {NaturalType(shape->dtype), Dims(shape->dims.begin(), shape->dims.end())}));
  const auto number = [&](int64_t of, ElementType type) {
    return stablehlo::Constant(builder, of, {type, {}});
  };
  const auto call = [&](const sizes::LoopForm::Callee& callee, std::span<const Value> carries,
                        const Value& index) {
    std::vector<Value> arguments;
    for (size_t i = 0; i < callee.operands.size(); ++i) {
      const size_t k = callee.operands[i];
      Value value = k < form.carries ? carries[k] : values[k];
      if (k >= form.carries && k < form.carries + form.sliced) value = At(value, index);
      if (callee.seeds[i] >= 0) {  // each turn has other seeds
        const Value apart = number(kSeedsApart, ElementType::kS64);
        value = Add(value, Multiply(Convert(index, ElementType::kS64), apart));
      }
      arguments.push_back(value);
    }
    return builder.Call(builder.AddFunctions(callee.text), arguments);
  };
  const auto& body = form.callees[0];
  std::vector<stablehlo::Type> types = stablehlo::ParseFunctions(body.text).results;
  const size_t first_sum = types.size() - form.sums;
  std::vector<Value> init{number(0, kTurns)};
  init.insert(init.end(), values.begin(), values.begin() + static_cast<ptrdiff_t>(form.carries));
  for (size_t i = form.carries; i < types.size(); ++i) {
    if (i < first_sum) types[i].dims.insert(types[i].dims.begin(), form.length);
    init.push_back(i < first_sum ? Empty(builder, types[i])
                                 : stablehlo::Constant(builder, 0, types[i]));
  }
  const Value length = form.length_operand < 0
                           ? number(form.length, kTurns)
                           : Convert(values[static_cast<size_t>(form.length_operand)], kTurns);
  const auto turn = [&](std::span<const Value> state) {
    const Value one = number(1, kTurns);
    const Value index = form.reverse ? Subtract(Subtract(length, one), state[0]) : state[0];
    const std::vector<Value> results = call(body, state.subspan(1), index);
    std::vector<Value> next{Add(state[0], one)};
    for (size_t i = 0; i < results.size(); ++i) {
      const Value& before = state[i + 1];
      next.push_back(i < form.carries ? results[i]
                     : i < first_sum  ? Put(before, results[i], index)
                                      : Add(before, results[i]));
    }
    return next;
  };
  const auto goes_on = [&](std::span<const Value> state) -> std::vector<Value> {
    if (form.callees.size() > 1) return call(form.callees[1], state.subspan(1), state[0]);
    return {Compare(state[0], length, Direction::kLt)};
  };
  std::vector<Value> results = stablehlo::While(init, goes_on, turn);
  results.erase(results.begin());
  return builder.Finish(results, "hlo");
}

}  // namespace torch_xla::lowering

namespace torch_xla {

c10::ScalarType aten::DtypeOf(stablehlo::ElementType element) {
  using enum c10::ScalarType;
  for (c10::ScalarType dtype : {Bool,
                                Byte,
                                Char,
                                Short,
                                Int,
                                Long,
                                UInt16,
                                UInt32,
                                UInt64,
                                Half,
                                BFloat16,
                                Float,
                                Double,
                                ComplexFloat,
                                ComplexDouble,
                                Float8_e4m3fn,
                                Float8_e4m3fnuz,
                                Float8_e5m2,
                                Float8_e5m2fnuz,
                                Float8_e8m0fnu}) {
    if (lowering::NaturalType(dtype) == element) return dtype;
  }
  TORCH_INTERNAL_ASSERT(false, "no dtype is ", runtime::MlirName(element));
}

namespace {

stablehlo::Type TypeOf(const at::Tensor& tensor) {
  return {lowering::NaturalType(tensor.scalar_type()),
          stablehlo::Dims(tensor.sizes().begin(), tensor.sizes().end())};
}

/// The shapes of the results, from the signature in the text, whose arguments the inputs must fit.
std::vector<at::Tensor> MetaKernel(c10::string_view text, at::TensorList inputs) {
  stablehlo::FunctionText function;
  try {
    function = stablehlo::ParseFunctions(text);
  } catch (const stablehlo::Error& error) {
    TORCH_CHECK_VALUE(false, "torch_xla.library.stablehlo(): ", error.what());
  }
  TORCH_CHECK_TYPE(inputs.size() == function.arguments.size(), "torch_xla.library.stablehlo(): @",
                   function.symbols[0], " takes ", function.arguments.size(), " tensors, but got ",
                   inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    TORCH_CHECK_TYPE(TypeOf(inputs[i]) == function.arguments[i],
                     "torch_xla.library.stablehlo(): argument ", i, " of @", function.symbols[0],
                     " is ", function.arguments[i].ToString(), ", but got ",
                     TypeOf(inputs[i]).ToString());
  }
  std::vector<at::Tensor> results;
  for (const stablehlo::Type& type : function.results) {
    results.push_back(
        at::empty(type.dims, at::dtype(aten::DtypeOf(type.element)).device(at::kMeta)));
  }
  return results;
}

std::vector<at::Tensor> CpuKernel(c10::string_view text, at::TensorList inputs) {
  MetaKernel(text, inputs);
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "torch_xla.library.stablehlo(): expected tensors of the xla device, but got cpu");
}

/// Only the compiler checks the bodies of functions. Compile each function once by itself, so that
/// an error is raised at the user's call, and not at the sync.
void CheckThatItCompiles(std::string_view text) {
  static auto& mutex = *new std::mutex;
  static auto& compiled = *new std::unordered_set<std::string>;
  {
    std::lock_guard<std::mutex> lock(mutex);
    if (compiled.contains(std::string(text))) return;
  }
  stablehlo::Builder builder;
  std::vector<stablehlo::Value> arguments;
  for (const stablehlo::Type& type : stablehlo::ParseFunctions(text).arguments) {
    arguments.push_back(builder.Parameter(type));
  }
  const std::string module = builder.Finish(builder.Call(builder.AddFunctions(text), arguments));
  try {
    tensor::GetClient().Compile(module, {.device = tensor::CurrentDevice()});
  } catch (const runtime::Error& error) {
    TORCH_CHECK_VALUE(false,
                      "torch_xla.library.stablehlo(): the text does not compile: ", error.what(),
                      "\n", module);
  }
  std::lock_guard<std::mutex> lock(mutex);
  compiled.emplace(text);
}

std::vector<at::Tensor> Call(c10::string_view text, at::TensorList inputs) {
  ir::ops::stablehlo.counter->Add();
  aten::NodeBuilder builder(ir::ops::stablehlo);
  builder.String(text);
  builder.TensorList(inputs);
  if (!inputs.empty()) return builder.List();
  ir::OutputShapes shapes;  // No tensor leads PyTorch to the kernel that finds them.
  for (const at::Tensor& result : MetaKernel(text, inputs)) {
    shapes.shapes.push_back(ir::GetShape(result.scalar_type(), result.sizes()));
  }
  return builder.List(shapes);
}

std::vector<at::Tensor> XlaKernel(c10::string_view text, at::TensorList inputs) {
  std::vector<at::Tensor> results = Call(text, inputs);
  CheckThatItCompiles(text);
  return results;
}

TORCH_LIBRARY(torch_xla, m) { m.def("stablehlo(str text, Tensor[] inputs) -> Tensor[]"); }
TORCH_LIBRARY_IMPL(torch_xla, XLA, m) { m.impl("stablehlo", TORCH_FN(XlaKernel)); }
TORCH_LIBRARY_IMPL(torch_xla, Meta, m) { m.impl("stablehlo", TORCH_FN(MetaKernel)); }
TORCH_LIBRARY_IMPL(torch_xla, CPU, m) { m.impl("stablehlo", TORCH_FN(CpuKernel)); }

}  // namespace

std::vector<at::Tensor> aten::CallStableHlo(const std::string& text,
                                            const std::vector<at::Tensor>& inputs) {
  return Call(text, inputs);
}

}  // namespace torch_xla
