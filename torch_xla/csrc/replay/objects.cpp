#include "replay/objects.h"

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <cstring>

namespace torch_xla::replay {

namespace py = pybind11;

namespace {

PyObject*& ValueTypes() {
  static PyObject* types = nullptr;
  return types;
}

bool Equal(PyObject* a, PyObject* b) {
  const int equal = PyObject_RichCompareBool(a, b, Py_EQ);
  if (equal < 0) PyErr_Clear();
  return equal == 1;
}

}  // namespace

bool SameBuffer(PyObject* a, PyObject* b) {
  Py_buffer first, second;
  if (PyObject_GetBuffer(a, &first, PyBUF_FORMAT | PyBUF_ND) != 0) {
    PyErr_Clear();
    return false;
  }
  bool same = false;
  if (PyObject_GetBuffer(b, &second, PyBUF_FORMAT | PyBUF_ND) == 0) {
    same = first.len == second.len && first.ndim == second.ndim &&
           std::strcmp(first.format, second.format) == 0 &&
           std::equal(first.shape, first.shape + first.ndim, second.shape) &&
           std::memcmp(first.buf, second.buf, first.len) == 0;
    PyBuffer_Release(&second);
  }
  PyErr_Clear();
  PyBuffer_Release(&first);
  return same;
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

std::string NameOf(PyTypeObject* type) { return type->tp_name; }

PyObject* DictOf(PyObject* object) {
  PyObject** slot = _PyObject_GetDictPtr(object);
  return slot ? *slot : nullptr;
}

PyObject* Attributes(PyObject* object) {
  PyObject* dict = DictOf(object);
  return dict && PyDict_GET_SIZE(dict) > 0 ? dict : nullptr;
}

bool SameValue(PyObject* before, PyObject* now) {
  if (before == now) return true;
  if (!before || !now || Py_TYPE(before) != Py_TYPE(now)) return false;
  if (PyFloat_CheckExact(now)) {
    const double a = PyFloat_AS_DOUBLE(before), b = PyFloat_AS_DOUBLE(now);
    return std::memcmp(&a, &b, sizeof a) == 0;
  }
  if (PyComplex_CheckExact(now)) {
    const Py_complex a = PyComplex_AsCComplex(before), b = PyComplex_AsCComplex(now);
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
  // A bound method is made anew at each access.
  if (PyMethod_Check(now)) {
    return PyMethod_GET_SELF(before) == PyMethod_GET_SELF(now) &&
           PyMethod_GET_FUNCTION(before) == PyMethod_GET_FUNCTION(now);
  }
  if (!IsValue(now)) return false;
  // For numpy's numbers compare bytes, since 0.0 equals -0.0.
  return PyObject_CheckBuffer(now) ? SameBuffer(before, now) : Equal(before, now);
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

}  // namespace torch_xla::replay
