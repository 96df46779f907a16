// What the C++ layers need from the Python interpreter: the user's line, and PyTorch's
// decompositions, which are Python functions.
#include <torch/csrc/jit/python/pybind_utils.h>

#include <mutex>

#include "aten/fallback.h"
#include "cpu/host_calls.h"
#include "python/bindings.h"
#include "python/source_lines.h"
#include "tensor/auto_step.h"
#include "tensor/node_factory.h"
#include "tensor/origin.h"

namespace torch_xla::python {

namespace py = pybind11;

namespace {

/// Runs on a thread of the plugin.
void RunHostOperator(int64_t id, const std::vector<at::Tensor>& operands,
                     const std::vector<at::Tensor>& results) {
  py::gil_scoped_acquire gil;
  std::string error;
  try {
    py::module_::import("torch_xla._internal.compile.host_operators")
        .attr("run")(id, operands, results);
    return;
  } catch (const py::error_already_set& raised) {
    error = raised.what();
  }
  throw std::runtime_error(error);
}

/// Returns torch._decomp.decomposition_table[op]. For a user's operator that only has a CPU kernel,
/// returns a function that makes it a host call. Otherwise None.
py::object FindDecomposition(const c10::FunctionSchema& schema) {
  std::string_view name = schema.name();
  const size_t colons = name.find("::");
  const std::string ns(name.substr(0, colons)), op(name.substr(colons + 2));
  std::string overload = schema.overload_name().empty() ? "default" : schema.overload_name();
  py::object packet = py::module_::import("torch").attr("ops").attr(ns.c_str()).attr(op.c_str());
  py::object table = py::module_::import("torch._decomp").attr("decomposition_table");
  const py::object operation = packet.attr(overload.c_str());
  py::object found = table.attr("get")(operation);
  if (!found.is_none() || ns == "aten") return found;
  found = py::module_::import("torch_xla._internal.compile.host_operators").attr("of")(operation);
  if (!found.is_none()) {
    static std::once_flag once;
    std::call_once(once, [] {
      cpu::SetHostOperator(
          &RunHostOperator,
          []() -> void* { return PyGILState_Check() ? PyEval_SaveThread() : nullptr; },
          [](void* state) { PyEval_RestoreThread(static_cast<PyThreadState*>(state)); });
    });
  }
  return found;
}

/// Calls `decomposition` with the arguments on the stack. Returns false if it declines.
bool CallDecomposition(const py::object& decomposition, const c10::FunctionSchema& schema,
                       const torch::jit::Stack& stack, torch::jit::Stack& results) {
  py::list args;
  py::dict kwargs;
  const size_t count = schema.arguments().size();
  for (size_t i = 0; i < count; ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    py::object value = torch::jit::toPyObject(torch::jit::peek(stack, i, count));
    // Decompositions take dtypes, layouts and formats as torch objects, but a stack has them as
    // ints.
    if (!value.is_none()) {
      const c10::Type& type = *argument.real_type();
      std::string text = type.annotation_str();
      if (text.find("ScalarType") != std::string::npos) {
        value = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(
            torch::getTHPDtype(static_cast<c10::ScalarType>(value.cast<int>()))));
      } else if (text.find("Layout") != std::string::npos ||
                 text.find("MemoryFormat") != std::string::npos) {
        value = py::none();
      }
    }
    if (argument.kwarg_only()) {
      if (!value.is_none()) kwargs[argument.name().c_str()] = value;
    } else {
      args.append(value);
    }
  }
  py::object result = decomposition(*args, **kwargs);
  if (result.ptr() == Py_NotImplemented) return false;
  const auto& returns = schema.returns();
  if (returns.size() == 1) {
    results.push_back(torch::jit::toIValue(result, returns[0].type()));
  } else {
    py::sequence sequence = result;
    for (size_t i = 0; i < returns.size(); ++i) {
      results.push_back(torch::jit::toIValue(sequence[i], returns[i].type()));
    }
  }
  return true;
}

bool Decompose(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  py::gil_scoped_acquire gil;
  py::object decomposition = FindDecomposition(schema);
  if (decomposition.is_none()) return false;
  torch::jit::Stack results;
  try {
    if (!CallDecomposition(decomposition, schema, *stack, results)) return false;
  } catch (const py::error_already_set& error) {
    // Many decompositions are written for fake tensors or for some arguments only. If the arguments
    // are invalid, the CPU kernel reports it with PyTorch's own error.
    if (!error.matches(PyExc_Exception)) throw;
    return false;
  }
  torch::jit::drop(*stack, schema.arguments().size());
  for (c10::IValue& value : results) stack->push_back(std::move(value));
  return true;
}

bool SyncsInLoop() {
  py::gil_scoped_acquire gil;
  try {
    // Never freed, since the interpreter may be gone at exit.
    static auto& function = *new py::object(
        py::module_::import("torch_xla._internal.compile.auto_step").attr("syncs_in_loop"));
    return function().cast<bool>();
  } catch (const py::error_already_set&) {
    return false;
  }
}

}  // namespace

void RegisterInterpreterHooks() {
  PrepareUserLocation();
  ir::SetLocationFunction(&UserLocation);
  tensor::SetReaderFunction(&Reader);
  tensor::SetSyncsInLoop(&SyncsInLoop);
  aten::SetDecomposer(&Decompose);
}

}  // namespace torch_xla::python
