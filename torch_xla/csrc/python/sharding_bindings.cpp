// SPMD mode: shardings, and the tensors with shardings.
#include <pybind11/stl.h>

#include "aten/bridge.h"
#include "aten/sharding.h"
#include "distributed/sharding_writer.h"
#include "exec/manual_regions.h"
#include "ops/matmul.h"
#include "python/bindings.h"
#include "tensor/device.h"

namespace torch_xla::python {

namespace py = pybind11;
using distributed::Sharding;

void BindSharding(py::module_& m) {
  constexpr auto kInterned = py::return_value_policy::reference;
  py::class_<Sharding, std::unique_ptr<Sharding, py::nodelete>>(m, "Sharding")
      .def_static("replicated", &Sharding::Replicated, kInterned)
      .def_static("tiled", &Sharding::Tiled, py::arg("tiles"), py::arg("devices"), kInterned)
      .def_property_readonly("is_replicated", &Sharding::replicated)
      .def_property_readonly("is_local", &distributed::IsLocal)
      .def_property_readonly("tiles", &Sharding::tiles)
      .def_property_readonly("devices", &Sharding::devices)
      .def("tile_dims", [](const Sharding& self,
                           const std::vector<int64_t>& dims) { return self.TileDims(dims); })
      // Returns (offsets, sizes, copy) of the part of an array that a device holds.
      .def("tile_of",
           [](const Sharding& self, int64_t device, const std::vector<int64_t>& dims) {
             Sharding::Tile tile = self.TileOf(device, dims);
             return py::make_tuple(tile.offsets, tile.sizes, tile.copy);
           })
      .def("__eq__", [](const Sharding& a, const Sharding& b) { return &a == &b; })
      .def("__hash__", [](const Sharding& self) { return reinterpret_cast<intptr_t>(&self); })
      .def("__str__", &Sharding::text)
      .def("__repr__", &Sharding::text);

  m.def("_xla_enter_spmd_mode", &tensor::EnterSpmdMode, NoGil());
  m.def("_xla_spmd_devices", &tensor::SpmdDevices);
  m.def("_xla_mark_sharding", &aten::MarkSharding, NoGil());
  m.def("_xla_clear_sharding", &aten::ClearSharding, NoGil());
  m.def("_xla_with_sharding", &aten::WithSharding, NoGil());
  using MaybeSharding = std::optional<const Sharding*>;
  const auto maybe = [](const Sharding* sharding) {
    return sharding ? MaybeSharding(sharding) : std::nullopt;
  };
  m.def(
      "_xla_marked_sharding",
      [maybe](const at::Tensor& tensor) { return maybe(aten::MarkedSharding(tensor)); }, kInterned);
  m.def(
      "_xla_sharding",
      [maybe](const at::Tensor& tensor) { return maybe(aten::ShardingOf(tensor)); }, kInterned);
  // See HoldersOf.
  m.def(
      "_xla_holders",
      [](const at::Tensor& tensor) { return exec::HoldersOf(aten::GetIrValue(tensor)); }, NoGil());
  m.def("_xla_dot_general", &aten::DotGeneral, NoGil());
  m.def("_xla_send_sharded", &aten::SendSharded, NoGil());
  m.def("_xla_tiles", &aten::TilesOf, NoGil());
  m.def("_get_xla_sharding_spec", [](const at::Tensor& tensor) {
    const Sharding* sharding = aten::ShardingOf(tensor);
    return sharding ? sharding->text() : std::string();
  });
}

}  // namespace torch_xla::python
