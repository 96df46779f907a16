// Reads protobuf messages by field number.
#pragma once

#include <cstdint>
#include <string_view>

namespace torch_xla::runtime {

/// Iterates over the fields of a protobuf message.
class ProtoReader {
 public:
  explicit ProtoReader(std::string_view text) : rest_(text) {}

  /// Moves to the next field. Returns false at the end and for malformed input; ok() tells which.
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
  /// Number of bytes after the last field that was read.
  size_t left() const { return rest_.size(); }
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

}  // namespace torch_xla::runtime
