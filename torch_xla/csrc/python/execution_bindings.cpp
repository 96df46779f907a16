#include "XLAOps.h"
#include "aten/bridge.h"
#include "aten/generator.h"
#include "aten/index_check.h"
#include "aten/layout.h"
#include "aten/torch_storage.h"
#include "exec/executor.h"
#include "ir/dump.h"
#include "python/bindings.h"
#include "python/devices.h"
#include "sizes/families.h"
#include "tensor/device.h"
#include "tensor/node_factory.h"

namespace torch_xla::python {

namespace py = pybind11;

namespace {

std::vector<ir::Value> ValuesOf(const std::vector<at::Tensor>& tensors) {
  std::vector<ir::Value> values;
  for (const at::Tensor& tensor : tensors) values.push_back(aten::GetIrValue(tensor));
  return values;
}

// The way in which a tensor views its storage, which can be applied to another storage of the same
// shape.
class Look {
 public:
  explicit Look(const at::Tensor& tensor) : Look(*aten::GetImpl(tensor, "_Look")) {}

  bool is_whole() const { return is_whole_; }

  at::Tensor At(const at::Tensor& whole) const {
    aten::XLATensorImpl* impl = aten::GetImpl(whole, "_Look.at");
    at::Tensor tensor = aten::MakeView(*impl, view_, dtype_, sizes_);
    tensor._set_conj(is_conj_);
    tensor._set_neg(is_neg_);
    // Autograd must know that a write to the view is a write to the whole tensor.
    if (!impl->is_inference()) {
      tensor.unsafeGetTensorImpl()->set_version_counter(impl->version_counter());
    }
    return tensor;
  }

 private:
  explicit Look(const aten::XLATensorImpl& impl)
      : view_(impl.view_ptr()),
        dtype_(impl.dtype()),
        sizes_(impl.sizes()),
        is_conj_(impl.is_conj()),
        is_neg_(impl.is_neg()),
        is_whole_(impl.is_whole()) {}

  tensor::ViewPtr view_;
  caffe2::TypeMeta dtype_;
  tensor::Ints sizes_;
  bool is_conj_, is_neg_, is_whole_;
};

/// See torch_xla.mark_dynamic.
void MarkDynamic(const at::Tensor& tensor, int64_t dim, int64_t bound) {
  const aten::XLATensorImpl& impl = *aten::GetImpl(tensor, "mark_dynamic");
  const int64_t wrapped = c10::maybe_wrap_dim(dim, tensor.dim());
  if (bound < tensor.size(wrapped))
    throw py::value_error("mark_dynamic(): expected a `max` of at least the size " +
                          std::to_string(tensor.size(wrapped)) + ", got " + std::to_string(bound));
  const ir::Value value = impl.root()->value();
  tensor::DeviceData* data = tensor::LeafData(value);
  if (!impl.is_whole() || !data)
    throw py::value_error(
        "mark_dynamic(): expected a tensor that was copied to the device, got a view or a result "
        "that is not computed yet");
  sizes::MarkSize(tensor::DeviceDataPtr::reclaim_copy(data), static_cast<size_t>(wrapped), bound);
}

}  // namespace

void BindExecution(py::module_& m) {
  m.def("_mark_dynamic", &MarkDynamic, py::arg("tensor"), py::arg("dim"), py::arg("max"), NoGil());
  m.def(
      "_xla_sync",
      [](const std::vector<std::string>& devices, bool wait) {
        for (int device : Ordinals(devices)) exec::SyncDevice(device, wait);
      },
      py::arg("devices") = std::vector<std::string>(), py::arg("wait") = false, NoGil());
  m.def(
      "_xla_sync_multi",
      [](const std::vector<at::Tensor>& tensors, const std::vector<std::string>&, bool wait, bool) {
        std::vector<tensor::StoragePtr> storages;
        for (const at::Tensor& tensor : tensors) {
          storages.push_back(aten::GetImpl(tensor, "_xla_sync_multi")->root());
        }
        exec::SyncStorages(storages, wait);
      },
      py::arg("tensors"), py::arg("devices") = std::vector<std::string>(), py::arg("wait") = true,
      py::arg("sync_xla_data") = true, NoGil());
  m.def(
      "_xla_wait_device_ops",
      [](const std::vector<std::string>& devices) {
        for (int device : Ordinals(devices)) exec::WaitDevice(device);
      },
      py::arg("devices") = std::vector<std::string>(), NoGil());
  m.def("_shutdown", &exec::Shutdown, NoGil());
  m.def("_get_xla_tensors_text",
        [](const std::vector<at::Tensor>& tensors) { return ir::ToText(ValuesOf(tensors)); });
  m.def("_get_xla_tensors_dot",
        [](const std::vector<at::Tensor>& tensors) { return ir::ToDot(ValuesOf(tensors)); });
  m.def(
      "_get_xla_tensors_hlo",
      [](const std::vector<at::Tensor>& tensors) { return exec::StableHloOf(ValuesOf(tensors)); },
      NoGil());
  // Without tensors, everything that is pending on the default device.
  m.def(
      "_xla_stablehlo_of",
      [](const std::vector<at::Tensor>& tensors) {
        return exec::StableHloOf(tensors.empty() ? exec::PendingValues(tensor::CurrentDevice())
                                                 : ValuesOf(tensors));
      },
      NoGil());
  // The last traced tensor that is pending; None if nothing is pending.
  m.def(
      "_xla_last_pending",
      [](const std::string& device) -> std::optional<at::Tensor> {
        const std::vector<tensor::StoragePtr> pending = tensor::Storage::Pending(Ordinal(device));
        if (pending.empty()) return std::nullopt;
        return aten::MakeTensor(pending.back()->value(), pending.back()->device());
      },
      NoGil());
  m.def("_xla_set_seed_mask", &aten::SetSeedMask);
  m.def("_xla_default_generator", &aten::DefaultGenerator);
  m.def("_set_ir_debug", &tensor::SetIrDebug);
  m.def("_get_ir_debug", &tensor::IrDebug);
  m.def("_set_xla_all_numbers_special_scalars", &tensor::SetAllNumbersSpecial);
  m.def("_get_xla_all_numbers_special_scalars", &tensor::AllNumbersSpecial);
  m.def("_xla_suppress", [](const at::Tensor& overlaps, const at::Tensor& valid) {
    aten::XLATensorImpl* impl = aten::GetImpl(overlaps, "nms");
    ir::ops::nms.counter->Add();
    return aten::MakeTensor(tensor::MakeNode(&ir::ops::nms, {impl->Read(), aten::GetIrValue(valid)},
                                             {}, ir::GetShape(at::kBool, valid.sizes())),
                            impl->root()->device());
  });
  // The id of the storage, which is equal for tensors that share memory.
  m.def("_xla_get_tensor_id", [](const at::Tensor& tensor) {
    return reinterpret_cast<uintptr_t>(aten::GetImpl(tensor, "_xla_get_tensor_id")->root().get());
  });
  // Returns (strides, offset) in elements of the tensor's dtype; None if they cannot express the
  // view.
  using Layout = std::pair<std::vector<int64_t>, int64_t>;
  m.def("_xla_get_layout", [](const at::Tensor& tensor) -> std::optional<Layout> {
    const aten::XLATensorImpl* impl = aten::GetImpl(tensor, "_xla_get_layout");
    if (impl->is_conj() || impl->is_neg()) return std::nullopt;
    const std::optional<aten::Layout> layout =
        aten::LayoutOf(impl->view(), impl->root()->shape()->dtype, impl->sizes());
    const auto size = static_cast<int64_t>(tensor.element_size());
    if (!layout || layout->begin % size != 0) return std::nullopt;
    return Layout({layout->strides.begin(), layout->strides.end()}, layout->begin / size);
  });
  // Returns a tensor over the whole storage of `tensor`.
  m.def("_xla_get_storage_tensor", [](const at::Tensor& tensor) {
    const tensor::StoragePtr& root = aten::GetImpl(tensor, "_xla_get_storage_tensor")->root();
    return at::detail::make_tensor<aten::XLATensorImpl>(
        root, nullptr, c10::scalarTypeToTypeMeta(root->shape()->dtype), root->shape()->dims);
  });
  py::class_<Look>(m, "_Look")
      .def(py::init<const at::Tensor&>())
      .def_property_readonly("is_whole", &Look::is_whole)
      .def("at", &Look::At);
  m.def("_get_check_indices", [] { return aten::indices_are_checked.load(); });
  m.def("_set_check_indices", [](bool on) { aten::indices_are_checked.store(on); });
  // None for a tensor that only wraps others.
  m.def("_xla_data_ptr", [](const at::Tensor& tensor) -> std::optional<int64_t> {
    if (!aten::IsXla(tensor)) return std::nullopt;
    const aten::XLATensorImpl* impl = aten::GetImpl(tensor, "data_ptr");
    if (tensor.numel() == 0) return 0;
    return reinterpret_cast<int64_t>(aten::StorageAddress(impl->root())) +
           tensor.storage_offset() * static_cast<int64_t>(tensor.element_size());
  });
  m.def(
      "_xla_storage_from_host",
      [](at::Storage host, const std::string& device) {
        return aten::StorageFromHost(std::move(host), Ordinal(device));
      },
      NoGil());
  m.def(
      "_xla_resize_storage",
      [](at::Storage storage, int64_t bytes) { aten::ResizeStorage(storage, bytes); }, NoGil());
}

}  // namespace torch_xla::python
