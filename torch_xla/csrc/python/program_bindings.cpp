// The compiler's statistics of the programs in the cache.
#include <pybind11/stl.h>

#include <map>

#include "exec/executor.h"
#include "python/bindings.h"

namespace torch_xla::python {

namespace py = pybind11;

namespace {

/// A compiled program, which stays compiled while this object lives.
struct CompiledProgram {
  exec::ProgramPtr program;
  const runtime::Executable& executable() const { return *program->executable; }
};

std::map<std::string, int64_t> MemoryOf(const CompiledProgram& compiled) {
  const runtime::Executable::MemoryUse use = compiled.executable().memory();
  return {{"temporaries", use.temporaries}, {"arguments", use.arguments},
          {"outputs", use.outputs},         {"code", use.code},
          {"aliased", use.aliased},         {"peak", use.peak}};
}

}  // namespace

void BindPrograms(py::module_& m) {
  py::class_<CompiledProgram>(m, "_XlaCompiledProgram")
      .def_property_readonly(
          "name", [](const CompiledProgram& compiled) { return compiled.executable().name(); })
      // Equal for two objects with the same program.
      .def_property_readonly("identity",
                             [](const CompiledProgram& compiled) {
                               return reinterpret_cast<uintptr_t>(compiled.program.get());
                             })
      .def_property_readonly(
          "devices",
          [](const CompiledProgram& compiled) { return compiled.program->devices->size(); })
      .def("memory", &MemoryOf, NoGil())
      .def(
          "costs", [](const CompiledProgram& compiled) { return compiled.executable().Costs(); },
          NoGil())
      // Returns (format, bytes), or None.
      .def("optimized",
           [](const CompiledProgram& compiled) -> std::optional<std::pair<std::string, py::bytes>> {
             std::optional<runtime::Executable::Optimized> optimized;
             {
               py::gil_scoped_release no_gil;
               optimized = compiled.executable().OptimizedProgram();
             }
             if (!optimized) return std::nullopt;
             return std::pair(optimized->format, py::bytes(optimized->code));
           })
      .def("serialized", [](const CompiledProgram& compiled) {
        std::string serialized;
        {
          py::gil_scoped_release no_gil;
          serialized = compiled.executable().Serialize();
        }
        return py::bytes(serialized);
      });
  m.def(
      "_xla_compiled_programs",
      [] {
        std::vector<CompiledProgram> compiled;
        for (exec::ProgramPtr& program : exec::Programs()) {
          if (program->compiled && program->executable) compiled.push_back({std::move(program)});
        }
        return compiled;
      },
      NoGil());
}

}  // namespace torch_xla::python
