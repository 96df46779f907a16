// What a call returns.
#pragma once

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <string>
#include <utility>
#include <vector>

#include "replay/objects.h"

namespace torch_xla::replay {

namespace py = pybind11;

/// The structure of a call's result, from which it is built again.
struct ResultPattern {
  enum Kind { kNew, kGiven, kValue, kTuple, kList, kDict, kTree } kind;
  size_t index = 0;
  py::object value;
  std::vector<py::object> keys;
  std::vector<ResultPattern> parts;

  static ResultPattern Of(const py::tuple& described) {
    const auto name = described[0].cast<std::string>();
    ResultPattern part{name == "new"     ? kNew
                       : name == "given" ? kGiven
                       : name == "value" ? kValue
                       : name == "tuple" ? kTuple
                       : name == "list"  ? kList
                       : name == "dict"  ? kDict
                                         : kTree};
    if (part.kind == kNew || part.kind == kGiven) {
      part.index = described[1].cast<size_t>();
    } else if (part.kind == kValue) {
      part.value = described[1];
    } else {
      for (py::handle one : described[1].cast<py::list>()) {
        part.parts.push_back(Of(py::reinterpret_borrow<py::tuple>(one)));
      }
      if (part.kind == kDict) part.keys = described[2].cast<std::vector<py::object>>();
      if (part.kind == kTree) part.value = described[2];
    }
    return part;
  }

  bool SameAs(const ResultPattern& other) const {
    if (kind != other.kind || index != other.index || parts.size() != other.parts.size() ||
        keys.size() != other.keys.size()) {
      return false;
    }
    if (kind == kTree ? !value.equal(other.value) : !SameValue(value.ptr(), other.value.ptr())) {
      return false;
    }
    for (size_t i = 0; i < keys.size(); ++i) {
      if (!SameValue(keys[i].ptr(), other.keys[i].ptr())) return false;
    }
    for (size_t i = 0; i < parts.size(); ++i) {
      if (!parts[i].SameAs(other.parts[i])) return false;
    }
    return true;
  }

  py::object Build(std::vector<at::Tensor>& made, const std::vector<PyObject*>& given,
                   std::vector<py::object>& cache) const {
    switch (kind) {
      case kNew:
        if (!cache[index]) cache[index] = py::cast(std::move(made[index]));
        return cache[index];
      case kGiven:
        return py::reinterpret_borrow<py::object>(given[index]);
      case kValue:
        return value;
      case kTuple: {
        py::tuple result(parts.size());
        for (size_t i = 0; i < parts.size(); ++i) result[i] = parts[i].Build(made, given, cache);
        return result;
      }
      case kList:
      case kTree: {
        py::list result(parts.size());
        for (size_t i = 0; i < parts.size(); ++i) result[i] = parts[i].Build(made, given, cache);
        return kind == kList ? py::object(result) : value(result);
      }
      case kDict: {
        py::dict result;
        for (size_t i = 0; i < parts.size(); ++i) {
          result[keys[i]] = parts[i].Build(made, given, cache);
        }
        return result;
      }
    }
    return py::none();
  }
};

}  // namespace torch_xla::replay
