#include <pybind11/typing.h>

#include <map>

#include "python/bindings.h"
#include "python/devices.h"
#include "runtime/cpu_devices.h"
#include "runtime/host_memory.h"
#include "runtime/plugin.h"
#include "tensor/device.h"
#include "tensor/rng.h"
#include "tensor/storage.h"

namespace torch_xla::python {

namespace py = pybind11;

int Ordinal(const std::string& device) {
  return device.empty() ? tensor::CurrentDevice() : tensor::DeviceOrdinal(c10::Device(device));
}

std::vector<int> Ordinals(const std::vector<std::string>& devices) {
  std::vector<int> ordinals;
  for (const std::string& device : devices) ordinals.push_back(Ordinal(device));
  if (!devices.empty()) return ordinals;
  // A process that has not used a device need not start a client.
  const int current = tensor::CurrentDevice();
  if (tensor::ClientCreated() || !tensor::Storage::Pending(current).empty())
    ordinals.push_back(current);
  return ordinals;
}

namespace {

std::string Name(int ordinal) { return "xla:" + std::to_string(ordinal); }

/// Like Ordinal, but starts no client. Without a client any ordinal is accepted, since programs on
/// the CPU also save and restore the states of all generators.
int OrdinalOfRng(const std::string& device) {
  return tensor::ClientCreated() || device.empty() ? Ordinal(device) : c10::Device(device).index();
}

}  // namespace

void BindRuntime(py::module_& m) {
  m.def(
      "_xla_add_plugin",
      [](const std::string& platform, const std::string& library,
         const py::typing::Dict<py::str, py::object>& options,
         std::optional<std::string> topology) {
        runtime::PluginSpec spec{library, {}, std::move(topology)};
        for (auto [key, value] : options) {
          runtime::OptionValue option;
          if (py::isinstance<py::bool_>(value)) {
            option = value.cast<bool>();
          } else if (py::isinstance<py::int_>(value)) {
            option = value.cast<int64_t>();
          } else if (py::isinstance<py::float_>(value)) {
            option = value.cast<float>();
          } else if (py::isinstance<py::str>(value)) {
            option = value.cast<std::string>();
          } else {
            option = value.cast<std::vector<int64_t>>();
          }
          spec.options[key.cast<std::string>()] = option;
        }
        runtime::AddPlugin(platform, std::move(spec));
      },
      py::arg("platform"), py::arg("library"), py::arg("options"),
      py::arg("topology") = py::none());
  m.def("_xla_is_initialized", &tensor::ClientCreated);
  m.def("_xla_give_back_freed_memory", &runtime::GiveBackFreedMemory, NoGil());
  m.def("_xla_known_libraries", &runtime::KnownLibraries);
  m.def("_xla_cpu_device_count", &runtime::CpuDeviceCount);
  m.def("_xla_platform", [] { return tensor::Platform(); }, NoGil());
  m.def(
      "_xla_get_devices",
      [] {
        std::vector<std::string> names;
        for (int ordinal = 0; ordinal < tensor::DeviceCount(); ++ordinal) {
          names.push_back(Name(ordinal));
        }
        return names;
      },
      NoGil());
  m.def(
      "_xla_real_devices",
      [](const std::vector<std::string>& devices) {
        std::vector<std::string> names;
        for (const std::string& device : devices) {
          names.push_back(tensor::Platform() + ":" + std::to_string(Ordinal(device)));
        }
        return names;
      },
      NoGil());
  m.def(
      "_xla_device_kind",
      [](const std::string& device) { return tensor::GetClient().devices()[Ordinal(device)].kind; },
      NoGil());
  m.def(
      "_xla_device_attributes",
      [] {
        std::vector<std::pair<int, std::map<std::string, runtime::OptionValue>>> devices;
        for (const runtime::DeviceInfo& device : tensor::GetClient().devices()) {
          devices.emplace_back(device.process, device.attributes);
        }
        return devices;
      },
      NoGil());
  m.def("_xla_get_default_device", [] { return Name(tensor::CurrentDevice()); });
  m.def(
      "_xla_set_default_device",
      [](const std::string& device) {
        return Name(tensor::SetCurrentDevice(device == Name(0) ? 0 : Ordinal(device)));
      },
      NoGil());
  m.def(
      "_xla_set_rng_seed",
      [](py::int_ seed, const std::string& device) {
        // Any Python int, taken modulo 2**64 like in torch.manual_seed.
        const uint64_t state = PyLong_AsUnsignedLongLongMask(seed.ptr());
        py::gil_scoped_release no_gil;
        if (device.empty()) {
          tensor::SetRngSeeds(state);
        } else {
          tensor::SetRngSeed(OrdinalOfRng(device), state);
        }
      },
      py::arg("seed"), py::arg("device") = "");
  m.def(
      "_xla_get_rng_seed",
      [](const std::string& device) { return tensor::GetRngSeed(OrdinalOfRng(device)); },
      py::arg("device") = "", NoGil());
  m.def(
      "_xla_memory_info",
      [](const std::string& device) {
        const runtime::MemoryInfo info = tensor::GetClient().memory(Ordinal(device));
        return std::map<std::string, int64_t>{{"bytes_used", info.in_use},
                                              {"peak_bytes_used", info.peak},
                                              {"bytes_limit", info.limit}};
      },
      NoGil());
  m.def(
      "_xla_reset_peak_memory",
      [](const std::string& device) { tensor::GetClient().ResetPeakMemory(Ordinal(device)); },
      NoGil());
}

}  // namespace torch_xla::python
