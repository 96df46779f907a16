#include "replay/arguments.h"

#include <torch/csrc/autograd/python_variable.h>

#include "replay/objects.h"
#include "replay/tensor_guards.h"

namespace torch_xla::replay {

namespace py = pybind11;

namespace {

PyObject* ParameterClass() {
  static PyObject* type =
      py::object(py::module_::import("torch.nn.parameter").attr("Parameter")).release().ptr();
  return type;
}

}  // namespace

ArgumentPattern::ArgumentPattern(const py::tuple& args, const py::dict& kwargs)
    : args_(Make(args, "args")), kwargs_(Make(kwargs, "kwargs")) {}

ArgumentPattern::Part ArgumentPattern::Make(py::handle object, const std::string& path) {
  PyObject* pointer = object.ptr();
  Part part{Part::kObject, Py_TYPE(pointer)};
  if (PyTuple_CheckExact(pointer) || PyList_CheckExact(pointer) || PyDict_CheckExact(pointer)) {
    if (PyObject_Size(pointer) > 0) {
      containers_.push_back(py::reinterpret_borrow<py::object>(object));
    }
  }
  if (THPVariable_Check(pointer)) {
    part.kind = Part::kTensor;
    if (!THPVariable_CheckExact(pointer) &&
        reinterpret_cast<PyObject*>(part.type) != ParameterClass()) {
      refusal_ = path + " is a tensor subclass, " + NameOf(part.type);
    } else if (THPVariable_Unpack(pointer).device().type() != c10::DeviceType::XLA) {
      refusal_ = path + " is a tensor on " + THPVariable_Unpack(pointer).device().str() +
                 ", whose content is looked at by no guard: move it to the device first";
    } else if (HookStamp(*THPVariable_Unpack(pointer).unsafeGetTensorImpl()) != 0) {
      refusal_ = path + " is a tensor with hooks of autograd";
    }
    if (PyObject* attributes = Attributes(pointer)) {
      const auto place = static_cast<std::ptrdiff_t>(containers_.size());
      part.parts.push_back(Make(attributes, "the attributes of " + path));
      containers_.erase(containers_.begin() + place);  // the dict itself
    }
    tensors_.push_back(py::reinterpret_borrow<py::object>(object));
  } else if (PyTuple_CheckExact(pointer) || PyList_CheckExact(pointer)) {
    part.kind = PyTuple_CheckExact(pointer) ? Part::kTuple : Part::kList;
    size_t i = 0;
    for (py::handle item : py::reinterpret_borrow<py::sequence>(object)) {
      part.parts.push_back(Make(item, path + "[" + std::to_string(i++) + "]"));
    }
  } else if (PyDict_CheckExact(pointer)) {
    part.kind = Part::kDict;
    PyObject *key, *value;
    for (Py_ssize_t i = 0; PyDict_Next(pointer, &i, &key, &value);) {
      part.keys.push_back(py::reinterpret_borrow<py::object>(key));
      part.parts.push_back(Make(value, path + "[" + Text(key) + "]"));
    }
  } else {
    part.kind = IsValue(pointer) ? Part::kValue : Part::kObject;
    part.value = py::reinterpret_borrow<py::object>(object);
    if (part.kind == Part::kObject) others_.emplace_back(path, part.value);
  }
  return part;
}

bool ArgumentPattern::Match(const py::tuple& args, const py::dict& kwargs,
                            std::vector<PyObject*>& tensors) const {
  return Match(args_, args.ptr(), tensors) && Match(kwargs_, kwargs.ptr(), tensors);
}

bool ArgumentPattern::Match(const Part& part, PyObject* object, std::vector<PyObject*>& tensors) {
  if (Py_TYPE(object) != part.type) return false;
  switch (part.kind) {
    case Part::kTensor: {
      PyObject* attributes = Attributes(object);
      if (!attributes != part.parts.empty()) return false;
      if (attributes && !Match(part.parts[0], attributes, tensors)) return false;
      tensors.push_back(object);
      return true;
    }
    case Part::kTuple:
    case Part::kList: {
      if (PySequence_Fast_GET_SIZE(object) != static_cast<Py_ssize_t>(part.parts.size())) {
        return false;
      }
      PyObject** items = PySequence_Fast_ITEMS(object);
      for (size_t i = 0; i < part.parts.size(); ++i) {
        if (!Match(part.parts[i], items[i], tensors)) return false;
      }
      return true;
    }
    case Part::kDict: {
      if (PyDict_GET_SIZE(object) != static_cast<Py_ssize_t>(part.parts.size())) return false;
      PyObject *key, *value;
      size_t k = 0;
      for (Py_ssize_t i = 0; PyDict_Next(object, &i, &key, &value); ++k) {
        if (!SameValue(part.keys[k].ptr(), key) || !Match(part.parts[k], value, tensors)) {
          return false;
        }
      }
      return true;
    }
    case Part::kValue:
    case Part::kObject:
      return SameValue(part.value.ptr(), object);
  }
  return false;
}

std::string ArgumentPattern::Difference(const py::tuple& args, const py::dict& kwargs) const {
  const std::string found = Difference(args_, args.ptr(), "args");
  return found.empty() ? Difference(kwargs_, kwargs.ptr(), "kwargs") : found;
}

std::string ArgumentPattern::Difference(const Part& part, PyObject* object,
                                        const std::string& path) {
  std::vector<PyObject*> tensors;
  if (Match(part, object, tensors)) return {};
  if (Py_TYPE(object) != part.type) {
    return path + " is of type " + NameOf(Py_TYPE(object)) + " and was of type " +
           NameOf(part.type);
  }
  if (part.kind == Part::kTuple || part.kind == Part::kList) {
    const auto size = static_cast<size_t>(PySequence_Fast_GET_SIZE(object));
    for (size_t i = 0; i < std::min(size, part.parts.size()); ++i) {
      const std::string found = Difference(part.parts[i], PySequence_Fast_ITEMS(object)[i],
                                           path + "[" + std::to_string(i) + "]");
      if (!found.empty()) return found;
    }
  } else if (part.kind == Part::kTensor) {
    return path + " has other attributes than before";
  } else if (part.kind == Part::kDict) {
    for (size_t i = 0; i < part.keys.size(); ++i) {
      PyObject* value = PyDict_GetItemWithError(object, part.keys[i].ptr());
      if (!value) break;
      const std::string found =
          Difference(part.parts[i], value, path + "[" + Text(part.keys[i].ptr()) + "]");
      if (!found.empty()) return found;
    }
  } else {
    const std::string before = Text(part.value.ptr()), now = Text(object);
    return before == now ? path + " is another object than before"
                         : path + " is " + now + " and was " + before;
  }
  return path + " has other entries than before";
}

}  // namespace torch_xla::replay
