// The parts of the _XLAC module, one file each. Nothing here but translation.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torch_xla::python {

void BindRuntime(pybind11::module_& m);      // devices, plugins, memory, random state
void BindExecution(pybind11::module_& m);    // sync, wait, graph texts
void BindMetrics(pybind11::module_& m);      // counters and metrics
void BindData(pybind11::module_& m);         // TFRecord files
void BindStableHlo(pybind11::module_& m);    // the StableHLO builder
void BindDlpack(pybind11::module_& m);       // memory shared with other libraries
void BindDistributed(pybind11::module_& m);  // replicas and their collectives
void BindSharding(pybind11::module_& m);     // SPMD mode
void RegisterInterpreterHooks();             // source lines, PyTorch's decompositions

}  // namespace torch_xla::python
