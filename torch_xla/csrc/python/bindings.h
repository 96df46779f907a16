// The parts of the _XLAC module, one file each. These files only translate.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torch_xla::python {

/// For bindings that may wait for the device, for a lock that a tracing thread holds, or for the
/// client, which calls back into Python while it is created if the replicas' store is a Python
/// object.
using NoGil = pybind11::call_guard<pybind11::gil_scoped_release>;

void BindRuntime(pybind11::module_& m);      // devices, plugins, memory, random state
void BindExecution(pybind11::module_& m);    // sync, wait, graph texts
void BindMetrics(pybind11::module_& m);      // counters and metrics
void BindData(pybind11::module_& m);         // TFRecord files
void BindStableHlo(pybind11::module_& m);    // the StableHLO builder
void BindDlpack(pybind11::module_& m);       // memory shared with other libraries
void BindDistributed(pybind11::module_& m);  // replicas and their collectives
void BindSharding(pybind11::module_& m);     // SPMD mode
void BindCapture(pybind11::module_& m);      // functions traced separately
void BindReplay(pybind11::module_& m);       // recorded calls of functions
void BindCache(pybind11::module_& m);        // compiled programs on disk
void BindPrograms(pybind11::module_& m);     // compiled programs in memory
void BindInsight(pybind11::module_& m);      // why programs are compiled, device memory
void RegisterInterpreterHooks();             // source lines, PyTorch's decompositions

}  // namespace torch_xla::python
