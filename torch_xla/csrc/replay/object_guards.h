// Whether the Python objects that a function can reach are as they were. Identity stands for
// equality wherever it can: a container that was not changed holds the same objects, and is
// compared pointer by pointer.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/utils/pybind.h>

#include <string>
#include <utility>
#include <vector>

namespace torch_xla::replay {

/// Objects as they were when it was built. All that is compared is kept alive.
class ObjectGuards {
 public:
  /// `path` names the object for people in all of these.
  void AddDict(pybind11::dict dict, std::string path);
  /// Of a dict the entries of these names alone; what is missing has to stay so.
  void AddNames(pybind11::dict dict, const pybind11::iterable& names, std::string path);
  /// Of a dict that none of these names, which it does not have, comes to it; None: no name at all.
  void AddAbsent(pybind11::dict dict, pybind11::object names, std::string path);
  void AddClass(pybind11::handle type, std::string path);
  void AddList(pybind11::list list, std::string path);
  void AddCell(pybind11::object cell, std::string path);
  void AddAttribute(pybind11::object object, pybind11::str name, std::string path);
  /// Its type, and which dict is its `__dict__`, which has to be there already.
  void AddInstance(pybind11::object object, std::string path);
  /// A function's code, defaults and attributes.
  void AddFunction(pybind11::object function, std::string path);
  /// A tensor that is not on the device: all that it is, and its content. Returns why it cannot be
  /// compared, where it cannot.
  std::string AddTensor(pybind11::object tensor, size_t max_bytes, std::string path);
  /// The dicts of hooks that a tensor and its accumulator of gradients have, which it returns.
  std::vector<pybind11::object> AddHooks(pybind11::object tensor, std::string path);
  /// What an object holds in its order, as its built-in `base` iterates.
  void AddItems(pybind11::object object, pybind11::object base, std::string path);
  /// An array in one piece whose memory, shape and format are compared.
  void AddBytes(pybind11::object buffer, std::string path);
  /// A built-in function that changes nothing: it is called with `args`, and gives the same again.
  void AddQuestion(pybind11::object function, pybind11::tuple args, std::string path);

  bool Hold();
  /// What differs; empty: nothing.
  std::string Difference() const;

 private:
  enum class Kind : uint8_t {
    kDict,
    kClass,
    kNames,
    kAbsent,
    kList,
    kCell,
    kAttribute,
    kInstance,
    kFunction,
    kTensor,
    kHooks,
    kItems,
    kBytes,
    kQuestion
  };
  struct Check {
    Kind kind;
    PyObject* object;
    size_t begin, end;    // of items_
    int64_t version = 0;  // of a class, where it held last; of a tensor: which of host_tensors_
  };
  /// A dict whose checks, some of of_dicts_, need not be made while its version is this one.
  struct DictOfChecks {
    PyObject* dict;
    int64_t version;
    uint32_t begin, end;
  };
  struct HostTensor {
    explicit HostTensor(const at::Tensor& tensor);
    bool Has(const at::Tensor& tensor) const;

    at::Tensor content;  // a copy of its memory, from the first element to the last
    const c10::TensorImpl* impl;
    const c10::TensorImpl* grad;
    caffe2::TypeMeta dtype;
    c10::DispatchKeySet keys;
    std::vector<int64_t> sizes, strides;
    size_t hooks;
    bool requires_grad;
  };
  void Add(Kind kind, const pybind11::object& object,
           const std::vector<std::pair<pybind11::object, pybind11::object>>& items,
           std::string path);
  /// Sorts the checks by what they look at.
  void Arrange();
  PyObject* Keep(const pybind11::object& object);
  /// The item that differs, or end; -1: nothing does.
  int64_t Find(const Check& check) const;
  int64_t FindInDict(PyObject* dict, int64_t begin, int64_t end) const;

  std::vector<Check> checks_;
  std::vector<DictOfChecks> dicts_;
  std::vector<uint32_t> of_dicts_, others_;             // places among checks_
  std::vector<std::pair<PyObject*, PyObject*>> items_;  // a key or null, and a value or null
  std::vector<pybind11::object> kept_;
  std::vector<HostTensor> host_tensors_;
  std::vector<std::string> paths_;
};

}  // namespace torch_xla::replay
