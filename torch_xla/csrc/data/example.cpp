#include "data/example.h"

#include <bit>
#include <cstring>
#include <unordered_map>

#include "data/errors.h"

namespace torch_xla::data {
namespace {

enum WireType {
  kVarint = 0,
  kFixed64 = 1,
  kDelimited = 2,
  kGroup = 3,
  kGroupEnd = 4,
  kFixed32 = 5
};

// Field numbers of the messages Example, Features, the map's entries, Feature and the lists.
constexpr uint32_t kExampleFeatures = 1, kFeaturesFeature = 1, kEntryKey = 1, kEntryValue = 2;
constexpr uint32_t kBytesList = 1, kFloatList = 2, kInt64List = 3, kListValue = 1;

constexpr int kMaxGroupDepth = 100;  // protobuf's own limit

/// Reads the fields of a message, and never reads beyond the message.
class WireReader {
 public:
  /// Offsets in errors are relative to `record`.
  WireReader(std::string_view message, const char* record)
      : at_(message.data()), end_(at_ + message.size()), record_(record) {}

  /// Moves to the next field; returns false at the end of the message.
  bool NextField() {
    if (at_ == end_) return false;
    const uint64_t tag = Varint();
    field_ = static_cast<uint32_t>(tag >> 3);
    wire_type_ = static_cast<int>(tag & 7);
    if (tag >> 32 != 0 || field_ == 0) Fail("invalid field number");
    return true;
  }
  bool Is(uint32_t field, WireType type) const { return field_ == field && wire_type_ == type; }

  bool AtEnd() const { return at_ == end_; }

  uint64_t Varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (at_ == end_) Fail("a number ends beyond its message");
      const auto byte = static_cast<unsigned char>(*at_++);
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    Fail("a number has more than 10 bytes");
  }

  std::string_view Bytes(size_t size) {
    if (size > static_cast<size_t>(end_ - at_)) {
      Fail("a field of " + std::to_string(size) + " bytes ends beyond its message, which has " +
           std::to_string(end_ - at_) + " more");
    }
    std::string_view bytes(at_, size);
    at_ += size;
    return bytes;
  }

  std::string_view Delimited() {
    const uint64_t size = Varint();
    if (size > static_cast<uint64_t>(end_ - at_)) {
      Fail("a field of " + std::to_string(size) + " bytes ends beyond its message, which has " +
           std::to_string(end_ - at_) + " more");
    }
    return Bytes(static_cast<size_t>(size));
  }

  WireReader Message() { return WireReader(Delimited(), record_); }

  void Skip(int depth = 0) {
    switch (wire_type_) {
      case kVarint:
        Varint();
        return;
      case kFixed64:
        Bytes(8);
        return;
      case kDelimited:
        Delimited();
        return;
      case kFixed32:
        Bytes(4);
        return;
      case kGroup: {
        const uint32_t group = field_;
        if (depth == kMaxGroupDepth) Fail("groups are nested too deep");
        while (true) {
          if (!NextField()) Fail("a group has no end");
          if (wire_type_ == kGroupEnd) break;
          Skip(depth + 1);
        }
        if (field_ != group) Fail("a group ends with the number of another group");
        return;
      }
      default:
        Fail("invalid wire type " + std::to_string(wire_type_));
    }
  }

  [[noreturn]] void Fail(const std::string& what) const {
    throw DataError("at byte " + std::to_string(at_ - record_) + ": " + what);
  }

 private:
  const char* at_;
  const char* end_;
  const char* record_;
  uint32_t field_ = 0;
  int wire_type_ = 0;
};

// Floats are copied without a conversion.
static_assert(std::endian::native == std::endian::little);

void AppendFloats(std::string_view bytes, std::vector<float>& values) {
  const size_t old = values.size();
  values.resize(old + bytes.size() / sizeof(float));
  if (!bytes.empty()) std::memcpy(values.data() + old, bytes.data(), bytes.size());
}

void ParseList(WireReader list, std::vector<std::string_view>& values) {
  while (list.NextField()) {
    if (list.Is(kListValue, kDelimited)) {
      values.push_back(list.Delimited());
    } else {
      list.Skip();
    }
  }
}

void ParseList(WireReader list, std::vector<float>& values) {
  while (list.NextField()) {
    if (list.Is(kListValue, kDelimited)) {
      const std::string_view packed = list.Delimited();
      if (packed.size() % 4 != 0) {
        list.Fail("packed floats of " + std::to_string(packed.size()) + " bytes");
      }
      AppendFloats(packed, values);
    } else if (list.Is(kListValue, kFixed32)) {
      AppendFloats(list.Bytes(4), values);
    } else {
      list.Skip();
    }
  }
}

void ParseList(WireReader list, std::vector<int64_t>& values) {
  while (list.NextField()) {
    if (list.Is(kListValue, kDelimited)) {
      WireReader packed = list.Message();
      while (!packed.AtEnd()) values.push_back(static_cast<int64_t>(packed.Varint()));
    } else if (list.Is(kListValue, kVarint)) {
      values.push_back(static_cast<int64_t>(list.Varint()));
    } else {
      list.Skip();
    }
  }
}

/// A list of another kind replaces the previous list, a list of the same kind is appended to it.
/// This is protobuf's rule for merging a oneof.
template <typename List>
void MergeList(WireReader list, Feature& feature) {
  if (!std::holds_alternative<List>(feature)) feature.emplace<List>();
  ParseList(list, std::get<List>(feature));
}

void ParseFeature(WireReader message, Feature& feature) {
  while (message.NextField()) {
    if (message.Is(kBytesList, kDelimited)) {
      MergeList<std::vector<std::string_view>>(message.Message(), feature);
    } else if (message.Is(kFloatList, kDelimited)) {
      MergeList<std::vector<float>>(message.Message(), feature);
    } else if (message.Is(kInt64List, kDelimited)) {
      MergeList<std::vector<int64_t>>(message.Message(), feature);
    } else {
      message.Skip();
    }
  }
}

/// Finds features by name. A linear search is faster than a table while there are few names.
class Names {
 public:
  explicit Names(Example& example) : example_(example) {}

  Feature& Fresh(std::string_view name) {
    const size_t known = example_.size();
    const size_t position = Find(name);
    if (position == known) return example_.emplace_back(name, Feature()).second;
    return example_[position].second = Feature();
  }

 private:
  static constexpr size_t kFew = 16;

  size_t Find(std::string_view name) {
    const size_t known = example_.size();
    if (known < kFew) {
      for (size_t i = 0; i < known; ++i) {
        if (example_[i].first == name) return i;
      }
      return known;
    }
    for (size_t i = table_.size(); i < known; ++i) table_.emplace(example_[i].first, i);
    return table_.try_emplace(name, known).first->second;
  }

  Example& example_;
  std::unordered_map<std::string_view, size_t> table_;
};

void ParseEntry(WireReader entry, Names& names) {
  std::string_view key;
  Feature feature;
  while (entry.NextField()) {
    if (entry.Is(kEntryKey, kDelimited)) {
      key = entry.Delimited();
    } else if (entry.Is(kEntryValue, kDelimited)) {
      ParseFeature(entry.Message(), feature);
    } else {
      entry.Skip();
    }
  }
  names.Fresh(key) = std::move(feature);
}

// ---------------------------------------------------------------- writing

void AppendVarint(uint64_t value, std::string& to) {
  for (; value >= 0x80; value >>= 7) to.push_back(static_cast<char>(value | 0x80));
  to.push_back(static_cast<char>(value));
}

void AppendField(uint32_t field, std::string_view content, std::string& to) {
  AppendVarint(field << 3 | kDelimited, to);
  AppendVarint(content.size(), to);
  to.append(content);
}

std::string SerializeFeature(const Feature& feature) {
  std::string list, packed, message;
  if (const auto* bytes = std::get_if<std::vector<std::string_view>>(&feature)) {
    for (std::string_view value : *bytes) AppendField(kListValue, value, list);
    AppendField(kBytesList, list, message);
  } else if (const auto* floats = std::get_if<std::vector<float>>(&feature)) {
    packed.assign(reinterpret_cast<const char*>(floats->data()), floats->size() * sizeof(float));
    if (!packed.empty()) AppendField(kListValue, packed, list);
    AppendField(kFloatList, list, message);
  } else if (const auto* integers = std::get_if<std::vector<int64_t>>(&feature)) {
    for (int64_t value : *integers) AppendVarint(static_cast<uint64_t>(value), packed);
    if (!packed.empty()) AppendField(kListValue, packed, list);
    AppendField(kInt64List, list, message);
  }
  return message;
}

}  // namespace

Example ParseExample(std::string_view record) {
  Example example;
  Names names(example);
  WireReader message(record, record.data());
  while (message.NextField()) {
    if (!message.Is(kExampleFeatures, kDelimited)) {
      message.Skip();
      continue;
    }
    WireReader features = message.Message();
    while (features.NextField()) {
      if (features.Is(kFeaturesFeature, kDelimited)) {
        ParseEntry(features.Message(), names);
      } else {
        features.Skip();
      }
    }
  }
  return example;
}

std::string SerializeExample(const Example& example) {
  std::string features;
  for (const auto& [name, feature] : example) {
    std::string entry;
    AppendField(kEntryKey, name, entry);
    AppendField(kEntryValue, SerializeFeature(feature), entry);
    AppendField(kFeaturesFeature, entry, features);
  }
  std::string message;
  AppendField(kExampleFeatures, features, message);
  return message;
}

}  // namespace torch_xla::data
