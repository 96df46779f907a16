#include <c10/util/Exception.h>

#include "python/bindings.h"
#include "runtime/client.h"

PYBIND11_MODULE(_XLAC, m) {
  using namespace torch_xla::python;
  pybind11::register_exception_translator([](std::exception_ptr error) {
    try {
      if (error) std::rethrow_exception(error);
    } catch (const c10::OutOfMemoryError& e) {
      pybind11::object type = pybind11::module_::import("torch").attr("OutOfMemoryError");
      PyErr_SetString(type.ptr(), e.what_without_backtrace());
    } catch (const torch_xla::runtime::Error& e) {
      PyErr_SetString(PyExc_RuntimeError, e.what());
    }
  });
  BindRuntime(m);
  BindExecution(m);
  BindMetrics(m);
  BindData(m);
  BindDlpack(m);
  BindStableHlo(m);
  BindDistributed(m);
  BindSharding(m);
  BindCapture(m);
  BindReplay(m);
  BindCache(m);
  BindPrograms(m);
  BindInsight(m);
  m.def("_init", &RegisterInterpreterHooks);
}
