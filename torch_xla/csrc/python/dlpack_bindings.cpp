// DLPack: arrays handed to other libraries, and taken from them, without a copy.
#include <ATen/DLConvertor.h>

#include <memory>

#include "aten/bridge.h"
#include "lazy/device.h"
#include "lazy/transfer.h"
#include "python/bindings.h"
#include "python/devices.h"

namespace torch_xla::python {

namespace py = pybind11;

namespace {

/// What a capsule owns: the leaf, whose buffer is not donated as long as it is held.
struct Exported {
  ir::Value leaf;
  at::DimVector sizes, strides;
};

template <typename Managed>
constexpr bool kVersioned = std::is_same_v<Managed, DLManagedTensorVersioned>;

template <typename Managed>
void Delete(Managed* managed) {
  delete static_cast<Exported*>(managed->manager_ctx);
  delete managed;
}

/// Nobody took what the capsule holds.
template <typename Managed>
void DropCapsule(PyObject* capsule) {
  const char* name = at::DLPackTraits<Managed>::capsule;
  if (!PyCapsule_IsValid(capsule, name)) return;
  auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule, name));
  managed->deleter(managed);
}

template <typename Managed>
py::object MakeCapsule(const at::Tensor& tensor, ir::Value leaf, void* data, DLDevice device) {
  auto exported = std::make_unique<Exported>();
  exported->leaf = std::move(leaf);
  exported->sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
  exported->strides.assign(tensor.strides().begin(), tensor.strides().end());
  auto managed = std::make_unique<Managed>();
  managed->dl_tensor = {.data = data,
                        .device = device,
                        .ndim = static_cast<int32_t>(tensor.dim()),
                        .dtype = at::getDLDataType(tensor),
                        .shape = exported->sizes.data(),
                        .strides = exported->strides.data(),
                        .byte_offset = 0};
  managed->deleter = &Delete<Managed>;
  if constexpr (kVersioned<Managed>) {
    managed->version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
    managed->flags = DLPACK_FLAG_BITMASK_READ_ONLY;  // Values do not change; others may share it.
  }
  managed->manager_ctx = exported.release();
  PyObject* capsule =
      PyCapsule_New(managed.get(), at::DLPackTraits<Managed>::capsule, &DropCapsule<Managed>);
  if (!capsule) {
    Delete(managed.release());
    throw py::error_already_set();
  }
  managed.release();
  return py::reinterpret_steal<py::object>(capsule);
}

py::object Export(const at::Tensor& tensor, bool versioned) {
  ir::Value leaf;
  const void* data = nullptr;
  size_t bytes = 0;
  {
    py::gil_scoped_release no_gil;
    leaf = aten::Evaluate(tensor);
    runtime::Buffer* buffer = lazy::LeafData(leaf)->Wait()[0].get();
    buffer->ReadyEvent().Await();
    data = buffer->HostPointer();
    bytes = buffer->bytes();
  }
  if (!data && tensor.numel() != 0) {
    throw py::buffer_error("__dlpack__: the memory of " + tensor.device().str() + " (" +
                           lazy::Platform() + ") cannot be shared; copy it with .cpu() first");
  }
  if (bytes != tensor.nbytes()) {
    throw py::buffer_error("__dlpack__: the device holds this tensor in another dtype than " +
                           std::string(c10::toString(tensor.scalar_type())) +
                           "; copy it with .cpu() first");
  }
  const DLDevice device = {kDLCPU, 0};
  auto* address = const_cast<void*>(data);
  return versioned ? MakeCapsule<DLManagedTensorVersioned>(tensor, std::move(leaf), address, device)
                   : MakeCapsule<DLManagedTensor>(tensor, std::move(leaf), address, device);
}

}  // namespace

void BindDlpack(py::module_& m) {
  m.def("_xla_to_dlpack", &Export, py::arg("tensor"), py::arg("versioned"));
  m.def(
      "_xla_from_host",
      [](const at::Tensor& cpu, const std::string& device) {
        const int ordinal = Ordinal(device);
        return aten::MakeTensor(lazy::MakeLeaf(lazy::AliasHost(cpu, ordinal)), ordinal);
      },
      py::arg("cpu"), py::arg("device"), py::call_guard<py::gil_scoped_release>());
}

}  // namespace torch_xla::python
