// Python objects that replay compares.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <string>

namespace torch_xla::replay {

/// Whether an object is a value of a type whose equal objects are the same: a number, a text, None,
/// or of the types that were set.
bool IsValue(PyObject* object);
/// More types whose equal objects are the same.
void SetValueTypes(const pybind11::tuple& types);
/// Whether two objects are one, or equal values of one type that never change: numbers, texts,
/// and tuples of these.
bool SameValue(PyObject* before, PyObject* now);

/// A short repr, for people.
std::string Text(PyObject* object);
std::string NameOf(PyTypeObject* type);

/// The `__dict__` of an object, borrowed; null where it has none.
PyObject* DictOf(PyObject* object);
/// The same where there are attributes in it.
PyObject* Attributes(PyObject* object);

}  // namespace torch_xla::replay
