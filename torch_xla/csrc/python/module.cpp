#include "python/bindings.h"
#include "runtime/client.h"

PYBIND11_MODULE(_XLAC, m) {
  using namespace torch_xla::python;
  pybind11::register_exception_translator([](std::exception_ptr error) {
    try {
      if (error) std::rethrow_exception(error);
    } catch (const torch_xla::runtime::Error& e) {
      PyErr_SetString(e.out_of_memory() ? PyExc_MemoryError : PyExc_RuntimeError, e.what());
    }
  });
  BindRuntime(m);
  BindExecution(m);
  BindMetrics(m);
  m.def("_init", &RegisterInterpreterHooks);
}
