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

/// The state of objects when this object was built. Everything that is compared is kept alive.
class ObjectGuards {
 public:
  /// In all of these, `path` names the object in messages.
  void AddDict(pybind11::dict dict, std::string path);
  /// Guards only the entries with these names; a missing entry must stay missing.
  void AddNames(pybind11::dict dict, const pybind11::iterable& names, std::string path);
  /// Guards that none of these names, which the dict does not have, is added; None: no name at all.
  void AddAbsent(pybind11::dict dict, pybind11::object names, std::string path);
  void AddClass(pybind11::handle type, std::string path);
  void AddList(pybind11::list list, std::string path);
  void AddCell(pybind11::object cell, std::string path);
  void AddAttribute(pybind11::object object, pybind11::str name, std::string path);
  /// Guards the type, and the identity of the `__dict__`, which must exist already.
  void AddInstance(pybind11::object object, std::string path);
  /// Guards a function's code, defaults and attributes.
  void AddFunction(pybind11::object function, std::string path);
  /// Guards a tensor that is not on the device: all its properties and its content. Returns the
  /// reason if it cannot be compared, else an empty text.
  std::string AddTensor(pybind11::object tensor, size_t max_bytes, std::string path);
  /// Guards the hooks of a tensor and of its gradient accumulator, and returns their dicts.
  std::vector<pybind11::object> AddHooks(pybind11::object tensor, std::string path);
  /// Guards the items of an object and their order, as its built-in `base` iterates over them.
  void AddItems(pybind11::object object, pybind11::object base, std::string path);
  /// Guards the memory, shape and format of a contiguous array.
  void AddBytes(pybind11::object buffer, std::string path);
  /// Guards the answer of a built-in function without side effects: it is called with `args` again.
  void AddQuestion(pybind11::object function, pybind11::tuple args, std::string path);

  bool Hold();
  /// Names the difference; empty if there is none.
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
    int64_t version = 0;  // class: the version at which it held last; tensor: index in
                          // host_tensors_
  };
  /// A dict whose checks (some of of_dicts_) can be skipped while it has this version.
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
  /// Groups the checks by the object that they look at.
  void Arrange();
  PyObject* Keep(const pybind11::object& object);
  /// The index of the item that differs, or `end` for another difference; -1 if there is none.
  int64_t Find(const Check& check) const;
  int64_t FindInDict(PyObject* dict, int64_t begin, int64_t end) const;

  std::vector<Check> checks_;
  std::vector<DictOfChecks> dicts_;
  std::vector<uint32_t> of_dicts_, others_;             // indices in checks_
  std::vector<std::pair<PyObject*, PyObject*>> items_;  // a key or null, and a value or null
  std::vector<pybind11::object> kept_;
  std::vector<HostTensor> host_tensors_;
  std::vector<std::string> paths_;
};

}  // namespace torch_xla::replay
