// A call that was traced, with all that says when it can be replayed.
#pragma once

#include <torch/csrc/autograd/python_variable.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "aten/bridge.h"
#include "exec/executor.h"
#include "exec/may_cut.h"
#include "replay/arguments.h"
#include "replay/object_guards.h"
#include "replay/optimizer_numbers.h"
#include "replay/plan.h"
#include "replay/result_pattern.h"
#include "replay/surroundings.h"

namespace torch_xla::replay {

/// Releases the GIL, since a thread that traces a collective may wait for the GIL while it holds
/// the token.
inline at::Tensor CollectiveToken(int device) {
  py::gil_scoped_release no_gil;
  return aten::CollectiveTokenTensor(device);
}

/// A traced call, with everything that decides whether it can be replayed.
class Recording {
 public:
  Recording(std::shared_ptr<Surroundings> surroundings, std::shared_ptr<ObjectGuards> objects,
            std::shared_ptr<ArgumentPattern> arguments, std::vector<py::object> state, PlanPtr plan,
            size_t num_results, const py::tuple& result)
      : surroundings_(std::move(surroundings)),
        objects_(std::move(objects)),
        arguments_(std::move(arguments)),
        state_(std::move(state)),
        plan_(std::move(plan)),
        num_results_(num_results),
        result_(ResultPattern::Of(result)) {
    for (const py::object& object : state_) given_.push_back(object.ptr());
  }

  /// Returns the result of the call, or nothing if a guard does not hold.
  std::optional<py::object> Replay(const py::tuple& args, const py::dict& kwargs) {
    std::vector<PyObject*> given = given_;
    if (!ObjectsHold(args, kwargs, given)) return std::nullopt;
    if (numbers_ && !FillNumbers()) return std::nullopt;
    std::vector<at::Tensor> made;
    {
      py::gil_scoped_release no_gil;
      const Tensors tensors(given, aten::CollectiveTokenTensor(surroundings_->device));
      exec::SyncDevice(surroundings_->device, /*wait=*/false);
      const TensorTable table(tensors.list);
      size_t entry;
      if (plan_->Misfit(table, &entry) ||
          !plan_->Run(table, numbers_ ? floats_ : plan_->floats(), made)) {
        return std::nullopt;
      }
    }
    if (numbers_) numbers_->Advance();
    for (const py::object& scheduler : schedulers_) scheduler.attr("step")();
    std::vector<py::object> cache(num_results_);
    return result_.Build(made, given, cache);
  }

  /// Whether the arguments match, including the sizes of their tensors.
  bool Takes(const py::tuple& args, const py::dict& kwargs) const {
    std::vector<PyObject*> given = given_;
    return ArgumentsMatch(args, kwargs, given);
  }

  bool Holds(const py::tuple& args, const py::dict& kwargs) const {
    std::vector<PyObject*> given = given_;
    if (!ObjectsHold(args, kwargs, given)) return false;
    const Tensors tensors(given, CollectiveToken(surroundings_->device));
    size_t entry;
    return !plan_->Misfit(TensorTable(tensors.list), &entry);
  }

  std::string Difference(const py::tuple& args, const py::dict& kwargs) const {
    if (const char* what = Surroundings::Now().Difference(*surroundings_)) {
      return std::string(what) + " changed";
    }
    std::string text = objects_->Difference();
    if (text.empty()) text = arguments_->Difference(args, kwargs);
    std::vector<PyObject*> given = given_;
    if (!text.empty() || !arguments_->Match(args, kwargs, given)) return text;
    const Tensors tensors(given, CollectiveToken(surroundings_->device));
    const TensorTable table(tensors.list);
    size_t entry;
    const char* what = plan_->Misfit(table, &entry);
    if (!what) return {};
    text = "of tensors that it reads there changed ";
    text += what;
    if (entry < table.num_given) {
      text += entry < state_.size()
                  ? " (one of its state, shape "
                  : " (argument tensor " + std::to_string(entry - state_.size()) + ", shape ";
      text += table.entries[entry].impl->root()->shape()->ToString() + ")";
    }
    return text;
  }

  /// Names the difference to another recording with the same guards; empty if there is none.
  std::string Compare(const Recording& other, bool donation,
                      const std::unordered_set<size_t>& explained) const {
    std::string text = plan_->Difference(*other.plan_, donation, explained);
    if (text.empty() && !result_.SameAs(other.result_)) text = "it returns something else";
    return text;
  }

  /// Sets what the call does to optimizers and schedulers. `host` has a method values(), which
  /// computes numbers of the call or returns None. `places` are the indices of these numbers among
  /// the program's floats. `schedulers` are stepped after the call.
  void SetHost(py::object host, std::shared_ptr<OptimizerNumbers> numbers,
               std::vector<std::vector<size_t>> places, std::vector<py::object> schedulers) {
    host_ = std::move(host);
    numbers_ = std::move(numbers);
    places_ = std::move(places);
    schedulers_ = std::move(schedulers);
    found_.reset();
  }
  const py::object& host() const { return host_; }

 private:
  /// Puts the numbers of a call into floats_. Computes them again only if their sources have
  /// changed.
  bool FillNumbers() {
    std::vector<double> found;
    if (!numbers_->ReadEntries(found) || !numbers_->ReadCounters(found)) return false;
    if (found_ && found.size() == found_->size() &&
        std::memcmp(found.data(), found_->data(), found.size() * sizeof(double)) == 0) {
      return true;
    }
    const py::object values = host_.attr("values")();
    if (values.is_none()) return false;
    floats_ = plan_->floats();
    size_t i = 0;
    for (py::handle value : values) {
      for (size_t place : places_.at(i)) floats_.at(place) = value.cast<double>();
      ++i;
    }
    found_ = std::move(found);
    return true;
  }

  bool ArgumentsMatch(const py::tuple& args, const py::dict& kwargs,
                      std::vector<PyObject*>& given) const {
    if (!arguments_->Match(args, kwargs, given)) return false;
    for (size_t i = given_.size(); i < given.size(); ++i) {
      if (!plan_->HasSizes(i, THPVariable_Unpack(given[i]).sizes())) return false;
    }
    return true;
  }

  // Arguments come first: if a function has a recording for each of many sizes, they tell the
  // recordings apart.
  bool ObjectsHold(const py::tuple& args, const py::dict& kwargs,
                   std::vector<PyObject*>& given) const {
    return ArgumentsMatch(args, kwargs, given) && !Surroundings::Now().Difference(*surroundings_) &&
           exec::MayCut() && objects_->Hold();
  }

  /// The tensors that are passed to a plan; `given` keeps them alive.
  struct Tensors {
    Tensors(const std::vector<PyObject*>& given, at::Tensor collective_token)
        : token(std::move(collective_token)) {
      list.reserve(given.size() + 1);
      for (PyObject* object : given) list.push_back(&THPVariable_Unpack(object));
      if (token.defined()) list.push_back(&token);
    }
    Tensors(const Tensors&) = delete;
    Tensors& operator=(const Tensors&) = delete;

    at::Tensor token;
    std::vector<const at::Tensor*> list;
  };

  std::shared_ptr<Surroundings> surroundings_;
  std::shared_ptr<ObjectGuards> objects_;
  std::shared_ptr<ArgumentPattern> arguments_;
  std::vector<py::object> state_;
  std::vector<PyObject*> given_;
  PlanPtr plan_;
  size_t num_results_;
  ResultPattern result_;
  py::object host_ = py::none();
  std::shared_ptr<OptimizerNumbers> numbers_;
  std::vector<std::vector<size_t>> places_;
  std::vector<py::object> schedulers_;
  std::optional<std::vector<double>> found_;  // the sources of floats_
  std::vector<double> floats_;                // the numbers of the program
};

}  // namespace torch_xla::replay
