// Replay: a recorded call of a Python function, its guards and its plan (replay/plan.h).
#include <ATen/Context.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/autocast_mode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/python_variable.h>

#include <bit>
#include <cstring>
#include <optional>
#include <unordered_set>

#include "aten/index_check.h"
#include "replay/plan.h"
#include "debug/metrics.h"
#include "exec/cuts.h"
#include "exec/executor.h"
#include "lowering/precision.h"
#include "python/bindings.h"
#include "replay/object_guards.h"
#include "tensor/device.h"
#include "tensor/node_factory.h"

namespace torch_xla::python {

namespace py = pybind11;

namespace {

/// What of the thread and of the process decides what is traced.
struct Surroundings {
  int device;
  bool grad, inference, anomaly, saved_hooks, autocast_cache, deterministic,
      deterministic_warn_only, fill_uninitialized, checks_indices, all_special;
  c10::DispatchKeySet included, excluded;
  c10::ScalarType default_dtype, autocast_dtype, cpu_autocast_dtype;
  lowering::FloatPrecision precision;
  lazy::CompileSettingsPtr settings;
  std::vector<PyObject*> function_modes;
  int64_t dispatch_modes;
  int devices;
  uint32_t backends;

  static Surroundings Now() {
    const at::Context& context = at::globalContext();
    const c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
    Surroundings now{
        .device = lazy::CurrentDevice(),
        .grad = at::GradMode::is_enabled(),
        .inference = c10::InferenceMode::is_enabled(),
        .anomaly = torch::autograd::AnomalyMode::is_enabled(),
        .saved_hooks = at::SavedTensorDefaultHooks::get_tls_state().stack.size() > 0,
        .autocast_cache = at::autocast::is_autocast_cache_enabled(),
        .deterministic = context.deterministicAlgorithms(),
        .deterministic_warn_only = context.deterministicAlgorithmsWarnOnly(),
        .fill_uninitialized = context.deterministicFillUninitializedMemory(),
        .checks_indices = aten::indices_are_checked.load(),
        .all_special = lazy::AllNumbersSpecial(),
        .included = keys.included_,
        .excluded = keys.excluded_,
        .default_dtype = c10::get_default_dtype_as_scalartype(),
        .autocast_dtype = at::autocast::get_autocast_dtype(at::kXLA),
        .cpu_autocast_dtype = at::autocast::get_autocast_dtype(at::kCPU),
        .precision = lowering::CurrentPrecision(lazy::Platform()),
        .settings = lazy::CurrentSettings(),
        .dispatch_modes = c10::impl::TorchDispatchModeTLS::stack_len(),
        .devices = lazy::SpmdDevices(),
        .backends = 0,
    };
    for (bool flag :
         {context.userEnabledCuDNN(), context.deterministicCuDNN(), context.benchmarkCuDNN(),
          context.userEnabledMkldnn(), context.userEnabledNNPACK(), context.userEnabledFlashSDP(),
          context.userEnabledMemEfficientSDP(), context.userEnabledMathSDP(),
          context.userEnabledCuDNNSDP()}) {
      now.backends = 2 * now.backends + flag;
    }
    for (int64_t i = 0; i < at::impl::PythonTorchFunctionTLS::stack_len(); ++i) {
      now.function_modes.push_back(
          at::impl::PythonTorchFunctionTLS::get_stack_at(i)->ptr(getPyInterpreter()));
    }
    return now;
  }

  const char* Difference(const Surroundings& o) const {
    if (device != o.device) return "the current device";
    if (grad != o.grad) return "grad mode";
    if (inference != o.inference) return "inference mode";
    if (autocast_dtype != o.autocast_dtype || cpu_autocast_dtype != o.cpu_autocast_dtype ||
        autocast_cache != o.autocast_cache) {
      return "autocast";
    }
    if (included != o.included || excluded != o.excluded) return "autocast or another mode";
    if (default_dtype != o.default_dtype) return "the default dtype";
    if (deterministic != o.deterministic || fill_uninitialized != o.fill_uninitialized ||
        deterministic_warn_only != o.deterministic_warn_only) {
      return "the deterministic flags";
    }
    if (precision != o.precision) return "the precision of matrix products";
    if (settings != o.settings && !(settings->Hash() == o.settings->Hash())) {
      return "the compile options";
    }
    if (function_modes != o.function_modes || dispatch_modes != o.dispatch_modes) {
      return "the torch function modes";
    }
    if (anomaly != o.anomaly) return "anomaly mode";
    if (backends != o.backends) return "the flags of torch.backends";
    if (saved_hooks != o.saved_hooks) return "hooks of saved tensors";
    if (checks_indices != o.checks_indices || all_special != o.all_special ||
        devices != o.devices) {
      return "a setting of torch_xla";
    }
    return nullptr;
  }

  /// Why nothing can be replayed here.
  const char* Refusal() const {
    if (dispatch_modes > 0) return "a __torch_dispatch__ mode is active";
    if (saved_hooks) return "hooks of saved tensors are set";
    if (anomaly) return "anomaly mode is on";
    if (checks_indices) return "indices are checked (XLA_CHECK_INDICES)";
    return nullptr;
  }
};

std::vector<at::Tensor> Unpack(const std::vector<py::object>& objects) {
  std::vector<at::Tensor> tensors;
  for (const py::object& object : objects) tensors.push_back(THPVariable_Unpack(object.ptr()));
  return tensors;
}

/// Without the interpreter's lock: who traces a collective waits for that while it has the token.
at::Tensor CollectiveToken(int device) {
  py::gil_scoped_release no_gil;
  return aten::CollectiveTokenTensor(device);
}

/// What a call returns, made anew.
struct ResultPattern {
  enum Kind { kNew, kGiven, kValue, kTuple, kList, kDict, kTree } kind;
  size_t index = 0;
  py::object value;
  std::vector<py::object> keys;
  std::vector<ResultPattern> parts;

  static ResultPattern Of(const py::tuple& described) {
    const auto name = described[0].cast<std::string>();
    ResultPattern part{name == "new"     ? kNew
                       : name == "given" ? kGiven
                       : name == "value" ? kValue
                       : name == "tuple" ? kTuple
                       : name == "list"  ? kList
                       : name == "dict"  ? kDict
                                         : kTree};
    if (part.kind == kNew || part.kind == kGiven) {
      part.index = described[1].cast<size_t>();
    } else if (part.kind == kValue) {
      part.value = described[1];
    } else {
      for (py::handle one : described[1].cast<py::list>()) {
        part.parts.push_back(Of(py::reinterpret_borrow<py::tuple>(one)));
      }
      if (part.kind == kDict) part.keys = described[2].cast<std::vector<py::object>>();
      if (part.kind == kTree) part.value = described[2];
    }
    return part;
  }

  bool SameAs(const ResultPattern& other) const {
    if (kind != other.kind || index != other.index || parts.size() != other.parts.size() ||
        keys.size() != other.keys.size()) {
      return false;
    }
    if (kind == kTree ? !value.equal(other.value) : !SameValue(value.ptr(), other.value.ptr())) {
      return false;
    }
    for (size_t i = 0; i < keys.size(); ++i) {
      if (!SameValue(keys[i].ptr(), other.keys[i].ptr())) return false;
    }
    for (size_t i = 0; i < parts.size(); ++i) {
      if (!parts[i].SameAs(other.parts[i])) return false;
    }
    return true;
  }

  py::object Build(std::vector<at::Tensor>& made, const std::vector<PyObject*>& given,
                   std::vector<py::object>& cache) const {
    switch (kind) {
      case kNew:
        if (!cache[index]) cache[index] = py::cast(std::move(made[index]));
        return cache[index];
      case kGiven:
        return py::reinterpret_borrow<py::object>(given[index]);
      case kValue:
        return value;
      case kTuple: {
        py::tuple result(parts.size());
        for (size_t i = 0; i < parts.size(); ++i) result[i] = parts[i].Build(made, given, cache);
        return result;
      }
      case kList:
      case kTree: {
        py::list result(parts.size());
        for (size_t i = 0; i < parts.size(); ++i) result[i] = parts[i].Build(made, given, cache);
        return kind == kList ? py::object(result) : value(result);
      }
      case kDict: {
        py::dict result;
        for (size_t i = 0; i < parts.size(); ++i) {
          result[keys[i]] = parts[i].Build(made, given, cache);
        }
        return result;
      }
    }
    return py::none();
  }
};

/// What a call may take from optimizers: entries of their groups, which are numbers or pairs of
/// them, and counters, which are tensors of one number on the CPU, in classes of equal ones.
class OptimizerNumbers {
 public:
  /// `entries`: of each group its dict, and the keys. `advances`: how often each class is counted
  /// up in a call.
  OptimizerNumbers(std::vector<std::pair<py::dict, std::vector<py::str>>> entries,
                   std::vector<std::vector<at::Tensor>> counters, std::vector<int> advances)
      : entries_(std::move(entries)),
        counters_(std::move(counters)),
        advances_(std::move(advances)) {}

  /// Appends the entries' numbers; returns false where one is of another kind.
  bool ReadEntries(std::vector<double>& found) const {
    for (const auto& [group, keys] : entries_) {
      for (const py::str& key : keys) {
        PyObject* value = PyDict_GetItemWithError(group.ptr(), key.ptr());
        const bool pair = value && PyTuple_CheckExact(value) && PyTuple_GET_SIZE(value) == 2;
        for (int i = 0; i < 1 + pair; ++i) {
          PyObject* number = pair ? PyTuple_GET_ITEM(value, i) : value;
          if (!number || !PyFloat_CheckExact(number)) return false;
          found.push_back(PyFloat_AS_DOUBLE(number));
        }
      }
    }
    return true;
  }

  /// Appends the value of each class; returns false where those of one are not equal, or not what
  /// they were.
  bool ReadCounters(std::vector<double>& found) const {
    for (const auto& counters : counters_) {
      std::optional<double> value;
      for (const at::Tensor& counter : counters) {
        if (!counter.device().is_cpu() || counter.numel() != 1) return false;
        double now = 0;
        if (counter.scalar_type() == at::kFloat) {
          now = *counter.const_data_ptr<float>();
        } else if (counter.scalar_type() == at::kDouble) {
          now = *counter.const_data_ptr<double>();
        } else {
          return false;
        }
        if (now != value.value_or(now)) return false;
        value = now;
      }
      found.push_back(value.value());
    }
    return true;
  }

  /// Counts up. The counters are as ReadCounters() saw them.
  void Advance() const {
    for (size_t i = 0; i < counters_.size(); ++i) {
      if (advances_.at(i) == 0) continue;
      for (const at::Tensor& counter : counters_[i]) {
        for (int k = 0; k < advances_[i]; ++k) {
          if (counter.scalar_type() == at::kFloat) {
            *counter.mutable_data_ptr<float>() += 1;
          } else {
            *counter.mutable_data_ptr<double>() += 1;
          }
        }
        counter.unsafeGetTensorImpl()->bump_version();
      }
    }
  }

 private:
  std::vector<std::pair<py::dict, std::vector<py::str>>> entries_;
  std::vector<std::vector<at::Tensor>> counters_;
  std::vector<int> advances_;
};

/// A call that was traced, with all that says when it can be replayed.
class Recording {
 public:
  Recording(std::shared_ptr<Surroundings> surroundings, std::shared_ptr<ObjectGuards> objects,
            std::shared_ptr<ArgumentPattern> arguments, std::vector<py::object> state,
            aten::ReplayPlanPtr plan, size_t num_results, const py::tuple& result)
      : surroundings_(std::move(surroundings)),
        objects_(std::move(objects)),
        arguments_(std::move(arguments)),
        state_(std::move(state)),
        plan_(std::move(plan)),
        num_results_(num_results),
        result_(ResultPattern::Of(result)) {
    for (const py::object& object : state_) given_.push_back(object.ptr());
  }

  /// The result of the call, or nothing where a guard does not hold.
  std::optional<py::object> Replay(const py::tuple& args, const py::dict& kwargs) {
    std::vector<PyObject*> given = given_;
    if (!ObjectsHold(args, kwargs, given)) return std::nullopt;
    if (numbers_ && !FillNumbers()) return std::nullopt;
    std::vector<at::Tensor> made;
    {
      py::gil_scoped_release no_gil;
      const Tensors tensors(given, aten::CollectiveTokenTensor(surroundings_->device));
      lazy::SyncDevice(surroundings_->device, /*wait=*/false);
      const aten::TensorTable table(tensors.list);
      size_t entry;
      if (plan_->Misfit(table, &entry) ||
          !plan_->Run(table, numbers_ ? floats_ : plan_->floats(), made)) {
        return std::nullopt;
      }
    }
    if (numbers_) numbers_->Advance();
    for (const py::object& scheduler : schedulers_) scheduler.attr("step")();
    std::vector<py::object> cache(num_results_);
    return result_.Build(made, given, cache);
  }

  /// Whether the arguments are alike, and their tensors of the same sizes.
  bool Takes(const py::tuple& args, const py::dict& kwargs) const {
    std::vector<PyObject*> given = given_;
    return ArgumentsMatch(args, kwargs, given);
  }

  bool Holds(const py::tuple& args, const py::dict& kwargs) const {
    std::vector<PyObject*> given = given_;
    if (!ObjectsHold(args, kwargs, given)) return false;
    const Tensors tensors(given, CollectiveToken(surroundings_->device));
    size_t entry;
    return !plan_->Misfit(aten::TensorTable(tensors.list), &entry);
  }

  std::string Difference(const py::tuple& args, const py::dict& kwargs) const {
    if (const char* what = Surroundings::Now().Difference(*surroundings_)) {
      return std::string(what) + " changed";
    }
    std::string text = objects_->Difference();
    if (text.empty()) text = arguments_->Difference(args, kwargs);
    std::vector<PyObject*> given = given_;
    if (!text.empty() || !arguments_->Match(args, kwargs, given)) return text;
    const Tensors tensors(given, CollectiveToken(surroundings_->device));
    const aten::TensorTable table(tensors.list);
    size_t entry;
    const char* what = plan_->Misfit(table, &entry);
    if (!what) return {};
    text = "of tensors that it reads there changed ";
    text += what;
    if (entry < table.num_given) {
      text += entry < state_.size()
                  ? " (one of its state, shape "
                  : " (argument tensor " + std::to_string(entry - state_.size()) + ", shape ";
      text += table.entries[entry].impl->root()->shape()->ToString() + ")";
    }
    return text;
  }

  /// What another recording of a call with the same guards does otherwise.
  std::string Compare(const Recording& other, bool donation,
                      const std::unordered_set<size_t>& explained) const {
    std::string text = plan_->Difference(*other.plan_, donation, explained);
    if (text.empty() && !result_.SameAs(other.result_)) text = "it returns something else";
    return text;
  }

  /// What the call does to optimizers and schedulers. `host` has a method values(), which works out
  /// numbers of the call or returns None; `places` are theirs among the program's; schedulers are
  /// stepped behind it.
  void SetHost(py::object host, std::shared_ptr<OptimizerNumbers> numbers,
               std::vector<std::vector<size_t>> places, std::vector<py::object> schedulers) {
    host_ = std::move(host);
    numbers_ = std::move(numbers);
    places_ = std::move(places);
    schedulers_ = std::move(schedulers);
    found_.reset();
  }
  const py::object& host() const { return host_; }

 private:
  /// Those of a call are in floats_ then: worked out where what they come from has changed.
  bool FillNumbers() {
    std::vector<double> found;
    if (!numbers_->ReadEntries(found) || !numbers_->ReadCounters(found)) return false;
    if (found_ && found.size() == found_->size() &&
        std::memcmp(found.data(), found_->data(), found.size() * sizeof(double)) == 0) {
      return true;
    }
    const py::object values = host_.attr("values")();
    if (values.is_none()) return false;
    floats_ = plan_->floats();
    size_t i = 0;
    for (py::handle value : values) {
      for (size_t place : places_.at(i)) floats_.at(place) = value.cast<double>();
      ++i;
    }
    found_ = std::move(found);
    return true;
  }

  bool ArgumentsMatch(const py::tuple& args, const py::dict& kwargs,
                      std::vector<PyObject*>& given) const {
    if (!arguments_->Match(args, kwargs, given)) return false;
    for (size_t i = given_.size(); i < given.size(); ++i) {
      if (!plan_->HasSizes(i, THPVariable_Unpack(given[i]).sizes())) return false;
    }
    return true;
  }

  // Arguments first: where a function has a recording for each of many sizes, they tell them apart.
  bool ObjectsHold(const py::tuple& args, const py::dict& kwargs,
                   std::vector<PyObject*>& given) const {
    return ArgumentsMatch(args, kwargs, given) && !Surroundings::Now().Difference(*surroundings_) &&
           lazy::MayCut() && objects_->Hold();
  }

  /// What a plan is given, which the objects keep alive.
  struct Tensors {
    Tensors(const std::vector<PyObject*>& given, at::Tensor collective_token)
        : token(std::move(collective_token)) {
      list.reserve(given.size() + 1);
      for (PyObject* object : given) list.push_back(&THPVariable_Unpack(object));
      if (token.defined()) list.push_back(&token);
    }
    Tensors(const Tensors&) = delete;
    Tensors& operator=(const Tensors&) = delete;

    at::Tensor token;
    std::vector<const at::Tensor*> list;
  };

  std::shared_ptr<Surroundings> surroundings_;
  std::shared_ptr<ObjectGuards> objects_;
  std::shared_ptr<ArgumentPattern> arguments_;
  std::vector<py::object> state_;
  std::vector<PyObject*> given_;
  aten::ReplayPlanPtr plan_;
  size_t num_results_;
  ResultPattern result_;
  py::object host_ = py::none();
  std::shared_ptr<OptimizerNumbers> numbers_;
  std::vector<std::vector<size_t>> places_;
  std::vector<py::object> schedulers_;
  std::optional<std::vector<double>> found_;  // what floats_ come from
  std::vector<double> floats_;                // of the program
};

/// Whether anybody has the tensor but one reference and its own Python object.
bool IsHeld(const at::Tensor& tensor) {
  PyObject* const object = tensor.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj();
  if (!object) return tensor.use_count() > 1;
  return Py_REFCNT(object) > 1 || tensor.use_count() > 2;
}

struct PyRecorder {
  std::unique_ptr<aten::ReplayRecorder> recorder;
};

}  // namespace

void BindReplay(py::module_& m) {
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
  py::class_<aten::ReplayPlan, std::shared_ptr<aten::ReplayPlan>>(m, "_ReplayPlan")
      // (value, its parameter's place or -1) of each number; None for the value of an integer.
      .def("numbers", [](const aten::ReplayPlan& self) {
        py::list numbers;
        for (const lazy::RecordedNumber& number : self.numbers()) {
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
      // None where they are not what they were.
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
      .def(py::init([](const std::vector<py::object>& tensors) {
        std::vector<at::Tensor> given = Unpack(tensors);
        at::Tensor token = CollectiveToken(lazy::CurrentDevice());
        if (token.defined()) given.push_back(std::move(token));
        return PyRecorder{
            std::make_unique<aten::ReplayRecorder>(std::move(given), lazy::CurrentDevice())};
      }))
      .def("refusal", [](const PyRecorder& self) { return self.recorder->refusal(); })
      .def("end",
           [](PyRecorder& self, const std::vector<py::object>& results) {
             const size_t waiting = self.recorder->End(Unpack(results));
             if (waiting == 0) self.recorder->ReleaseGradients(&IsHeld);
             return waiting;
           })
      // (plan or None, why there is none).
      .def("finish",
           [](PyRecorder& self) {
             std::string refusal;
             aten::ReplayPlanPtr plan;
             {
               py::gil_scoped_release no_gil;
               plan = self.recorder->Finish(&refusal);
             }
             return py::make_tuple(std::const_pointer_cast<aten::ReplayPlan>(plan), refusal);
           })
      .def("close", [](PyRecorder& self) { self.recorder.reset(); });
  py::class_<Recording>(m, "_ReplayRecording")
      .def(py::init(
          [](std::shared_ptr<Surroundings> surroundings, std::shared_ptr<ObjectGuards> objects,
             std::shared_ptr<ArgumentPattern> arguments, std::vector<py::object> state,
             std::shared_ptr<aten::ReplayPlan> plan, size_t num_results, const py::tuple& result) {
            return std::make_unique<Recording>(std::move(surroundings), std::move(objects),
                                               std::move(arguments), std::move(state),
                                               std::move(plan), num_results, result);
          }))
      .def("takes", &Recording::Takes)
      .def("holds", &Recording::Holds)
      .def("difference", &Recording::Difference)
      .def("compare", &Recording::Compare, py::arg("other"), py::arg("donation") = true,
           py::arg("explained") = std::unordered_set<size_t>())
      .def("set_host", &Recording::SetHost)
      .def_property_readonly("host", &Recording::host);
  // The result in a tuple, or None where no recording's guards hold.
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
  // A transform of torch.func sees each operation of a call.
  m.def("_may_record", [] {
    return lazy::MayCut() && !c10::impl::tls_is_dispatch_key_included(
                                 c10::DispatchKey::FuncTorchDynamicLayerFrontMode);
  });
}

}  // namespace torch_xla::python
