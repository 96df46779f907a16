#include "replay/object_guards.h"

#include <torch/csrc/autograd/python_hook.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <cstring>
#include <typeinfo>
#include <unordered_map>

#include "replay/objects.h"
#include "replay/tensor_guards.h"

namespace torch_xla::replay {

namespace py = pybind11;

namespace {

/// A number that changes with every change of a dict (PEP 509); 0 if Python has none.
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

/// A number that changes with every change of a class or of its bases, or 0.
int64_t ClassVersion([[maybe_unused]] PyObject* type, PyObject* dict) {
#if PY_VERSION_HEX < 0x030D0000
  return DictVersion(dict);
#else
  return PyUnstable_Type_AssignVersionTag(reinterpret_cast<PyTypeObject*>(type))
             ? reinterpret_cast<PyTypeObject*>(type)->tp_version_tag
             : 0;
#endif
}

/// Appends the dict of a hook if the hook is a Python hook of the given class. The class is
/// compared by its mangled name, since PyTorch does not export its type information.
template <typename PyHook, typename Hook>
void AddDictOf(const char* mangled, const Hook* hook, std::vector<PyObject*>& dicts) {
  if (hook && std::strcmp(typeid(*hook).name(), mangled) == 0) {
    dicts.push_back(static_cast<const PyHook*>(hook)->dict);
  }
}

/// The dicts of a tensor's Python hooks as borrowed references. Other hooks are only compared by
/// their address.
std::vector<PyObject*> HookDicts(const at::Tensor& tensor) {
  namespace ag = torch::autograd;
  std::vector<PyObject*> dicts;
  auto* meta = ag::impl::get_autograd_meta(tensor);
  if (!meta) return dicts;
  auto add = [&](const auto& hooks) {
    for (const auto& hook : hooks) {
      AddDictOf<ag::PyFunctionTensorPreHook>("N5torch8autograd23PyFunctionTensorPreHookE",
                                             hook.get(), dicts);
      AddDictOf<ag::PyFunctionPreHook>("N5torch8autograd17PyFunctionPreHookE", hook.get(), dicts);
    }
  };
  add(meta->hooks_);
  AddDictOf<ag::PyFunctionTensorPostAccGradHooks>(
      "N5torch8autograd32PyFunctionTensorPostAccGradHooksE", meta->post_acc_grad_hooks_.get(),
      dicts);
  if (auto accumulator = meta->grad_accumulator_.lock()) {
    add(accumulator->pre_hooks());
    add(accumulator->tensor_pre_hooks());
    for (const auto& hook : accumulator->post_hooks()) {
      AddDictOf<ag::PyFunctionPostHook>("N5torch8autograd18PyFunctionPostHookE", hook.get(), dicts);
    }
  }
  return dicts;
}

}  // namespace

// ---------------------------------------------------------------- objects that a function can
// reach

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
  AddDict(std::move(dict), std::move(path));
  auto bases =
      py::reinterpret_borrow<py::object>(reinterpret_cast<PyTypeObject*>(type.ptr())->tp_mro);
  items_.emplace_back(Keep(bases), Keep(py::reinterpret_borrow<py::object>(type)));
  checks_.back().kind = Kind::kClass;
  checks_.back().end = items_.size();
}

void ObjectGuards::AddAbsent(py::dict dict, py::object names, std::string path) {
  std::vector<std::pair<py::object, py::object>> items{{names, py::object()}};
  for (auto [key, value] : dict) {
    items.emplace_back(py::reinterpret_borrow<py::object>(key), py::object());
  }
  Add(Kind::kAbsent, dict, items, std::move(path));
}

void ObjectGuards::AddFunction(py::object function, std::string path) {
  auto* one = reinterpret_cast<PyFunctionObject*>(function.ptr());
  auto keep = [](PyObject* object) { return py::reinterpret_borrow<py::object>(object); };
  Add(Kind::kFunction, function,
      {{keep(one->func_code), keep(one->func_defaults)},
       {keep(one->func_kwdefaults), keep(Attributes(function.ptr()))}},
      std::move(path));
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
  auto dict = py::reinterpret_borrow<py::object>(DictOf(object.ptr()));
  auto type =
      py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())));
  Add(Kind::kInstance, object, {{type, dict}}, std::move(path));
}

ObjectGuards::HostTensor::HostTensor(const at::Tensor& tensor)
    : impl(tensor.unsafeGetTensorImpl()),
      grad(tensor.grad().unsafeGetTensorImpl()),
      dtype(tensor.dtype()),
      keys(tensor.key_set()),
      sizes(tensor.sizes().vec()),
      strides(tensor.strides().vec()),
      hooks(HookStamp(*impl)),
      requires_grad(tensor.requires_grad()) {}

bool ObjectGuards::HostTensor::Has(const at::Tensor& tensor) const {
  const c10::TensorImpl& now = *tensor.unsafeGetTensorImpl();
  return &now == impl && now.dtype() == dtype && now.key_set() == keys &&
         now.sizes() == c10::IntArrayRef(sizes) && now.strides() == c10::IntArrayRef(strides) &&
         now.requires_grad() == requires_grad && HookStamp(now) == hooks && !HasTangent(now) &&
         tensor.grad().unsafeGetTensorImpl() == grad &&
         (!content.defined() || content.numel() == 0 ||
          std::memcmp(tensor.const_data_ptr(), content.const_data_ptr(), content.numel()) == 0);
}

std::string ObjectGuards::AddTensor(py::object tensor, size_t max_bytes, std::string path) {
  const at::Tensor& now = THPVariable_Unpack(tensor.ptr());
  const c10::TensorImpl& impl = *now.unsafeGetTensorImpl();
  if (impl.layout() != at::kStrided || !impl.has_storage() || now.is_quantized() ||
      !(now.is_cpu() || now.is_meta())) {
    return "a tensor on " + now.device().str() + " whose content no guard compares";
  }
  if (!now.is_leaf()) return "a tensor on " + now.device().str() + " that has a grad_fn";
  if (HasTangent(impl)) return "a tensor with a tangent of forward-mode autograd";
  HostTensor one(now);
  if (now.is_cpu()) {
    size_t bytes = now.numel() == 0 ? 0 : now.itemsize();
    for (int64_t i = 0; bytes > 0 && i < now.dim(); ++i) {
      bytes += now.itemsize() * now.stride(i) * (now.size(i) - 1);
    }
    if (bytes > max_bytes) {
      return "a tensor on the CPU that is too large to compare: move it to the device before";
    }
    c10::InferenceMode no_autograd;
    one.content = at::empty({static_cast<int64_t>(bytes)}, at::kByte);
    if (bytes) std::memcpy(one.content.mutable_data_ptr(), now.const_data_ptr(), bytes);
  }
  Add(Kind::kTensor, tensor, {}, std::move(path));
  checks_.back().version = static_cast<int64_t>(host_tensors_.size());
  host_tensors_.push_back(std::move(one));
  return {};
}

std::vector<py::object> ObjectGuards::AddHooks(py::object tensor, std::string path) {
  std::vector<py::object> dicts;
  std::vector<std::pair<py::object, py::object>> items;
  for (PyObject* dict : HookDicts(THPVariable_Unpack(tensor.ptr()))) {
    dicts.push_back(py::reinterpret_borrow<py::object>(dict));
    items.emplace_back(py::object(), dicts.back());
  }
  if (!items.empty()) Add(Kind::kHooks, tensor, items, std::move(path));
  return dicts;
}

void ObjectGuards::AddItems(py::object object, py::object base, std::string path) {
  std::vector<std::pair<py::object, py::object>> items{{base, py::object()}};
  auto* type = reinterpret_cast<PyTypeObject*>(base.ptr());
  auto iterator = py::reinterpret_steal<py::object>(type->tp_iter(object.ptr()));
  while (PyObject* item = PyIter_Next(iterator.ptr())) {
    items.emplace_back(py::object(), py::reinterpret_steal<py::object>(item));
  }
  if (PyErr_Occurred()) throw py::error_already_set();
  Add(Kind::kItems, object, items, std::move(path));
}

void ObjectGuards::AddBytes(py::object buffer, std::string path) {
  Add(Kind::kBytes, buffer, {{py::object(), buffer.attr("copy")()}}, std::move(path));
}

void ObjectGuards::AddQuestion(py::object function, py::tuple args, std::string path) {
  py::object answer = function(*args);
  Add(Kind::kQuestion, function, {{args, answer}}, std::move(path));
}

namespace {

/// Whether the answer to a question equals the answer before. `answer` may be null with an error
/// set.
bool IsStill(PyObject* before, PyObject* answer) {
  if (!answer) PyErr_Clear();
  const bool same = SameValue(before, answer);
  Py_XDECREF(answer);
  return same;
}

}  // namespace

/// The index of the first item whose value in the dict differs; `end` if the keys differ; or -1.
int64_t ObjectGuards::FindInDict(PyObject* dict, int64_t begin, int64_t end) const {
  if (PyDict_GET_SIZE(dict) != end - begin) return end;
  PyObject *key, *value;
  int64_t k = begin;
  for (Py_ssize_t i = 0; PyDict_Next(dict, &i, &key, &value); ++k) {
    if (k == end) return end;
    if (key != items_[k].first && !SameValue(items_[k].first, key)) return end;
    if (value != items_[k].second && !SameValue(items_[k].second, value)) return k;
  }
  return k == end ? -1 : end;
}

int64_t ObjectGuards::Find(const Check& check) const {
  const auto begin = static_cast<int64_t>(check.begin), end = static_cast<int64_t>(check.end);
  const auto* items = items_.data();
  switch (check.kind) {
    case Kind::kClass: {
      // The last item is no entry of the dict; it holds the bases and the class.
      auto* type = reinterpret_cast<PyTypeObject*>(items[end - 1].second);
      if (type->tp_mro != items[end - 1].first) return end;
      return FindInDict(check.object, begin, end - 1) < 0 ? -1 : end;
    }
    case Kind::kDict:
      return FindInDict(check.object, begin, end);
    case Kind::kAbsent: {
      PyObject *key, *value;
      int64_t k = begin + 1;
      Py_ssize_t i = 0;
      while (PyDict_Next(check.object, &i, &key, &value) && k < end && key == items[k].first) ++k;
      if (k == end && PyDict_GET_SIZE(check.object) == end - begin - 1) return -1;
      PyObject* names = items[begin].first;
      if (names == Py_None) return end;
      for (i = 0; PyDict_Next(check.object, &i, &key, &value);) {
        if (PySet_Contains(names, key) != 0) {
          PyErr_Clear();
          return end;
        }
      }
      return -1;
    }
    case Kind::kFunction: {
      auto* one = reinterpret_cast<PyFunctionObject*>(check.object);
      return one->func_code == items[begin].first && one->func_defaults == items[begin].second &&
                     one->func_kwdefaults == items[begin + 1].first &&
                     Attributes(check.object) == items[begin + 1].second
                 ? -1
                 : end;
    }
    case Kind::kHooks: {
      const std::vector<PyObject*> dicts = HookDicts(THPVariable_Unpack(check.object));
      return std::equal(dicts.begin(), dicts.end(), items + begin, items + end,
                        [](PyObject* dict, const auto& item) { return dict == item.second; })
                 ? -1
                 : end;
    }
    case Kind::kQuestion:
      return IsStill(items[begin].second, PyObject_CallObject(check.object, items[begin].first))
                 ? -1
                 : end;
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
    case Kind::kAttribute:
      return IsStill(items[begin].second, PyObject_GetAttr(check.object, items[begin].first))
                 ? -1
                 : begin;
    case Kind::kInstance:
      if (reinterpret_cast<PyObject*>(Py_TYPE(check.object)) != items[begin].first) return end;
      return DictOf(check.object) == items[begin].second ? -1 : end;
    case Kind::kTensor:
      return host_tensors_[check.version].Has(THPVariable_Unpack(check.object)) ? -1 : end;
    case Kind::kItems: {
      auto* base = reinterpret_cast<PyTypeObject*>(items[begin].first);
      PyObject* iterator = base->tp_iter(check.object);
      int64_t k = begin + 1;
      bool same = iterator != nullptr;
      while (PyObject* item = same ? PyIter_Next(iterator) : nullptr) {
        same = k < end && SameValue(items[k].second, item);
        Py_DECREF(item);
        ++k;
      }
      Py_XDECREF(iterator);
      PyErr_Clear();
      return same && k == end ? -1 : end;
    }
    case Kind::kBytes:
      return SameBuffer(items[begin].second, check.object) ? -1 : end;
  }
  return end;
}

void ObjectGuards::Arrange() {
  dicts_.clear();
  of_dicts_.clear();
  others_.clear();
  std::unordered_map<PyObject*, std::vector<uint32_t>> checks;
  std::vector<PyObject*> order;
  for (uint32_t i = 0; i < checks_.size(); ++i) {
    const Check& check = checks_[i];
    if (check.kind != Kind::kDict && check.kind != Kind::kNames && check.kind != Kind::kAbsent) {
      others_.push_back(i);
      continue;
    }
    std::vector<uint32_t>& of_dict = checks[check.object];
    if (of_dict.empty()) order.push_back(check.object);
    of_dict.push_back(i);
  }
  for (PyObject* dict : order) {
    const auto begin = static_cast<uint32_t>(of_dicts_.size());
    of_dicts_.insert(of_dicts_.end(), checks[dict].begin(), checks[dict].end());
    dicts_.push_back({dict, 0, begin, static_cast<uint32_t>(of_dicts_.size())});
  }
}

bool ObjectGuards::Hold() {
  if (others_.size() + of_dicts_.size() != checks_.size()) Arrange();
  for (DictOfChecks& one : dicts_) {
    const int64_t version = DictVersion(one.dict);
    if (version != 0 && version == one.version) continue;
    for (uint32_t i = one.begin; i < one.end; ++i) {
      if (Find(checks_[of_dicts_[i]]) >= 0) return false;
    }
    one.version = version;
  }
  for (uint32_t i : others_) {
    Check& check = checks_[i];
    int64_t version = 0;
    if (check.kind == Kind::kClass) {
      const auto& [bases, type] = items_[check.end - 1];
      if (reinterpret_cast<PyTypeObject*>(type)->tp_mro != bases) return false;
      version = ClassVersion(type, check.object);
      if (version != 0 && version == check.version) continue;
    }
    if (Find(check) >= 0) return false;
    if (version != 0) check.version = version;
  }
  return true;
}

std::string ObjectGuards::Difference() const {
  for (size_t i = 0; i < checks_.size(); ++i) {
    const Check& check = checks_[i];
    const int64_t found = Find(check);
    if (found < 0) continue;
    const std::string& path = paths_[i];
    if (check.kind == Kind::kTensor) return path + ", a tensor on the host, was written to";
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

}  // namespace torch_xla::replay
