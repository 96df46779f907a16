// Captures of functions, for control flow, torch.compile and exports; and the settings of cuts and
// compilations.
#include <torch/csrc/utils/pybind.h>

#include "aten/bridge.h"
#include "exec/capture.h"
#include "exec/executor.h"
#include "exec/may_cut.h"
#include "lowering/precision.h"
#include "ops/barrier.h"
#include "ops/stablehlo_op.h"
#include "python/bindings.h"
#include "python/devices.h"
#include "tensor/device.h"

namespace torch_xla::python {

namespace py = pybind11;
using Options = std::vector<std::pair<std::string, std::string>>;

namespace {

std::vector<ir::Value> ValuesOf(const std::vector<at::Tensor>& tensors) {
  std::vector<ir::Value> values;
  for (const at::Tensor& tensor : tensors) values.push_back(aten::GetIrValue(tensor));
  return values;
}

std::vector<at::Tensor> TensorsOf(std::vector<ir::Value> values, int device) {
  std::vector<at::Tensor> tensors;
  for (ir::Value& value : values) tensors.push_back(aten::MakeTensor(std::move(value), device));
  return tensors;
}

/// The capture ends when the traced function has returned, which is before its Python object dies.
struct PyCapture {
  std::unique_ptr<exec::Capture> capture;
  exec::Capture& get() const {
    TORCH_CHECK(capture, "the capture has ended");
    return *capture;
  }
};

class PyProgram {
 public:
  PyProgram(exec::Capture::Compiled compiled, std::vector<ir::ShapeRef> inputs,
            std::vector<ir::ShapeRef> outputs, std::vector<std::pair<size_t, size_t>> writes,
            int device)
      : compiled_(std::move(compiled)),
        inputs_(std::move(inputs)),
        outputs_(std::move(outputs)),
        writes_(std::move(writes)),
        device_(device) {}

  const std::vector<size_t>& inputs() const { return compiled_.inputs; }

  std::vector<at::Tensor> Call(const std::vector<at::Tensor>& tensors) const {
    TORCH_CHECK(tensors.size() == inputs_.size(), "expected ", inputs_.size(), " tensors, got ",
                tensors.size());
    std::vector<tensor::StoragePtr> pending;
    for (size_t i : compiled_.inputs) {
      const aten::XLATensorImpl* impl = aten::GetImpl(tensors[i], "compiled graph");
      if (impl->is_whole() && !tensor::LeafData(impl->root()->value())) {
        pending.push_back(impl->root());
      }
    }
    if (!pending.empty()) exec::SyncStorages(pending, /*wait=*/false);
    std::vector<tensor::DeviceDataPtr> data;
    data.reserve(compiled_.inputs.size() + compiled_.captured.size());
    for (size_t i : compiled_.inputs) {
      const ir::Value leaf = aten::Evaluate(tensors[i]);
      TORCH_CHECK(leaf.shape() == inputs_[i], "compiled graph: expected input ", i, " of shape ",
                  inputs_[i]->ToString(), ", got ", leaf.shape()->ToString());
      data.push_back(tensor::DeviceDataPtr::reclaim_copy(tensor::LeafData(leaf)));
    }
    std::vector<ir::Value> values = exec::Run(compiled_, std::move(data), outputs_, device_);
    std::vector<at::Tensor> results;
    results.reserve(values.size());
    for (ir::Value& value : values) results.push_back(aten::MakeTensor(std::move(value), device_));
    for (auto [input, output] : writes_) {
      aten::GetImpl(tensors[input])->Write(aten::GetIrValue(results[output]));
    }
    return results;
  }

 private:
  exec::Capture::Compiled compiled_;
  std::vector<ir::ShapeRef> inputs_, outputs_;
  std::vector<std::pair<size_t, size_t>> writes_;  // an input, and the output that is written to it
  int device_;
};

std::vector<ir::ShapeRef> ShapesOf(const std::vector<ir::Value>& values) {
  std::vector<ir::ShapeRef> shapes;
  for (const ir::Value& value : values) {
    shapes.push_back(ir::GetShape(value.shape()->dtype, value.shape()->dims));
  }
  return shapes;
}

void BindCaptureClass(py::module_& m) {
  py::class_<PyProgram>(m, "_CapturedProgram")
      // The indices of the tensors that a call reads.
      .def_property_readonly("inputs", &PyProgram::inputs)
      .def("__call__", &PyProgram::Call, py::arg("tensors"), NoGil());
  py::class_<PyCapture>(m, "_Capture")
      .def(py::init([](std::string what, const std::string& device) {
             py::gil_scoped_release no_gil;
             return PyCapture{std::make_unique<exec::Capture>(Ordinal(device), std::move(what))};
           }),
           py::arg("what"), py::arg("device") = "")
      // Returns a tensor that stands for an argument like `like`.
      .def("placeholder",
           [](const PyCapture& self, const at::Tensor& like) {
             return aten::MakeTensor(
                 self.get().Placeholder(ir::GetShape(like.scalar_type(), like.sizes())),
                 self.get().device());
           })
      // Returns (text, indices of the inputs it takes, the captured tensors that follow, their
      // seeds).
      .def(
          "function",
          [](const PyCapture& self, const std::vector<at::Tensor>& inputs,
             const std::vector<at::Tensor>& outputs, const std::string& name, bool portable,
             std::optional<std::vector<size_t>> numbers) {
            exec::Capture::Function function = self.get().MakeFunction(
                ValuesOf(inputs), ValuesOf(outputs), name, {portable, std::move(numbers)});
            return py::make_tuple(function.text, function.inputs,
                                  TensorsOf(std::move(function.captured), self.get().device()),
                                  function.seeds);
          },
          py::arg("inputs"), py::arg("outputs"), py::arg("name"), py::arg("portable"),
          py::arg("numbers") = py::none())
      .def(
          "program",
          [](const PyCapture& self, const std::vector<at::Tensor>& inputs,
             const std::vector<at::Tensor>& outputs, std::vector<std::pair<size_t, size_t>> writes,
             const std::string& name) {
            const std::vector<ir::Value> in = ValuesOf(inputs), out = ValuesOf(outputs);
            return PyProgram(self.get().MakeProgram(in, out, name), ShapesOf(in), ShapesOf(out),
                             std::move(writes), self.get().device());
          },
          py::arg("inputs"), py::arg("outputs"), py::arg("writes"), py::arg("name") = "captured")
      .def("bases",
           [](const PyCapture& self, const std::vector<at::Tensor>& tensors) {
             return TensorsOf(exec::Capture::BasesOf(ValuesOf(tensors)), self.get().device());
           })
      .def("depend",
           [](const PyCapture& self, const std::vector<at::Tensor>& tensors) {
             return self.get().DependOnPlaceholders(ValuesOf(tensors));
           })
      // Returns a tensor that depends on the host calls since the last time, or None.
      .def("take_effects",
           [](const PyCapture& self) -> std::optional<at::Tensor> {
             std::optional<ir::Value> token = self.get().TakeEffects();
             if (!token) return std::nullopt;
             return aten::MakeTensor(*std::move(token), self.get().device());
           })
      .def("changed_outside", [](const PyCapture& self) { return self.get().ChangedOutside(); })
      .def("forget_writes", [](const PyCapture& self) { self.get().ForgetWrites(); })
      .def("restore_outside", [](const PyCapture& self) { self.get().RestoreOutside(); })
      .def("close", [](PyCapture& self) { self.capture.reset(); });
}

}  // namespace

void BindCapture(py::module_& m) {
  BindCaptureClass(m);
  // Whether both tensors have the same content, as far as the graph tells.
  m.def("_xla_same_value", [](const at::Tensor& a, const at::Tensor& b) {
    return aten::GetIrValue(a) == aten::GetIrValue(b);
  });
  m.def("_xla_assign", [](const at::Tensor& self, const at::Tensor& value) {
    aten::GetImpl(self, "_xla_assign")->Write(aten::GetIrValue(value));
  });
  // Returns a tensor over each whole storage that is pending, even if only C++ holds the storage.
  m.def("_xla_pending_storages", [](const std::string& device) {
    std::vector<at::Tensor> tensors;
    for (const tensor::StoragePtr& root : tensor::Storage::Pending(Ordinal(device))) {
      tensors.push_back(at::detail::make_tensor<aten::XLATensorImpl>(
          root, nullptr, c10::scalarTypeToTypeMeta(root->shape()->dtype), root->shape()->dims));
    }
    return tensors;
  });
  // The token that keeps collectives in order, which is state of a program with collectives.
  m.def(
      "_xla_collective_token",
      [](const std::string& device) {
        return aten::CollectiveTokenTensor(Ordinal(device), /*make=*/true);
      },
      py::arg("device"), NoGil());
  m.def("_xla_optimization_barrier", &aten::OptimizationBarrier, py::arg("tensors"),
        py::arg("late") = std::vector<at::Tensor>(), NoGil());
  m.def("_xla_optimization_barrier_", &aten::OptimizationBarrierInPlace, py::arg("tensors"),
        NoGil());
  // Calls a function from this library's own text, which needs no check.
  m.def("_stablehlo_call", &aten::CallStableHlo, py::arg("text"), py::arg("inputs"), NoGil());
  m.def("_xla_forbid_cuts", &exec::ForbidCuts, py::arg("why"));
  // The device's StepFinder.
  m.def(
      "_xla_hold_steps",
      [](bool hold) {
        tensor::StepFinder& finder = tensor::StepFinderOf(tensor::CurrentDevice());
        hold ? finder.Hold() : finder.Release();
      },
      py::arg("hold"), NoGil());
  m.def(
      "_xla_expect_syncs",
      [](uint64_t rounds) { tensor::StepFinderOf(tensor::CurrentDevice()).ExpectSyncs(rounds); },
      py::arg("rounds"), NoGil());
  m.def("_xla_optimizer_stepped", &exec::OptimizerStepped, py::arg("device"), NoGil());
  m.def(
      "_xla_forget_steps", [] { tensor::StepFinderOf(tensor::CurrentDevice()).Forget(); }, NoGil());
  m.def(
      "_xla_pending_hash",
      [](const std::string& device) {
        const ir::Hash128 hash = exec::PendingHash(Ordinal(device));
        return std::pair(hash.low, hash.high);
      },
      NoGil());
  m.def(
      "_xla_pending_text",
      [](const std::string& device) { return exec::PendingText(Ordinal(device)); }, NoGil());
  m.def("_xla_num_programs", &exec::NumPrograms);
  m.def("_xla_clear_programs", &exec::ClearPrograms, NoGil());
  m.def("_xla_set_compile_options", &exec::SetCompileOptions, py::arg("options"));
  // Sets the settings of this thread; None removes them. Returns the previous ones.
  py::class_<exec::CompileSettings, std::shared_ptr<exec::CompileSettings>>(m, "_CompileSettings");
  using Settings = std::optional<std::shared_ptr<exec::CompileSettings>>;
  m.def(
      "_xla_set_thread_settings",
      [](const Settings& settings) -> Settings {
        auto before = exec::SetThreadSettings(settings.value_or(nullptr));
        if (!before) return std::nullopt;
        return std::const_pointer_cast<exec::CompileSettings>(before);
      },
      py::arg("settings"));
  m.def(
      "_xla_compile_settings",
      [](Options options, std::string name, bool inherit, bool keeps_sizes) {
        const exec::CompileSettingsPtr current = exec::CurrentSettings();
        auto settings = std::make_shared<exec::CompileSettings>();
        if (inherit) settings->options = current->options;
        settings->keeps_sizes = keeps_sizes || current->keeps_sizes;
        for (auto& option : options) settings->options.push_back(std::move(option));
        settings->name = std::move(name);
        return settings;
      },
      py::arg("options"), py::arg("name"), py::arg("inherit") = true,
      py::arg("keeps_sizes") = false);
  m.def("_xla_set_mat_mul_precision", [](const std::string& name) {
    using enum lowering::MatMulPrecision;
    lowering::mat_mul_precision = name == "highest"   ? kHighest
                                  : name == "high"    ? kHigh
                                  : name == "default" ? kDefault
                                                      : kPlatform;
  });
  m.def("_xla_get_mat_mul_precision", [] {
    constexpr const char* kNames[] = {"platform", "default", "high", "highest"};
    return kNames[static_cast<int>(lowering::mat_mul_precision.load())];
  });
  m.def("_xla_rounds_products",
        [] { return lowering::CurrentPrecision(tensor::Platform()).rounds_products; });
}

}  // namespace torch_xla::python
