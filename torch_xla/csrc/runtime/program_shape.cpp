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
  using namespace pjrt;
  switch (type) {
    case XLA_FFI_DataType_PRED:
    case XLA_FFI_DataType_S8:
    case XLA_FFI_DataType_U8:
    case XLA_FFI_DataType_F8E5M2:
    case XLA_FFI_DataType_F8E4M3FN:
    case XLA_FFI_DataType_F8E5M2FNUZ:
    case XLA_FFI_DataType_F8E4M3FNUZ:
    case XLA_FFI_DataType_F8E8M0FNU:
      return 1;
    case XLA_FFI_DataType_S16:
    case XLA_FFI_DataType_U16:
    case XLA_FFI_DataType_F16:
    case XLA_FFI_DataType_BF16:
      return 2;
    case XLA_FFI_DataType_S32:
    case XLA_FFI_DataType_U32:
    case XLA_FFI_DataType_F32:
      return 4;
    case XLA_FFI_DataType_S64:
    case XLA_FFI_DataType_U64:
    case XLA_FFI_DataType_F64:
    case XLA_FFI_DataType_C64:
      return 8;
    case XLA_FFI_DataType_C128:
      return 16;
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

// OpSharding: type = 1, tile_assignment_dimensions = 3, tile_assignment_devices = 4,
// replicate_on_last_tile_dim = 6, last_tile_dims = 8, iota_reshape_dims = 9,
// iota_transpose_perm = 10.
std::optional<OutputSharding> ReadSharding(std::string_view text) {
  constexpr uint64_t kReplicated = 0, kOther = 3;
  uint64_t type = 0;
  bool copies_last = false;
  std::vector<int64_t> subgroups, iota, order;
  OutputSharding sharding;
  ProtoReader reader(text);
  while (reader.Next()) {
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

// A single OpSharding, or a tuple of them: type = 1, tuple_shardings = 5.
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
