// Whether the arguments of a call are alike those of another one.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <string>
#include <utility>
#include <vector>

namespace torch_xla::replay {

/// The arguments of a call: nested tuples, lists and dicts, with tensors at their leaves.
class ArgumentPattern {
 public:
  ArgumentPattern(const pybind11::tuple& args, const pybind11::dict& kwargs);

  /// The tensors of arguments that are alike; false where they are not.
  bool Match(const pybind11::tuple& args, const pybind11::dict& kwargs,
             std::vector<PyObject*>& tensors) const;
  std::string Difference(const pybind11::tuple& args, const pybind11::dict& kwargs) const;

  /// Of the call that it was made of: what has to be the very same object, with its path, and why
  /// such calls cannot be replayed.
  const std::vector<std::pair<std::string, pybind11::object>>& others() const { return others_; }
  const std::string& refusal() const { return refusal_; }
  /// Of that call; the pattern does not keep them.
  std::vector<pybind11::object> TakeTensors() { return std::move(tensors_); }
  /// Its tuples, lists and dicts.
  std::vector<pybind11::object> TakeContainers() { return std::move(containers_); }

 private:
  struct Part {
    enum Kind { kTensor, kTuple, kList, kDict, kValue, kObject } kind;
    PyTypeObject* type = nullptr;
    pybind11::object value;
    std::vector<pybind11::object> keys;
    std::vector<Part> parts;  // of a tensor: of its attributes, if it has any
  };
  Part Make(pybind11::handle object, const std::string& path);
  static bool Match(const Part& part, PyObject* object, std::vector<PyObject*>& tensors);
  static std::string Difference(const Part& part, PyObject* object, const std::string& path);

  // What making the parts fills comes before them.
  std::vector<std::pair<std::string, pybind11::object>> others_;
  std::vector<pybind11::object> tensors_, containers_;
  std::string refusal_;
  Part args_, kwargs_;
};

}  // namespace torch_xla::replay
