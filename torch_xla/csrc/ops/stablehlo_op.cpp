#include "ops/stablehlo_op.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <mutex>
#include <unordered_set>

#include "XLALowerings.h"
#include "XLAOps.h"
#include "aten/node_builder.h"
#include "lowering/elementwise.h"
#include "stablehlo/builder.h"
#include "stablehlo/function_text.h"
#include "tensor/device.h"

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
  return builder.List();
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
