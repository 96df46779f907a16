// What a call takes from optimizers on the host.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <utility>
#include <vector>

namespace torch_xla::replay {

namespace py = pybind11;

/// The values that a call may take from optimizers: entries of their groups, which are floats or
/// pairs of floats, and counters, which are CPU tensors with one element. Counters are grouped into
/// classes of equal counters.
class OptimizerNumbers {
 public:
  /// `entries`: for each group its dict and its keys. `advances`: how often a call increments each
  /// class.
  OptimizerNumbers(std::vector<std::pair<py::dict, std::vector<py::str>>> entries,
                   std::vector<std::vector<at::Tensor>> counters, std::vector<int> advances)
      : entries_(std::move(entries)),
        counters_(std::move(counters)),
        advances_(std::move(advances)) {}

  /// Appends the numbers of the entries. Returns false if an entry has another type.
  bool ReadEntries(std::vector<double>& found) const {
    for (const auto& [group, keys] : entries_) {
      for (const py::str& key : keys) {
        PyObject* value = PyDict_GetItemWithError(group.ptr(), key.ptr());
        const bool pair = value && PyTuple_CheckExact(value) && PyTuple_GET_SIZE(value) == 2;
        for (int i = 0; i < 1 + pair; ++i) {
          PyObject* number = pair ? PyTuple_GET_ITEM(value, i) : value;
          if (!number || !PyFloat_CheckExact(number)) return false;
          found.push_back(PyFloat_AS_DOUBLE(number));
        }
      }
    }
    return true;
  }

  /// Appends the value of each class. Returns false if the counters of a class differ, or if a
  /// counter is no longer a float or double tensor with one element on the CPU.
  bool ReadCounters(std::vector<double>& found) const {
    for (const auto& counters : counters_) {
      std::optional<double> value;
      for (const at::Tensor& counter : counters) {
        if (!counter.device().is_cpu() || counter.numel() != 1) return false;
        double now = 0;
        if (counter.scalar_type() == at::kFloat) {
          now = *counter.const_data_ptr<float>();
        } else if (counter.scalar_type() == at::kDouble) {
          now = *counter.const_data_ptr<double>();
        } else {
          return false;
        }
        if (now != value.value_or(now)) return false;
        value = now;
      }
      found.push_back(value.value());
    }
    return true;
  }

  /// Increments the counters, which must be as ReadCounters() saw them.
  void Advance() const {
    for (size_t i = 0; i < counters_.size(); ++i) {
      if (advances_.at(i) == 0) continue;
      for (const at::Tensor& counter : counters_[i]) {
        for (int k = 0; k < advances_[i]; ++k) {
          if (counter.scalar_type() == at::kFloat) {
            *counter.mutable_data_ptr<float>() += 1;
          } else {
            *counter.mutable_data_ptr<double>() += 1;
          }
        }
        counter.unsafeGetTensorImpl()->bump_version();
      }
    }
  }

 private:
  std::vector<std::pair<py::dict, std::vector<py::str>>> entries_;
  std::vector<std::vector<at::Tensor>> counters_;
  std::vector<int> advances_;
};

}  // namespace torch_xla::replay
