// Python objects that replay compares.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <string>

namespace torch_xla::replay {

/// Whether an object is a value of a type whose equal objects are the same: a number, a text, None,
/// or of the types that were set.
bool IsValue(PyObject* object);
/// Sets further types for which equal objects count as the same.
void SetValueTypes(const pybind11::tuple& types);
/// Whether two objects are identical, or equal values of one immutable type: numbers, texts, and
/// tuples of these.
bool SameValue(PyObject* before, PyObject* now);
/// Whether two buffers have the same shape, format and bytes; false if one is no buffer.
bool SameBuffer(PyObject* a, PyObject* b);

/// A short repr for messages.
std::string Text(PyObject* object);
std::string NameOf(PyTypeObject* type);

/// The `__dict__` of an object as a borrowed reference; null if it has none.
PyObject* DictOf(PyObject* object);
/// The same, but null for an empty dict.
PyObject* Attributes(PyObject* object);

}  // namespace torch_xla::replay
