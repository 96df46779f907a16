// Writes protobuf messages field by field.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace torch_xla::runtime {

/// Writes the two kinds of protobuf fields that are needed.
class ProtoWriter {
 public:
  ProtoWriter& Integer(int field, int64_t value) {
    Varint(static_cast<uint64_t>(field) << 3);
    Varint(static_cast<uint64_t>(value));
    return *this;
  }
  ProtoWriter& Bytes(int field, std::string_view value) {
    Varint(static_cast<uint64_t>(field) << 3 | 2);
    Varint(value.size());
    text_.append(value);
    return *this;
  }
  ProtoWriter& Message(int field, const ProtoWriter& value) { return Bytes(field, value.text_); }
  std::string Take() { return std::move(text_); }

 private:
  void Varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) text_.push_back(static_cast<char>(value | 0x80));
    text_.push_back(static_cast<char>(value));
  }

  std::string text_;
};

}  // namespace torch_xla::runtime
