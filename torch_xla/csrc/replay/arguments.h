// Whether the arguments of a call are alike those of another one.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <string>
#include <utility>
#include <vector>

namespace torch_xla::replay {

/// The pattern of a call's arguments: nested tuples, lists and dicts with tensors as leaves.
class ArgumentPattern {
 public:
  ArgumentPattern(const pybind11::tuple& args, const pybind11::dict& kwargs);

  /// Appends the tensors of arguments that match the pattern; returns false if they do not match.
  bool Match(const pybind11::tuple& args, const pybind11::dict& kwargs,
             std::vector<PyObject*>& tensors) const;
  std::string Difference(const pybind11::tuple& args, const pybind11::dict& kwargs) const;

  /// For the call that the pattern was made from: the objects that must be identical, with their
  /// paths, and the reason why such calls cannot be replayed.
  const std::vector<std::pair<std::string, pybind11::object>>& others() const { return others_; }
  const std::string& refusal() const { return refusal_; }
  /// The tensors of that call, which the pattern does not keep.
  std::vector<pybind11::object> TakeTensors() { return std::move(tensors_); }
  /// The tuples, lists and dicts of that call.
  std::vector<pybind11::object> TakeContainers() { return std::move(containers_); }

 private:
  struct Part {
    enum Kind { kTensor, kTuple, kList, kDict, kValue, kObject } kind;
    PyTypeObject* type = nullptr;
    pybind11::object value;
    std::vector<pybind11::object> keys;
    std::vector<Part> parts;  // for a tensor: its attributes, if it has any
  };
  Part Make(pybind11::handle object, const std::string& path);
  static bool Match(const Part& part, PyObject* object, std::vector<PyObject*>& tensors);
  static std::string Difference(const Part& part, PyObject* object, const std::string& path);

  // These members come first, since making the parts fills them.
  std::vector<std::pair<std::string, pybind11::object>> others_;
  std::vector<pybind11::object> tensors_, containers_;
  std::string refusal_;
  Part args_, kwargs_;
};

}  // namespace torch_xla::replay
