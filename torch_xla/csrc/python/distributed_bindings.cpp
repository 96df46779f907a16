#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

#include "aten/bridge.h"
#include "distributed/collective_node.h"
#include "distributed/communicator.h"
#include "distributed/process_store.h"
#include "python/bindings.h"
#include "python/devices.h"
#include "tensor/device.h"

namespace torch_xla::python {

namespace py = pybind11;

namespace {

/// Returns the new contents of the tensors, in place or as new tensors.
std::vector<at::Tensor> RunCollective(const std::string& kind, const std::string& reduction,
                                      const std::vector<at::Tensor>& tensors,
                                      const distributed::Groups& groups,
                                      const std::vector<int64_t>& arguments, bool in_place) {
  if (tensors.empty()) return {};
  std::vector<ir::Value> inputs;
  int device = -1;
  for (const at::Tensor& tensor : tensors) {
    aten::XLATensorImpl* impl = aten::GetImpl(tensor, kind.c_str());
    if (device < 0) device = impl->root()->device();
    TORCH_CHECK(impl->root()->device() == device, kind, ": expected tensors on one device, got ",
                tensor::TorchDevice(device), " and ", tensor.device());
    inputs.push_back(impl->Read());
  }
  distributed::Collective collective{distributed::CollectiveNamed(kind),
                                     distributed::ReductionNamed(reduction), groups, arguments};
  std::vector<ir::Value> values =
      distributed::MakeCollective(std::move(collective), inputs, device);
  std::vector<at::Tensor> results;
  for (size_t i = 0; i < values.size(); ++i) {
    if (in_place) {
      aten::GetImpl(tensors[i])->Write(values[i]);
      tensors[i].unsafeGetTensorImpl()->bump_version();
    } else {
      results.push_back(aten::MakeTensor(values[i], device));
    }
  }
  return in_place ? tensors : results;
}

/// PyTorch warns, once, if nothing waits for a functional collective whose tensor has no storage.
/// Nothing needs to wait for xla tensors, since the graph keeps the order. This triggers the
/// warning where nobody sees it.
void SpendWarningOfWorks() {
  struct Silent : c10::WarningHandler {
    void process(const c10::Warning& /*warning*/) override {}
  } silent;
  c10::WarningUtils::WarningHandlerGuard guard(&silent);
  c10d::register_work(at::Tensor(), nullptr);
}

/// The work of a traced collective, which is done: its tensors are those of the graph.
class DoneWork final : public c10d::Work {
 public:
  explicit DoneWork(std::vector<at::Tensor> tensors) : tensors_(std::move(tensors)) { finish(); }

  std::vector<at::Tensor> result() override { return tensors_; }

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors());
    future->markCompleted(tensors_);
    return future;
  }

 private:
  std::vector<at::Tensor> tensors_;
};

/// DistributedDataParallel measures the time of its passes. Here the passes only trace, so the time
/// would mean nothing. Without a timer DistributedDataParallel warns.
class NoTimer : public c10d::Timer {
 public:
  explicit NoTimer(c10::Device /*device*/) {}
  std::optional<int64_t> measureDifference(Event /*start*/, Event /*end*/) override {
    return std::nullopt;
  }
};

}  // namespace

}  // namespace torch_xla::python

namespace c10d {
C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::kXLA, torch_xla::python::NoTimer);
}  // namespace c10d

namespace torch_xla::python {

void BindDistributed(py::module_& m) {
  m.def(
      "_xla_connect_replicas",
      [](int rank, std::vector<int> sockets, double timeout_s,
         const c10::intrusive_ptr<c10d::Backend>& bulk) {
        auto mesh = std::make_unique<distributed::PeerMesh>(
            rank, std::move(sockets), std::chrono::milliseconds(std::llround(timeout_s * 1000)));
        distributed::SetCommunicator(
            std::make_shared<distributed::Communicator>(std::move(mesh), bulk));
      },
      py::arg("rank"), py::arg("sockets"), py::arg("timeout_s"), py::arg("bulk"));
  m.def(
      "_xla_set_process_place",
      [](int rank, int size, int local_rank, const c10::intrusive_ptr<c10d::Store>& store) {
        auto shared = distributed::MakeProcessStore(store);
        py::gil_scoped_release no_gil;
        tensor::SetProcessPlace({rank, size, local_rank, std::move(shared)});
      },
      py::arg("rank"), py::arg("size"), py::arg("local_rank"), py::arg("store"));
  // With a reason, running collectives fail and the other replicas are told the reason.
  m.def(
      "_xla_disconnect_replicas",
      [](const std::optional<std::string>& reason) {
        const auto communicator = distributed::GetCommunicator();
        if (reason) communicator->Abort(*reason);
        distributed::SetCommunicator(nullptr);
        if (!reason) communicator->Finish();
      },
      py::arg("reason") = py::none(), NoGil());
  m.def(
      "_xla_done_work",
      [](std::vector<at::Tensor> tensors) -> c10::intrusive_ptr<c10d::Work> {
        return c10::make_intrusive<DoneWork>(std::move(tensors));
      },
      py::arg("tensors"));
  m.def("_xla_spend_warning_of_works", &SpendWarningOfWorks);
  m.def("_xla_close_replicas_in_child", &distributed::CloseCommunicatorInChild);
  m.def("_xla_replicas_connected", &distributed::HasCommunicator);
  m.def(
      "_xla_collective_pending",
      [](const std::string& device) { return distributed::CollectivePending(Ordinal(device)); },
      py::arg("device") = "", NoGil());
  m.def("_xla_ended_replicas", [] { return distributed::GetCommunicator()->Ended(); }, NoGil());
  m.def("_xla_collective", &RunCollective, py::arg("kind"), py::arg("reduction"),
        py::arg("tensors"), py::arg("groups"), py::arg("arguments"), py::arg("in_place"), NoGil());
}

}  // namespace torch_xla::python
