// Bindings of replay: a recorded call of a Python function, its guards and its plan.
#include "python/bindings.h"

#include <torch/csrc/autograd/python_variable.h>

#include <bit>
#include <optional>

#include "debug/metrics.h"
#include "replay/recorder.h"
#include "replay/recording.h"
#include "tensor/device.h"

namespace torch_xla::replay {
namespace {

std::vector<at::Tensor> Unpack(const std::vector<py::object>& objects) {
  std::vector<at::Tensor> tensors;
  for (const py::object& object : objects) tensors.push_back(THPVariable_Unpack(object.ptr()));
  return tensors;
}

/// Whether the tensor has other owners than one reference and its own Python object.
bool IsHeld(const at::Tensor& tensor) {
  PyObject* const object = tensor.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj();
  if (!object) return tensor.use_count() > 1;
  return Py_REFCNT(object) > 1 || tensor.use_count() > 2;
}

struct PyRecorder {
  std::vector<py::object> given;
  std::unique_ptr<at::Tensor> token;
  std::unique_ptr<Recorder> recorder;
};

}  // namespace

}  // namespace torch_xla::replay

namespace torch_xla::python {

using namespace replay;

void BindReplay(pybind11::module_& m) {
  py::class_<Surroundings, std::shared_ptr<Surroundings>>(m, "_ReplaySurroundings")
      .def(py::init([] { return std::make_shared<Surroundings>(Surroundings::Now()); }))
      .def("refusal",
           [](const Surroundings& self) {
             const char* refusal = self.Refusal();
             return std::string(refusal ? refusal : "");
           })
      .def("difference", [](const Surroundings& self) {
        const char* difference = Surroundings::Now().Difference(self);
        return std::string(difference ? difference : "");
      });
  py::class_<ObjectGuards, std::shared_ptr<ObjectGuards>>(m, "_ObjectGuards")
      .def(py::init<>())
      .def("add_dict", &ObjectGuards::AddDict)
      .def("add_names", &ObjectGuards::AddNames)
      .def("add_absent", &ObjectGuards::AddAbsent)
      .def("add_class", &ObjectGuards::AddClass)
      .def("add_list", &ObjectGuards::AddList)
      .def("add_cell", &ObjectGuards::AddCell)
      .def("add_attribute", &ObjectGuards::AddAttribute)
      .def("add_instance", &ObjectGuards::AddInstance)
      .def("add_function", &ObjectGuards::AddFunction)
      .def("add_tensor", &ObjectGuards::AddTensor)
      .def("add_hooks", &ObjectGuards::AddHooks)
      .def("add_items", &ObjectGuards::AddItems)
      .def("add_bytes", &ObjectGuards::AddBytes)
      .def("add_question", &ObjectGuards::AddQuestion)
      .def("difference", &ObjectGuards::Difference);
  py::class_<ArgumentPattern, std::shared_ptr<ArgumentPattern>>(m, "_ArgumentPattern")
      .def(py::init<const py::tuple&, const py::dict&>())
      .def_property_readonly("others", &ArgumentPattern::others)
      .def_property_readonly("refusal", &ArgumentPattern::refusal)
      .def("take_tensors", &ArgumentPattern::TakeTensors)
      .def("take_containers", &ArgumentPattern::TakeContainers)
      .def("difference", py::overload_cast<const py::tuple&, const py::dict&>(
                             &ArgumentPattern::Difference, py::const_));
  py::class_<Plan, std::shared_ptr<Plan>>(m, "_ReplayPlan")
      // Returns (value, index of its parameter or -1) for each number; the value is None for an
      // integer.
      .def("numbers", [](const Plan& self) {
        py::list numbers;
        for (const exec::RecordedNumber& number : self.numbers()) {
          numbers.append(py::make_tuple(
              number.is_float ? py::object(py::float_(std::bit_cast<double>(number.bits)))
                              : py::object(py::none()),
              number.packed));
        }
        return numbers;
      });
  py::class_<OptimizerNumbers, std::shared_ptr<OptimizerNumbers>>(m, "_OptimizerNumbers")
      .def(py::init([](std::vector<std::pair<py::dict, std::vector<py::str>>> entries,
                       const std::vector<std::vector<py::object>>& counters,
                       std::vector<int> advances) {
        std::vector<std::vector<at::Tensor>> tensors;
        for (const auto& one : counters) tensors.push_back(Unpack(one));
        return std::make_shared<OptimizerNumbers>(std::move(entries), std::move(tensors),
                                                  std::move(advances));
      }))
      // None if the values are not as expected (see OptimizerNumbers).
      .def("entries",
           [](const OptimizerNumbers& self) -> std::optional<std::vector<double>> {
             std::vector<double> found;
             if (!self.ReadEntries(found)) return std::nullopt;
             return found;
           })
      .def("counters", [](const OptimizerNumbers& self) -> std::optional<std::vector<double>> {
        std::vector<double> found;
        if (!self.ReadCounters(found)) return std::nullopt;
        return found;
      });
  py::class_<PyRecorder>(m, "_ReplayRecorder")
      .def(py::init([](std::vector<py::object> given) {
        auto token = std::make_unique<at::Tensor>(CollectiveToken(tensor::CurrentDevice()));
        std::vector<const at::Tensor*> tensors;
        for (const py::object& one : given) tensors.push_back(&THPVariable_Unpack(one.ptr()));
        if (token->defined()) tensors.push_back(token.get());
        auto recorder = std::make_unique<Recorder>(std::move(tensors), tensor::CurrentDevice());
        return PyRecorder{std::move(given), std::move(token), std::move(recorder)};
      }))
      .def("refusal", [](const PyRecorder& self) { return self.recorder->refusal(); })
      .def("end",
           [](PyRecorder& self, const std::vector<py::object>& results) {
             const size_t waiting = self.recorder->End(Unpack(results));
             if (waiting == 0) self.recorder->ReleaseGradients(&IsHeld);
             return waiting;
           })
      // Returns (plan or None, the reason why there is none).
      .def("finish",
           [](PyRecorder& self) {
             std::string refusal;
             PlanPtr plan;
             {
               py::gil_scoped_release no_gil;
               plan = self.recorder->Finish(&refusal);
             }
             return py::make_tuple(std::const_pointer_cast<Plan>(plan), refusal);
           })
      .def("close", [](PyRecorder& self) { self.recorder.reset(); });
  py::class_<Recording>(m, "_ReplayRecording")
      .def(py::init([](std::shared_ptr<Surroundings> surroundings,
                       std::shared_ptr<ObjectGuards> objects,
                       std::shared_ptr<ArgumentPattern> arguments, std::vector<py::object> state,
                       std::shared_ptr<Plan> plan, size_t num_results, const py::tuple& result) {
        return std::make_unique<Recording>(std::move(surroundings), std::move(objects),
                                           std::move(arguments), std::move(state), std::move(plan),
                                           num_results, result);
      }))
      .def("takes", &Recording::Takes)
      .def("holds", &Recording::Holds)
      .def("difference", &Recording::Difference)
      .def("compare", &Recording::Compare, py::arg("other"), py::arg("donation") = true,
           py::arg("explained") = std::unordered_set<size_t>())
      .def("set_host", &Recording::SetHost)
      .def_property_readonly("host", &Recording::host);
  // Returns the result in a tuple, or None if no recording's guards hold.
  m.def(
      "_replay",
      [](const py::list& recordings, const py::tuple& args, const py::dict& kwargs) -> py::object {
        static auto& replayed = *new debug::Counter("ReplayedCall");
        for (py::handle one : recordings) {
          std::optional<py::object> result = one.cast<Recording&>().Replay(args, kwargs);
          if (!result) continue;
          replayed.Add();
          return py::make_tuple(*std::move(result));
        }
        return py::none();
      });
  m.def("_replay_value_types", &SetValueTypes);
  // A transform of torch.func has to see each operation, so no call is recorded under it.
  m.def("_may_record", [] {
    return exec::MayCut() && !c10::impl::tls_is_dispatch_key_included(
                                 c10::DispatchKey::FuncTorchDynamicLayerFrontMode);
  });
}

}  // namespace torch_xla::python
