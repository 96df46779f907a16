#include <pybind11/typing.h>

#include "lazy/device.h"
#include "lazy/explain.h"
#include "lazy/memory_report.h"
#include "python/bindings.h"

namespace torch_xla::python {

namespace py = pybind11;

namespace {

using Record = py::typing::Dict<py::str, py::object>;

Record AsDict(const lazy::Explanation& explanation) {
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
                py::arg("text") = explanation.ToString());
}

}  // namespace

void BindInsight(py::module_& m) {
  m.def(
      "_explanations",
      [](int64_t after, size_t count) {
        py::typing::List<Record> found;
        for (const auto& explanation : lazy::Explanations(after, count)) {
          found.append(AsDict(explanation));
        }
        return found;
      },
      py::arg("after") = 0, py::arg("count") = SIZE_MAX);
  m.def("_set_recompile_is_error", &lazy::SetRecompileIsError);
  m.def("_graph_record_size", &lazy::RecordSize);
  m.def("_memory_report", &lazy::MemoryReport, NoGil());
  // (bytes, shape, device, line) of each array in device memory.
  m.def("_live_arrays", [] {
    std::vector<std::tuple<int64_t, std::string, int, std::string>> arrays;
    for (const lazy::DeviceData::Live& live : lazy::DeviceData::AllLive()) {
      arrays.emplace_back(live.bytes, live.shape->ToString(), live.device,
                          ir::LineOf(live.location));
    }
    return arrays;
  });
}

}  // namespace torch_xla::python
