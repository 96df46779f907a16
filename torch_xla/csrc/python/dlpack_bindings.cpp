// DLPack: shares arrays with other libraries in both directions, without a copy.
#include <ATen/DLConvertor.h>

#include <memory>

#include "aten/bridge.h"
#include "exec/transfer.h"
#include "python/bindings.h"
#include "python/devices.h"
#include "tensor/device.h"

namespace torch_xla::python {

namespace py = pybind11;

namespace {

/// The DLPack device of a device; nothing if DLPack has no name for the platform's memory.
std::optional<DLDevice> DlpackDevice(int ordinal) {
  const runtime::Client& client = tensor::GetClient();
  if (client.host_memory()) return DLDevice{kDLCPU, 0};
  const int id = client.devices()[ordinal].hardware_id;
  // No test covers the lines below; they were run once on a GPU (docs/data.md).
  if (client.platform_name() == "cuda") return DLDevice{kDLCUDA, id};
  if (client.platform_name() == "rocm") return DLDevice{kDLROCM, id};
  return std::nullopt;
}

py::buffer_error CannotShare(int ordinal, const std::string& reason) {
  return py::buffer_error("__dlpack__: the memory of xla:" + std::to_string(ordinal) + " (" +
                          tensor::Platform() + ") cannot be shared: " + reason +
                          "; copy it with .cpu() first");
}

DLDevice DlpackDeviceOf(const std::string& name) {
  const int ordinal = Ordinal(name);
  if (const auto device = DlpackDevice(ordinal)) return *device;
  throw CannotShare(ordinal, "DLPack has no name for it");
}

// ---------------------------------------------------------------------------------- export

/// The contents of a capsule: the leaf, whose buffer is not donated while it is held, and the
/// plugin's reference to the memory, which is released first.
struct Exported {
  ir::Value leaf;
  std::shared_ptr<void> memory;
  at::DimVector sizes, strides;
};

template <typename Managed>
constexpr bool kVersioned = std::is_same_v<Managed, DLManagedTensorVersioned>;

template <typename Managed>
void Delete(Managed* managed) {
  delete static_cast<Exported*>(managed->manager_ctx);
  delete managed;
}

/// Called if nobody consumed the capsule.
template <typename Managed>
void DropCapsule(PyObject* capsule) {
  const char* name = at::DLPackTraits<Managed>::capsule;
  if (!PyCapsule_IsValid(capsule, name)) return;
  auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule, name));
  managed->deleter(managed);
}

template <typename Managed>
py::object MakeCapsule(const at::Tensor& tensor, std::unique_ptr<Exported> exported,
                       DLDevice device) {
  exported->sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
  exported->strides.assign(tensor.strides().begin(), tensor.strides().end());
  auto managed = std::make_unique<Managed>();
  managed->dl_tensor = {.data = exported->memory.get(),
                        .device = device,
                        .ndim = static_cast<int32_t>(tensor.dim()),
                        .dtype = at::getDLDataType(tensor),
                        .shape = exported->sizes.data(),
                        .strides = exported->strides.data(),
                        .byte_offset = 0};
  managed->deleter = &Delete<Managed>;
  if constexpr (kVersioned<Managed>) {
    managed->version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
    managed->flags = DLPACK_FLAG_BITMASK_READ_ONLY;  // values do not change, and others may share
                                                     // the memory
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

/// The content has been computed when this returns, so the consumer may read it on any stream.
py::object Export(const at::Tensor& tensor, bool versioned) {
  auto exported = std::make_unique<Exported>();
  std::optional<DLDevice> device;
  int ordinal = 0;
  size_t bytes = 0;
  std::string refusal = "DLPack has no name for it";
  {
    py::gil_scoped_release no_gil;
    exported->leaf = aten::Evaluate(tensor);
    tensor::DeviceData* data = tensor::LeafData(exported->leaf);
    runtime::Buffer* buffer = data->Wait()[0].get();
    buffer->ReadyEvent().Await();
    bytes = buffer->bytes();
    ordinal = data->device();
    if (data->sharding()->replicated()) {
      device = DlpackDevice(ordinal);
    } else {
      refusal = "it is sharded over several devices";
    }
    try {
      if (device) exported->memory = buffer->Share();
    } catch (const runtime::Error& error) {
      if (!error.refused()) throw;
      device.reset();
      refusal = error.what();
    }
  }
  if (!device) throw CannotShare(ordinal, refusal);
  if (bytes != tensor.nbytes()) {
    throw py::buffer_error("__dlpack__: the device holds this tensor in a dtype other than " +
                           std::string(c10::toString(tensor.scalar_type())) +
                           "; copy it with .cpu() first");
  }
  return versioned ? MakeCapsule<DLManagedTensorVersioned>(tensor, std::move(exported), *device)
                   : MakeCapsule<DLManagedTensor>(tensor, std::move(exported), *device);
}

// ---------------------------------------------------------------------------------- import

bool IsRowMajor(const DLTensor& array) {
  if (array.strides == nullptr) return true;
  int64_t expected = 1;
  for (int i = array.ndim; i-- > 0;) {
    if (array.shape[i] != 1 && array.strides[i] != expected) return false;
    expected *= array.shape[i];
  }
  return true;
}

/// An array that belongs to its capsule until `taken` is set.
template <typename Managed>
struct Foreign {
  Managed* managed;
  bool taken = false;
  ~Foreign() {
    if (taken && managed->deleter) managed->deleter(managed);
  }
};

/// Consumes the capsule and returns its array as device data. Returns nullptr, and leaves the
/// capsule as it was, if the array cannot be the memory of a tensor on the device.
template <typename Managed>
tensor::DeviceDataPtr Take(const py::object& capsule, int ordinal, intptr_t stream) {
  auto* managed = static_cast<Managed*>(
      PyCapsule_GetPointer(capsule.ptr(), at::DLPackTraits<Managed>::capsule));
  if constexpr (kVersioned<Managed>) {
    // the rest may be laid out differently
    if (managed->version.major > DLPACK_MAJOR_VERSION) return nullptr;
  }
  const DLTensor& array = managed->dl_tensor;
  const auto own = DlpackDevice(ordinal);
  if (!own || own->device_type != array.device.device_type ||
      own->device_id != array.device.device_id || !IsRowMajor(array)) {
    return nullptr;
  }
  ir::ShapeRef shape =
      ir::GetShape(at::toScalarType(array.dtype), {array.shape, static_cast<size_t>(array.ndim)});
  if (shape->numel == 0) return nullptr;
  auto foreign = std::make_shared<Foreign<Managed>>(managed);
  auto data = exec::ViewOf(static_cast<char*>(array.data) + array.byte_offset, shape, ordinal,
                           foreign, stream);
  if (data) {
    foreign->taken = true;
    PyCapsule_SetName(capsule.ptr(), at::DLPackTraits<Managed>::used);
  }
  return data;
}

std::optional<at::Tensor> Import(const py::object& capsule, const std::string& device,
                                 intptr_t stream) {
  const int ordinal = [&] {
    py::gil_scoped_release no_gil;
    tensor::GetClient();
    return Ordinal(device);
  }();
  tensor::DeviceDataPtr data;
  if (PyCapsule_IsValid(capsule.ptr(), at::DLPackTraits<DLManagedTensorVersioned>::capsule)) {
    data = Take<DLManagedTensorVersioned>(capsule, ordinal, stream);
  } else if (PyCapsule_IsValid(capsule.ptr(), at::DLPackTraits<DLManagedTensor>::capsule)) {
    data = Take<DLManagedTensor>(capsule, ordinal, stream);
  }
  if (!data) return std::nullopt;
  return aten::MakeTensor(tensor::MakeLeaf(data), ordinal);
}

}  // namespace

void BindDlpack(py::module_& m) {
  m.def("_xla_to_dlpack", &Export, py::arg("tensor"), py::arg("versioned"));
  m.def("_xla_from_dlpack", &Import, py::arg("capsule"), py::arg("device"), py::arg("stream"));
  m.def(
      "_xla_dlpack_device",
      [](const std::string& name) {
        const DLDevice device = DlpackDeviceOf(name);
        return std::pair(static_cast<int>(device.device_type), device.device_id);
      },
      py::arg("device"), NoGil());
  m.def(
      "_xla_external_stream",
      [](const std::string& name) { return tensor::GetClient().ExternalStream(Ordinal(name)); },
      py::arg("device"), NoGil());
}

}  // namespace torch_xla::python
