// The device xla of a program that has not imported torch_xla: its first use does that, and is then
// carried out by what the import has put in the place of what is here. PyTorch takes a device guard
// from C++ alone. Loaded by every `import torch`: nothing is done but a few entries.
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <memory>

namespace {

// What makes a tensor from nothing; a fallback for all operators would cost each `import torch`
// milliseconds. Tensors from other devices ask the guard first.
constexpr const char* kFactories[] = {"empty.memory_format", "empty_strided", "tril_indices",
                                      "triu_indices", "_efficientzerotensor"};
std::unique_ptr<torch::Library> factories;

/// Imports torch_xla, which replaces all that is here.
void ImportTorchXla() {
  PyGILState_STATE state = PyGILState_Ensure();
  std::string why;
  if (PyObject* module = PyImport_ImportModule("torch_xla")) {
    Py_DECREF(module);
    if (factories) why = "its import is under way";
  } else {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject* text = value ? PyObject_Str(value) : nullptr;
    const char* utf8 = text ? PyUnicode_AsUTF8(text) : nullptr;
    why = utf8 ? utf8 : "no reason given";
    PyErr_Clear();
    Py_XDECREF(text);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
  }
  PyGILState_Release(state);
  TORCH_CHECK(why.empty(), "device xla needs torch_xla, which cannot be imported: ", why);
}

const c10::impl::DeviceGuardImplInterface& Guard() {
  ImportTorchXla();
  return *c10::impl::getDeviceGuardImpl(c10::DeviceType::XLA);
}

struct StandInGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::DeviceType::XLA; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return Guard().exchangeDevice(device);
  }
  c10::Device getDevice() const override { return Guard().getDevice(); }
  void setDevice(c10::Device device) const override { Guard().setDevice(device); }
  void uncheckedSetDevice(c10::Device) const noexcept override {}  // None was entered.
  c10::Stream getStream(c10::Device device) const override { return Guard().getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  // Autograd asks this of every device, in programs that have none.
  c10::DeviceIndex deviceCount() const noexcept override { return 0; }
};

void ImportAndCall(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  ImportTorchXla();
  op.callBoxed(stack);
}

PyObject* Register(PyObject*, PyObject*) {
  static const StandInGuard guard;
  if (!c10::impl::hasDeviceGuardImpl(c10::DeviceType::XLA)) {
    c10::impl::DeviceGuardImplRegistrar registrar(c10::DeviceType::XLA, &guard);
    factories = std::make_unique<torch::Library>(torch::Library::IMPL, "aten",
                                                 c10::DispatchKey::XLA, __FILE__, __LINE__);
    for (const char* name : kFactories) {
      factories->impl(name, torch::CppFunction::makeFromBoxedFunction<&ImportAndCall>());
    }
  }
  Py_RETURN_NONE;
}

PyObject* Release(PyObject*, PyObject*) {
  factories.reset();
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"register", Register, METH_NOARGS, "Puts the stand-ins where nothing is."},
    {"release", Release, METH_NOARGS, "Takes the factories away; the guard is written over."},
    {nullptr, nullptr, 0, nullptr},
};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_preload", nullptr, -1, methods};

}  // namespace

PyMODINIT_FUNC PyInit__preload() {
  PyObject* module = PyModule_Create(&definition);
  if (module) PyModule_AddStringConstant(module, "TORCH", TORCH_XLA_BUILT_WITH_TORCH);
  return module;
}
