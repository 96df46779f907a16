#include "runtime/program_shape.h"

#include <algorithm>

#include "runtime/ffi_abi.h"
#include "runtime/proto_reader.h"

namespace torch_xla::runtime {
namespace {

// Reads a value of a repeated integer field, which may be packed.
void AppendIntegers(ProtoReader& reader, int field, std::vector<int64_t>& values) {
  if (reader.IsInteger(field)) {
    values.push_back(static_cast<int64_t>(reader.value()));
  } else if (reader.IsBytes(field)) {
    ProtoReader packed(reader.bytes());
    while (!packed.done() && packed.ok()) {
      values.push_back(static_cast<int64_t>(packed.Varint()));
    }
  }
}

// The size of one element by xla.PrimitiveType, which has the same numbers as FFI's types; 0 if the
// runtime has no such type.
int64_t PrimitiveTypeBytes(uint64_t type) {
  switch (type) {
#define ELEMENT(name, abi, mlir, bytes, dtype) \
  case pjrt::XLA_FFI_DataType_##abi:           \
    return bytes;
#include "runtime/element_types.inc"
    default:
      return 0;
  }
}

// ShapeProto: element_type = 2, dimensions = 3.
int64_t ShapeBytes(std::string_view shape) {
  ProtoReader reader(shape);
  int64_t width = 0, elements = 1;
  std::vector<int64_t> dimensions;
  while (reader.Next()) {
    if (reader.IsInteger(2)) {
      width = PrimitiveTypeBytes(reader.value());
    }
    AppendIntegers(reader, 3, dimensions);
  }
  for (int64_t size : dimensions) elements *= size;
  return reader.ok() && width != 0 ? width * elements : -1;
}

// The numbers 0 … n - 1 as an array of dimensions `dims`, transposed by `order`, in row-major
// order.
std::vector<int64_t> TransposedIota(const std::vector<int64_t>& dims,
                                    const std::vector<int64_t>& order) {
  const size_t rank = dims.size();
  std::vector<int64_t> strides(rank, 1);
  for (size_t i = rank; i-- > 1;) strides[i - 1] = strides[i] * dims[i];
  std::vector<int64_t> values{0};
  for (size_t i = 0; i < rank; ++i) {
    const auto from = static_cast<size_t>(order[i]);
    std::vector<int64_t> longer;
    for (int64_t value : values) {
      for (int64_t k = 0; k < dims[from]; ++k) longer.push_back(value + k * strides[from]);
    }
    values = std::move(longer);
  }
  return values;
}

bool IsPermutation(std::vector<int64_t> order, size_t size) {
  std::sort(order.begin(), order.end());
  for (size_t i = 0; i < order.size(); ++i) {
    if (order[i] != static_cast<int64_t>(i)) return false;
  }
  return order.size() == size;
}

// An axis of a mesh, or a part of one: `size` places, `stride` devices apart.
struct AxisPart {
  int64_t size, stride;
};

// AxisRefProto: mesh_axis_index = 1, sub_axis_info = 2 (pre_size = 1, size = 2).
std::optional<AxisPart> ReadAxis(std::string_view text, const std::vector<AxisPart>& axes) {
  uint64_t index = 0, before = 1, size = 0;
  ProtoReader reader(text);
  while (reader.Next()) {
    if (reader.IsInteger(1)) index = reader.value();
    if (!reader.IsBytes(2)) continue;
    ProtoReader part(reader.bytes());
    while (part.Next()) {
      if (part.IsInteger(1)) before = part.value();
      if (part.IsInteger(2)) size = part.value();
    }
  }
  if (!reader.ok() || index >= axes.size()) return std::nullopt;
  const AxisPart& axis = axes[index];
  if (size == 0) return axis;
  const auto covered = static_cast<int64_t>(before * size);
  if (covered <= 0 || axis.size % covered != 0) return std::nullopt;
  return AxisPart{static_cast<int64_t>(size), axis.stride * (axis.size / covered)};
}

// NamedShardingProto, which Shardy's programs may have: mesh = 2 (axes = 1, each with its size = 2;
// device_ids = 2), dim_shardings = 3 (axes = 1), unreduced_axes = 5, manual_axes = 6.
std::optional<OutputSharding> ReadNamedSharding(std::string_view text) {
  std::vector<AxisPart> axes;
  std::vector<int64_t> devices;
  std::vector<std::vector<AxisPart>> dimensions;
  int64_t count = 1;
  ProtoReader reader(text);
  while (reader.Next()) {
    if (reader.IsBytes(2)) {
      ProtoReader mesh(reader.bytes());
      while (mesh.Next()) {
        AppendIntegers(mesh, 2, devices);
        if (!mesh.IsBytes(1)) continue;
        ProtoReader axis(mesh.bytes());
        axes.push_back({1, 1});
        while (axis.Next()) {
          if (axis.IsInteger(2)) axes.back().size = static_cast<int64_t>(axis.value());
        }
      }
      for (size_t i = axes.size(); i-- > 0; count *= axes[i].size) axes[i].stride = count;
    } else if (reader.IsBytes(3)) {
      dimensions.emplace_back();
      ProtoReader dimension(reader.bytes());
      while (dimension.Next()) {
        if (!dimension.IsBytes(1)) continue;
        const auto part = ReadAxis(dimension.bytes(), axes);
        if (!part) return std::nullopt;
        dimensions.back().push_back(*part);
      }
    } else if (reader.IsBytes(5) || reader.IsBytes(6)) {
      return std::nullopt;
    }
  }
  if (!reader.ok() || (!devices.empty() && static_cast<int64_t>(devices.size()) != count)) {
    return std::nullopt;
  }
  OutputSharding sharding;
  int64_t tiles = 1;
  for (const std::vector<AxisPart>& dimension : dimensions) {
    sharding.tiles.push_back(1);
    for (const AxisPart& part : dimension) sharding.tiles.back() *= part.size;
    tiles *= sharding.tiles.back();
  }
  if (tiles == 1) return OutputSharding{};
  std::vector<std::vector<int64_t>> holders(tiles);
  for (int64_t place = 0; place < count; ++place) {
    int64_t tile = 0;
    for (const std::vector<AxisPart>& dimension : dimensions) {
      for (const AxisPart& part : dimension) {
        tile = tile * part.size + place / part.stride % part.size;
      }
    }
    holders[tile].push_back(devices.empty() ? place : devices[place]);
  }
  for (const std::vector<int64_t>& held : holders) {
    sharding.devices.insert(sharding.devices.end(), held.begin(), held.end());
  }
  return sharding;
}

// OpSharding: type = 1, tile_assignment_dimensions = 3, tile_assignment_devices = 4,
// replicate_on_last_tile_dim = 6, last_tile_dims = 8, iota_reshape_dims = 9,
// iota_transpose_perm = 10, named_sharding = 14.
std::optional<OutputSharding> ReadSharding(std::string_view text) {
  constexpr uint64_t kReplicated = 0, kOther = 3;
  uint64_t type = 0;
  bool copies_last = false;
  std::vector<int64_t> subgroups, iota, order;
  OutputSharding sharding;
  ProtoReader reader(text);
  while (reader.Next()) {
    if (reader.IsBytes(14)) return ReadNamedSharding(reader.bytes());
    if (reader.IsInteger(1)) type = reader.value();
    if (reader.IsInteger(6)) copies_last = reader.value() != 0;
    AppendIntegers(reader, 3, sharding.tiles);
    AppendIntegers(reader, 4, sharding.devices);
    AppendIntegers(reader, 8, subgroups);
    AppendIntegers(reader, 9, iota);
    AppendIntegers(reader, 10, order);
  }
  if (!reader.ok()) return std::nullopt;
  if (type == kReplicated) return OutputSharding{};
  if (type != kOther || sharding.tiles.empty()) return std::nullopt;
  if (!iota.empty()) {
    if (!IsPermutation(order, iota.size())) return std::nullopt;
    sharding.devices = TransposedIota(iota, order);
  }
  // Subgroups of devices that hold the same tile; other kinds of subgroups (manual) do not occur
  // here.
  if (!subgroups.empty() && subgroups != std::vector<int64_t>{kReplicated}) return std::nullopt;
  if (copies_last || !subgroups.empty()) sharding.tiles.pop_back();
  return sharding;
}

// ProgramShapeProto: parameters = 1.
std::optional<std::vector<int64_t>> ReadParameterBytes(std::string_view text) {
  std::vector<int64_t> bytes;
  ProtoReader reader(text);
  while (reader.Next()) {
    if (reader.IsBytes(1)) bytes.push_back(ShapeBytes(reader.bytes()));
  }
  if (!reader.ok()) return std::nullopt;
  return bytes;
}

}  // namespace

std::optional<std::vector<OutputSharding>> ReadShardings(std::string_view text) {
  constexpr uint64_t kTuple = 2;
  uint64_t type = 0;
  std::vector<OutputSharding> shardings;
  ProtoReader reader(text);
  while (reader.Next()) {
    if (reader.IsInteger(1)) type = reader.value();
    if (!reader.IsBytes(5)) continue;
    auto sharding = ReadSharding(reader.bytes());
    if (!sharding) return std::nullopt;
    shardings.push_back(std::move(*sharding));
  }
  if (type == kTuple) return shardings;
  auto sharding = ReadSharding(text);
  if (!sharding) return std::nullopt;
  return std::vector<OutputSharding>{std::move(*sharding)};
}

std::vector<int64_t> ReadDimensions(std::string_view shape) {
  std::vector<int64_t> dimensions;
  ProtoReader reader(shape);
  while (reader.Next()) AppendIntegers(reader, 3, dimensions);
  return dimensions;
}

std::optional<ProgramShape> ReadProgramShape(std::string_view format, std::string_view hlo) {
  if (format == "hlo_with_config") {  // HloModuleProtoWithConfig: hlo_module = 1
    ProtoReader reader(hlo);
    while (reader.Next()) {
      if (reader.IsBytes(1)) return ReadProgramShape("hlo", reader.bytes());
    }
    return std::nullopt;
  }
  if (format != "hlo") return std::nullopt;
  // HloModuleProto: host_program_shape = 4, spmd_output_sharding = 12.
  std::optional<std::vector<int64_t>> parameters;
  ProgramShape shape;
  ProtoReader module(hlo);
  while (module.Next()) {
    if (module.IsBytes(4)) parameters = ReadParameterBytes(module.bytes());
    if (module.IsBytes(12)) shape.outputs = ReadShardings(module.bytes());
  }
  if (!parameters) return std::nullopt;
  shape.parameter_bytes = std::move(*parameters);
  return shape;
}

}  // namespace torch_xla::runtime
