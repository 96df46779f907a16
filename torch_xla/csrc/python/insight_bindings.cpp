#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>
#include <vector>

#include "XLAOps.h"
#include "aten/after_read.h"
#include "aten/bridge.h"
#include "cpu/host_calls.h"
#include "debug/timeline.h"
#include "distributed/collective_node.h"
#include "exec/cut.h"
#include "exec/disk_cache.h"
#include "exec/executor.h"
#include "exec/nan_search.h"
#include "explain/explain.h"
#include "explain/line_costs.h"
#include "explain/memory_report.h"
#include "lowering/kernel_choice.h"
#include "lowering/may_call.h"
#include "python/bindings.h"
#include "python/source_lines.h"
#include "runtime/device_profiler.h"
#include "runtime/plugin.h"
#include "tensor/device.h"
#include "tensor/errors.h"
#include "tensor/node_factory.h"

namespace torch_xla::python {

namespace py = pybind11;

namespace {

using Record = py::typing::Dict<py::str, py::object>;
using Records = py::typing::List<Record>;

Record AsDict(const explain::Explanation& explanation) {
  py::list reasons;
  for (const auto& reason : explanation.reasons) {
    reasons.append(py::dict(py::arg("kind") = reason.kind, py::arg("text") = reason.text,
                            py::arg("line") = reason.line, py::arg("remedy") = reason.remedy));
  }
  return Record(py::arg("number") = explanation.number, py::arg("cause") = explanation.cause,
                py::arg("line") = explanation.line, py::arg("graph_hash") = explanation.hash,
                py::arg("nearest") = explanation.nearest, py::arg("nodes") = explanation.nodes,
                py::arg("changed") = explanation.changed, py::arg("inputs") = explanation.inputs,
                py::arg("outputs") = explanation.outputs,
                py::arg("recompilation") = explanation.near, py::arg("reasons") = reasons,
                py::arg("disk_key") = py::bytes(explanation.disk_key),
                py::arg("text") = explanation.ToString());
}

Record AsDict(const tensor::DeviceData::Live& live) {
  const ir::SourceLocation* location = live.location;
  return Record(py::arg("id") = live.id, py::arg("bytes") = live.bytes,
                py::arg("shape") = live.shape->ToString(), py::arg("device") = live.device,
                py::arg("address") = live.address, py::arg("line") = ir::LineOf(location),
                py::arg("file") = location ? location->code->file : "",
                py::arg("function") = location ? location->code->function : "",
                py::arg("number") = location ? location->line() : 0,
                py::arg("backward") = location && location->backward);
}

Records AsDicts(const std::vector<tensor::DeviceData::Live>& arrays) {
  Records dicts;
  for (const tensor::DeviceData::Live& live : arrays) dicts.append(AsDict(live));
  return dicts;
}

/// While this object lives, and no Python code is called, no other thread runs and the garbage
/// collector, which calls finalizers, is off. So no tuple is seen while another thread fills it.
class NoOtherCode {
 public:
  ~NoOtherCode() {
    if (was_enabled_) PyGC_Enable();
  }

 private:
  const bool was_enabled_ = PyGC_Disable() != 0;
};

/// Traces a call of the host function `id` with the arrays, after all calls and collectives that
/// were traced for the device.
void CallHost(const std::vector<at::Tensor>& arrays, int64_t id) {
  const auto first = std::find_if(arrays.begin(), arrays.end(), [](const at::Tensor& array) {
    return array.device().type() == c10::DeviceType::XLA;
  });
  TORCH_CHECK(first != arrays.end(), "debug: expected a tensor on an xla device");
  const int device = aten::GetImpl(*first)->root()->device();
  ir::Node::Operands operands;
  for (const at::Tensor& array : arrays) {
    operands.push_back(aten::OperandValue(array, device, "debug", "tensors"));
  }
  operands.push_back(tensor::MakeScalarParameter(id, c10::ScalarType::Long, /*wrapped=*/false));
  ir::Words words;
  ir::AttributeWriter(words).Int(static_cast<int64_t>(arrays.size()));
  distributed::MakeOrdered(
      ir::ops::host_call, std::move(operands), std::move(words), [] { return ir::OutputShapes(); },
      device);
}

std::atomic<bool> assertions_are_read{false};

/// Raises errors of the host calls that programs made since the last read. Where programs cannot
/// call the host, reads what the step asserts.
void RaiseAtRead() {
  static std::atomic<int64_t> seen{0};
  const int64_t calls = cpu::NumHostCalls();
  if (seen.exchange(calls) == calls && !assertions_are_read) return;
  const py::gil_scoped_acquire gil;
  py::module_::import("torch_xla._internal.insight.host_calls").attr("raise_at_read")();
}

}  // namespace

void BindInsight(py::module_& m) {
  // Whether programs of the platform can call the host.
  m.def("_xla_can_call_host", [] { return lowering::HasCpuKernels(tensor::Platform()); }, NoGil());
  m.def("_xla_call_host", &CallHost, py::arg("arrays"), py::arg("id"), NoGil());
  // Waits for the next call and returns (id, arrays), or None at the end.
  m.def(
      "_xla_next_host_call",
      []() -> std::optional<std::pair<int64_t, std::vector<at::Tensor>>> {
        auto call = cpu::NextHostCall();
        if (!call) return std::nullopt;
        return std::pair(call->id, std::move(call->arrays));
      },
      NoGil());
  m.def(
      "_xla_raise_at_reads",
      [](bool read) {
        if (read) assertions_are_read = true;
        aten::SetAfterRead(&RaiseAtRead);
      },
      py::arg("read"));
  m.def("_xla_set_find_nan", &exec::SetFindsNan, py::arg("on"));
  m.def("_xla_finds_nan", &exec::FindsNan);
  m.def("_xla_set_module", &SetModule, py::arg("name"));
  // Returns (operation, whether it is an input of the program, lines from the innermost on, module
  // or None). None if no search has this number.
  m.def(
      "_xla_nan_of",
      [](int64_t search, int64_t position)
          -> std::optional<
              std::tuple<std::string, bool, std::vector<std::string>, const std::string*>> {
        const std::optional<exec::FoundNan> found = exec::NanOf(search, position);
        if (!found) return std::nullopt;
        std::vector<std::string> lines;
        const std::string* module = ModuleOf(found->location);
        for (auto* location = found->location; location; location = location->caller) {
          if (module && !location->caller) break;
          lines.push_back(ir::LineOf(location) + " in " + location->code->function);
        }
        return std::tuple(std::string(found->op), found->is_input, std::move(lines), module);
      },
      py::arg("search"), py::arg("position"));
  m.def("_xla_stop_host_calls", &cpu::StopHostCalls, NoGil());
  m.def("_xla_num_host_calls", &cpu::NumHostCalls, NoGil());
  py::class_<runtime::DeviceProfiler>(m, "DeviceProfiler")
      .def("stop", [](runtime::DeviceProfiler& profiler) {
        std::string space;
        {
          py::gil_scoped_release no_gil;
          space = profiler.Stop();
        }
        return py::bytes(space);
      });
  m.def(
      "_start_device_profiler",
      []() -> std::unique_ptr<runtime::DeviceProfiler> {
        const runtime::PluginSpec spec = runtime::FindPlugin(tensor::Platform());
        if (spec.topology) return nullptr;  // nothing runs there
        return runtime::DeviceProfiler::Start(runtime::PluginLibrary::Load(spec.library));
      },
      NoGil());
  m.def(
      "_explanations",
      [](int64_t after, size_t count) {
        Records found;
        for (const auto& explanation : explain::Explanations(after, count)) {
          found.append(AsDict(explanation));
        }
        return found;
      },
      py::arg("after") = 0, py::arg("count") = SIZE_MAX);
  // Says which part of a missed key no entry on disk has.
  m.def("_why_not_on_disk", [](const py::bytes& bytes) {
    const std::string key = bytes;
    const py::gil_scoped_release released;
    const std::shared_ptr<exec::DiskCache> cache = exec::GetDiskCache();
    return cache ? cache->WhyMissing(key) : std::string();
  });
  m.def("_set_recompile_is_error", &explain::SetRecompileIsError);
  m.def("_graph_record_size", &explain::RecordSize);
  m.def(
      "_memory_report",
      [](size_t count) { return explain::MemoryReport(tensor::DeviceData::AllLive(), count); },
      NoGil());
  m.def("_bytes_text", &explain::BytesText);
  // A dict for each array in device memory.
  m.def("_live_arrays", [] { return AsDicts(tensor::DeviceData::AllLive()); });
  // The objects known to the garbage collector that are of these types: a list for each type.
  m.def("_objects_of_types", [](const std::vector<py::type>& types) {
    const NoOtherCode alone;
    std::vector<py::list> found(types.size());
    const py::list all = py::module_::import("gc").attr("get_objects")();
    for (const py::handle object : all) {
      for (size_t i = 0; i < types.size(); ++i) {
        // Not `isinstance`, which would ask proxies for the class of their target.
        if (!PyType_IsSubtype(Py_TYPE(object.ptr()),
                              reinterpret_cast<PyTypeObject*>(types[i].ptr()))) {
          continue;
        }
        found[i].append(object);
        break;
      }
    }
    return found;
  });
  // The ids of everything that is held by holders of any of these objects, except by this list.
  m.def("_ids_held_by_objects", [](const py::list& objects) {
    py::set ids;
    if (objects.empty()) return ids;
    const NoOtherCode alone;
    const py::module_ gc = py::module_::import("gc");
    const py::list referrers = gc.attr("get_referrers")(*objects);
    for (const py::handle referrer : referrers) {
      if (referrer.is(objects)) continue;
      const py::list referents = gc.attr("get_referents")(referrer);
      for (const py::handle referent : referents) {
        ids.add(py::int_(reinterpret_cast<uintptr_t>(referent.ptr())));
      }
    }
    return ids;
  });
  // The ids of the arrays of these tensors; None for tensors without an array (yet).
  m.def("_array_ids", [](const std::vector<at::Tensor>& tensors) {
    std::vector<std::optional<uint64_t>> ids;
    for (const at::Tensor& tensor : tensors) {
      const tensor::DeviceData* data =
          aten::IsXla(tensor) ? tensor::LeafData(aten::GetImpl(tensor)->root()->value()) : nullptr;
      ids.push_back(data ? std::optional(data->id()) : std::nullopt);
    }
    return ids;
  });
  // Returns the id for each xla::device_data in the text of the tensors' graph; 0 for a number.
  m.def(
      "_input_array_ids",
      [](const std::vector<at::Tensor>& tensors) {
        std::vector<ir::Value> values;
        for (const at::Tensor& tensor : tensors) values.push_back(aten::GetIrValue(tensor));
        const auto lock = tensor::LockGraph();
        std::vector<uint64_t> ids;
        for (const ir::Node* node : tensor::CollectGraph(std::move(values)).order) {
          if (&node->op() != &ir::ops::device_data) continue;
          const auto* data = static_cast<tensor::DeviceData*>(node->payload());
          ids.push_back(data->fill() ? 0 : data->id());
        }
        return ids;
      },
      NoGil());
  // The ids of the arrays that pending operations will read.
  m.def(
      "_pending_array_ids",
      [] {
        std::vector<uint64_t> ids;
        for (size_t device = 0; device < tensor::GetClient().devices().size(); ++device) {
          const auto found = exec::PendingInputs(static_cast<int>(device));
          ids.insert(ids.end(), found.begin(), found.end());
        }
        return ids;
      },
      NoGil());
  m.def("_record_memory_events", &tensor::DeviceData::RecordEvents);
  m.def("_memory_events", [] {
    Records events;
    for (const tensor::DeviceData::Event& event : tensor::DeviceData::Events()) {
      Record as_dict = AsDict(event.data);
      as_dict["came"] = event.came;
      as_dict["time_us"] = event.time_us;
      events.append(std::move(as_dict));
    }
    return events;
  });
  // The memory that the programs of the last compilations need: a dict each.
  m.def("_program_memory", [] {
    Records programs;
    for (const explain::Explanation& program : explain::Explanations(0, SIZE_MAX)) {
      const auto& memory = program.memory;
      if (memory.temporaries < 0) continue;
      programs.append(Record(
          py::arg("number") = program.number, py::arg("cause") = program.cause,
          py::arg("peak") = explain::PeakOf(memory), py::arg("temporaries") = memory.temporaries,
          py::arg("arguments") = memory.arguments, py::arg("outputs") = memory.outputs,
          py::arg("aliased") = memory.aliased, py::arg("code") = memory.code));
    }
    return programs;
  });
  m.def("_kernel_choices", &lowering::KernelChoices);
  // Notes the time in nanoseconds, ending now, that the calling thread has waited for training
  // data.
  m.def("_note_input_time", [](int64_t nanoseconds) {
    debug::NoteHostTime(debug::HostPart::kInput, std::chrono::nanoseconds(nanoseconds));
  });
  // Returns (program, device, begin, end) of each run; the times are in nanoseconds since 1970.
  m.def("_executions", [] {
    std::vector<std::tuple<int64_t, int, int64_t, int64_t>> all;
    for (const debug::Ran& ran : debug::AllRan()) {
      all.emplace_back(ran.program, ran.device, ran.begin_ns, ran.end_ns);
    }
    return all;
  });
  // Returns (line, flops, bytes, operations) of a compilation's program, estimated from its shapes,
  // and XLA's estimates for the whole program; None if the program is no longer kept.
  m.def(
      "_line_costs",
      [](int64_t number) {
        using Lines = std::vector<std::tuple<std::string, double, double, size_t>>;
        using Whole = std::vector<std::pair<std::string, double>>;
        std::optional<std::pair<Lines, Whole>> costs;
        const explain::GraphSnapshotPtr record = explain::RecordOf(number);
        if (!record) return costs;
        costs.emplace();
        for (const explain::LineCost& cost : explain::CostsByLine(*record)) {
          costs->first.emplace_back(cost.line, cost.flops, cost.bytes, cost.operations);
        }
        for (const exec::ProgramPtr& program : exec::Programs()) {
          if (program->compiled && program->executable && program->explanation == number) {
            costs->second = program->executable->Costs();
          }
        }
        return costs;
      },
      NoGil());
  explain::SetHoldersFunction(
      [](const std::vector<tensor::DeviceData::Live>& arrays) -> std::string {
        if (!Py_IsInitialized()) return {};
        py::gil_scoped_acquire gil;
        try {
          const py::module_ owners =
              py::module_::import("torch_xla._internal.insight.memory_owners");
          return owners.attr("text")(AsDicts(arrays)).cast<std::string>();
        } catch (const std::exception&) {
          return {};  // the error is complete without it
        }
      });
}

}  // namespace torch_xla::python
