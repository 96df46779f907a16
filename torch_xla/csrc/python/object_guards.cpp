#include "python/object_guards.h"

#include <torch/csrc/autograd/python_variable.h>

#include <cstring>

namespace torch_xla::python {

namespace py = pybind11;

namespace {

PyObject*& ValueTypes() {
  static PyObject* types = nullptr;
  return types;
}

bool IsValue(PyObject* object) {
  if (object == Py_None || PyFloat_CheckExact(object) || PyLong_CheckExact(object) ||
      PyUnicode_CheckExact(object) || PyBytes_CheckExact(object) || PyBool_Check(object) ||
      PyComplex_CheckExact(object)) {
    return true;
  }
  PyObject* types = ValueTypes();
  return types && PySequence_Contains(types, reinterpret_cast<PyObject*>(Py_TYPE(object))) == 1;
}

bool Equal(PyObject* a, PyObject* b) {
  const int equal = PyObject_RichCompareBool(a, b, Py_EQ);
  if (equal < 0) PyErr_Clear();
  return equal == 1;
}

/// A number that every change of a dict makes another (PEP 509); 0 where Python has none.
int64_t DictVersion([[maybe_unused]] PyObject* dict) {
#if PY_VERSION_HEX < 0x030D0000
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  return static_cast<int64_t>(reinterpret_cast<PyDictObject*>(dict)->ma_version_tag);
#pragma GCC diagnostic pop
#else
  return 0;
#endif
}

std::string NameOf(PyTypeObject* type) { return type->tp_name; }

}  // namespace

bool SameValue(PyObject* before, PyObject* now) {
  if (before == now) return true;
  if (!before || !now || Py_TYPE(before) != Py_TYPE(now)) return false;
  if (PyFloat_CheckExact(now)) {
    const double a = PyFloat_AS_DOUBLE(before), b = PyFloat_AS_DOUBLE(now);
    return std::memcmp(&a, &b, sizeof a) == 0;
  }
  if (PyTuple_CheckExact(now)) {
    const Py_ssize_t size = PyTuple_GET_SIZE(now);
    if (PyTuple_GET_SIZE(before) != size) return false;
    for (Py_ssize_t i = 0; i < size; ++i) {
      if (!SameValue(PyTuple_GET_ITEM(before, i), PyTuple_GET_ITEM(now, i))) return false;
    }
    return true;
  }
  // A bound method is made anew whenever it is asked for.
  if (PyMethod_Check(now)) {
    return PyMethod_GET_SELF(before) == PyMethod_GET_SELF(now) &&
           PyMethod_GET_FUNCTION(before) == PyMethod_GET_FUNCTION(now);
  }
  return IsValue(now) && Equal(before, now);
}

void SetValueTypes(const py::tuple& types) {
  Py_XDECREF(ValueTypes());
  ValueTypes() = py::tuple(types).release().ptr();
}

std::string Text(PyObject* object) {
  if (!object) return "missing";
  if (THPVariable_Check(object)) return "a tensor";
  if (!IsValue(object) && !PyTuple_CheckExact(object)) {
    return "an object of type " + NameOf(Py_TYPE(object));
  }
  PyObject* text = PyObject_Repr(object);
  const char* utf8 = text ? PyUnicode_AsUTF8(text) : nullptr;
  std::string result = utf8 ? utf8 : "?";
  PyErr_Clear();
  Py_XDECREF(text);
  if (result.size() > 80) result = result.substr(0, 77) + "...";
  return result;
}

// ---------------------------------------------------------------- what a function can reach

PyObject* ObjectGuards::Keep(const py::object& object) {
  if (object) kept_.push_back(object);
  return object.ptr();
}

void ObjectGuards::Add(Kind kind, const py::object& object,
                       const std::vector<std::pair<py::object, py::object>>& items,
                       std::string path) {
  Check check{kind, Keep(object), items_.size(), 0};
  for (const auto& [key, value] : items) items_.emplace_back(Keep(key), Keep(value));
  check.end = items_.size();
  checks_.push_back(check);
  paths_.push_back(std::move(path));
}

void ObjectGuards::AddDict(py::dict dict, std::string path) {
  std::vector<std::pair<py::object, py::object>> items;
  PyObject *key, *value;
  for (Py_ssize_t i = 0; PyDict_Next(dict.ptr(), &i, &key, &value);) {
    items.emplace_back(py::reinterpret_borrow<py::object>(key),
                       py::reinterpret_borrow<py::object>(value));
  }
  Add(Kind::kDict, dict, items, std::move(path));
}

void ObjectGuards::AddNames(py::dict dict, const py::iterable& names, std::string path) {
  std::vector<std::pair<py::object, py::object>> items;
  for (py::handle name : names) {
    items.emplace_back(
        py::reinterpret_borrow<py::object>(name),
        py::reinterpret_borrow<py::object>(PyDict_GetItemWithError(dict.ptr(), name.ptr())));
  }
  Add(Kind::kNames, dict, items, std::move(path));
}

void ObjectGuards::AddClass(py::handle type, std::string path) {
#if PY_VERSION_HEX >= 0x030C0000
  auto dict =
      py::reinterpret_steal<py::dict>(PyType_GetDict(reinterpret_cast<PyTypeObject*>(type.ptr())));
#else
  auto dict =
      py::reinterpret_borrow<py::dict>(reinterpret_cast<PyTypeObject*>(type.ptr())->tp_dict);
#endif
  Keep(py::reinterpret_borrow<py::object>(type));
  AddDict(std::move(dict), std::move(path));
}

void ObjectGuards::AddList(py::list list, std::string path) {
  std::vector<std::pair<py::object, py::object>> items;
  for (py::handle item : list) {
    items.emplace_back(py::object(), py::reinterpret_borrow<py::object>(item));
  }
  Add(Kind::kList, list, items, std::move(path));
}

void ObjectGuards::AddCell(py::object cell, std::string path) {
  auto content = py::reinterpret_borrow<py::object>(PyCell_GET(cell.ptr()));
  Add(Kind::kCell, cell, {{py::object(), content}}, std::move(path));
}

void ObjectGuards::AddAttribute(py::object object, py::str name, std::string path) {
  auto value = py::reinterpret_steal<py::object>(PyObject_GetAttr(object.ptr(), name.ptr()));
  PyErr_Clear();
  Add(Kind::kAttribute, object, {{name, value}}, std::move(path));
}

void ObjectGuards::AddInstance(py::object object, std::string path) {
  auto dict = py::reinterpret_steal<py::object>(PyObject_GenericGetDict(object.ptr(), nullptr));
  PyErr_Clear();
  auto type =
      py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())));
  Add(Kind::kInstance, object, {{type, dict}}, std::move(path));
}

void ObjectGuards::AddTensor(py::object tensor, std::string path) {
  Add(Kind::kTensor, tensor, {}, std::move(path));
  const at::Tensor& content = THPVariable_Unpack(tensor.ptr());
  checks_.back().version = content._version();
  checks_.back().data = content.unsafeGetTensorImpl();
}

void ObjectGuards::AddEqual(py::object object, py::object copy, std::string path) {
  Add(Kind::kEqual, object, {{py::object(), copy}}, std::move(path));
}

void ObjectGuards::AddBytes(py::object buffer, py::bytes content, std::string path) {
  Add(Kind::kBytes, buffer, {{py::object(), content}}, std::move(path));
}

int64_t ObjectGuards::Find(const Check& check) const {
  const auto begin = static_cast<int64_t>(check.begin), end = static_cast<int64_t>(check.end);
  const auto* items = items_.data();
  switch (check.kind) {
    case Kind::kDict: {
      if (PyDict_GET_SIZE(check.object) != end - begin) return end;
      PyObject *key, *value;
      int64_t k = begin;
      for (Py_ssize_t i = 0; PyDict_Next(check.object, &i, &key, &value); ++k) {
        if (k == end) return end;
        if (key != items[k].first && !SameValue(items[k].first, key)) return end;
        if (value != items[k].second && !SameValue(items[k].second, value)) return k;
      }
      return k == end ? -1 : end;
    }
    case Kind::kNames:
      for (int64_t k = begin; k < end; ++k) {
        PyObject* now = PyDict_GetItemWithError(check.object, items[k].first);
        if (now != items[k].second && !SameValue(items[k].second, now)) return k;
      }
      return -1;
    case Kind::kList:
      if (PyList_GET_SIZE(check.object) != end - begin) return end;
      for (int64_t k = begin; k < end; ++k) {
        PyObject* now = PyList_GET_ITEM(check.object, k - begin);
        if (now != items[k].second && !SameValue(items[k].second, now)) return k;
      }
      return -1;
    case Kind::kCell:
      return SameValue(items[begin].second, PyCell_GET(check.object)) ? -1 : begin;
    case Kind::kAttribute: {
      PyObject* now = PyObject_GetAttr(check.object, items[begin].first);
      if (!now) PyErr_Clear();
      const bool same = SameValue(items[begin].second, now);
      Py_XDECREF(now);
      return same ? -1 : begin;
    }
    case Kind::kInstance: {
      if (reinterpret_cast<PyObject*>(Py_TYPE(check.object)) != items[begin].first) return end;
      PyObject* dict = PyObject_GenericGetDict(check.object, nullptr);
      if (!dict) PyErr_Clear();
      Py_XDECREF(dict);
      return dict == items[begin].second ? -1 : end;
    }
    case Kind::kTensor: {
      const at::Tensor& tensor = THPVariable_Unpack(check.object);
      return tensor.unsafeGetTensorImpl() == check.data && tensor._version() == check.version ? -1
                                                                                              : end;
    }
    case Kind::kEqual:
      return Equal(check.object, items[begin].second) ? -1 : end;
    case Kind::kBytes: {
      Py_buffer now;
      if (PyObject_GetBuffer(check.object, &now, PyBUF_SIMPLE) != 0) {
        PyErr_Clear();
        return end;
      }
      const bool same = now.len == PyBytes_GET_SIZE(items[begin].second) &&
                        std::memcmp(now.buf, PyBytes_AS_STRING(items[begin].second), now.len) == 0;
      PyBuffer_Release(&now);
      return same ? -1 : end;
    }
  }
  return end;
}

bool ObjectGuards::Hold() {
  for (Check& check : checks_) {
    const bool is_dict = check.kind == Kind::kDict || check.kind == Kind::kNames;
    const int64_t version = is_dict ? DictVersion(check.object) : 0;
    if (version != 0 && version == check.version) continue;
    if (Find(check) >= 0) return false;
    if (is_dict) check.version = version;
  }
  return true;
}

std::string ObjectGuards::Difference() const {
  for (size_t i = 0; i < checks_.size(); ++i) {
    const Check& check = checks_[i];
    const int64_t found = Find(check);
    if (found < 0) continue;
    const std::string& path = paths_[i];
    if (check.kind == Kind::kTensor) return path + ", a tensor on the CPU, was written to";
    if (found == static_cast<int64_t>(check.end)) return path + " has other entries than before";
    const auto& [key, value] = items_[found];
    PyObject* now = nullptr;
    if (check.kind == Kind::kCell) {
      now = PyCell_GET(check.object);
    } else if (check.kind == Kind::kList) {
      now = PyList_GET_ITEM(check.object, found - static_cast<int64_t>(check.begin));
    } else if (check.kind == Kind::kDict || check.kind == Kind::kNames) {
      now = PyDict_GetItemWithError(check.object, key);
    }
    std::string name = path;
    if (key) name += "[" + Text(key) + "]";
    if (check.kind == Kind::kList) {
      name += "[" + std::to_string(found - static_cast<int64_t>(check.begin)) + "]";
    }
    if (check.kind == Kind::kAttribute) return name + " is another object than before";
    std::string before = Text(value), after = Text(now);
    if (before == after) return name + " is another object than before";
    return name + " is " + after + " and was " + before;
  }
  return {};
}

// ---------------------------------------------------------------- arguments

ArgumentPattern::ArgumentPattern(const py::tuple& args, const py::dict& kwargs)
    : args_(Make(args, "args")), kwargs_(Make(kwargs, "kwargs")) {}

ArgumentPattern::Part ArgumentPattern::Make(py::handle object, const std::string& path) {
  PyObject* pointer = object.ptr();
  Part part{Part::kObject, Py_TYPE(pointer)};
  if (THPVariable_Check(pointer)) {
    part.kind = Part::kTensor;
    if (!THPVariable_CheckExact(pointer) && NameOf(part.type) != "Parameter") {
      refusal_ = path + " is a tensor subclass, " + NameOf(part.type);
    } else if (THPVariable_Unpack(pointer).device().type() != c10::DeviceType::XLA) {
      refusal_ = path + " is a tensor on " + THPVariable_Unpack(pointer).device().str() +
                 ", whose content is looked at by no guard: move it to the device first";
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
    case Part::kTensor:
      tensors.push_back(object);
      return true;
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

}  // namespace torch_xla::python
