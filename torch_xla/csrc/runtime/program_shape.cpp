#include "runtime/program_shape.h"

#include "runtime/ffi_abi.h"

namespace torch_xla::runtime {
namespace {

// Walks over the fields of one protobuf message.
class ProtoReader {
 public:
  explicit ProtoReader(std::string_view text) : rest_(text) {}

  /// False at the end and at malformed input; `ok()` tells which.
  bool Next() {
    if (rest_.empty()) return false;
    const uint64_t tag = Varint();
    field_ = static_cast<int>(tag >> 3);
    wire_type_ = static_cast<int>(tag & 7);
    switch (wire_type_) {
      case 0:
        value_ = Varint();
        break;
      case 1:
        bytes_ = Take(8);
        break;
      case 2:
        bytes_ = Take(Varint());
        break;
      case 5:
        bytes_ = Take(4);
        break;
      default:
        ok_ = false;
    }
    return ok_;
  }
  bool ok() const { return ok_; }
  bool done() const { return rest_.empty(); }
  bool IsBytes(int field) const { return field_ == field && wire_type_ == 2; }
  bool IsInteger(int field) const { return field_ == field && wire_type_ == 0; }
  std::string_view bytes() const { return bytes_; }
  uint64_t value() const { return value_; }

  uint64_t Varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (rest_.empty()) break;
      const auto byte = static_cast<uint8_t>(rest_.front());
      rest_.remove_prefix(1);
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    ok_ = false;
    return 0;
  }

 private:
  std::string_view Take(uint64_t size) {
    if (size > rest_.size()) {
      ok_ = false;
      return {};
    }
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }

  std::string_view rest_, bytes_;
  uint64_t value_ = 0;
  int field_ = 0, wire_type_ = 0;
  bool ok_ = true;
};

// Bytes of one element by xla.PrimitiveType, which FFI numbers alike; 0 where the runtime has no
// such type.
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
  while (reader.Next()) {
    if (reader.IsInteger(2)) {
      width = PrimitiveTypeBytes(reader.value());
    } else if (reader.IsInteger(3)) {
      elements *= static_cast<int64_t>(reader.value());
    } else if (reader.IsBytes(3)) {
      ProtoReader dimensions(reader.bytes());  // packed
      while (!dimensions.done() && dimensions.ok()) {
        elements *= static_cast<int64_t>(dimensions.Varint());
      }
    }
  }
  return reader.ok() && width != 0 ? width * elements : -1;
}

}  // namespace

std::optional<std::vector<int64_t>> ParameterBytes(std::string_view format, std::string_view hlo) {
  if (format == "hlo_with_config") {  // HloModuleProtoWithConfig: hlo_module = 1
    ProtoReader reader(hlo);
    while (reader.Next()) {
      if (reader.IsBytes(1)) return ParameterBytes("hlo", reader.bytes());
    }
    return std::nullopt;
  }
  if (format != "hlo") return std::nullopt;
  ProtoReader module(hlo);  // HloModuleProto: host_program_shape = 4
  while (module.Next()) {
    if (!module.IsBytes(4)) continue;
    std::vector<int64_t> parameters;
    ProtoReader program_shape(module.bytes());  // ProgramShapeProto: parameters = 1
    while (program_shape.Next()) {
      if (program_shape.IsBytes(1)) parameters.push_back(ShapeBytes(program_shape.bytes()));
    }
    if (!program_shape.ok()) return std::nullopt;
    return parameters;
  }
  return std::nullopt;
}

}  // namespace torch_xla::runtime
