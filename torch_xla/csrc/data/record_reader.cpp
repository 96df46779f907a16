#include "data/record_reader.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <limits>
#include <utility>

#include "data/crc32c.h"
#include "data/errors.h"

namespace torch_xla::data {
namespace {

constexpr size_t kHeader = 12, kFooter = 4;
// Bytes to read at a time: few enough that records are still in the processor's cache when they are
// parsed.
constexpr size_t kChunk = 256 << 10;

// The format is little-endian.
template <typename T>
T Load(const char* at) {
  T value = 0;
  for (size_t i = sizeof(T); i-- > 0;) value = value << 8 | static_cast<unsigned char>(at[i]);
  return value;
}

template <typename T>
void Store(T value, char* at) {
  for (size_t i = 0; i < sizeof(T); ++i) at[i] = static_cast<char>(value >> (8 * i) & 0xff);
}

std::string Hex(uint32_t value) {
  char text[11];
  std::snprintf(text, sizeof(text), "0x%08x", value);
  return text;
}

std::string Mismatch(uint32_t stored, uint32_t computed) {
  return "expected CRC " + Hex(stored) + ", got " + Hex(computed);
}

}  // namespace

RecordReader::RecordReader(ByteSource source, std::string path, size_t buffer_size)
    : source_(std::move(source)),
      path_(std::move(path)),
      capacity_(std::max(buffer_size, kHeader)),
      buffer_(std::make_unique_for_overwrite<char[]>(capacity_)) {}

std::optional<std::string_view> RecordReader::Next() {
  if (!failure_.empty()) throw DataError(failure_);
  offset_ = position_;
  ++count_;
  if (!Fetch(kHeader)) {
    if (begin_ == end_) return std::nullopt;
    Fail("the file ends within the record's header, after " + std::to_string(end_ - begin_) +
         " of its 12 bytes: it is truncated");
  }
  const char* header = buffer_.get() + begin_;
  const auto length = Load<uint64_t>(header);
  const uint32_t length_crc = MaskCrc(Crc32c({header, 8}));
  if (const auto stored = Load<uint32_t>(header + 8); stored != length_crc) {
    Fail("the length is corrupted, or this is no TFRecord file (of this compression): " +
         Mismatch(stored, length_crc));
  }
  if (length > std::numeric_limits<size_t>::max() / 2) {
    Fail("the length " + std::to_string(length) + " is impossible");
  }
  const size_t total = kHeader + static_cast<size_t>(length) + kFooter;
  if (!Fetch(total)) {
    Fail("the file ends within the record, after " + std::to_string(end_ - begin_) + " of " +
         std::to_string(total) + " bytes: it is truncated");
  }
  const std::string_view record(buffer_.get() + begin_ + kHeader, static_cast<size_t>(length));
  const uint32_t crc = MaskCrc(Crc32c(record));
  if (const auto stored = Load<uint32_t>(record.data() + record.size()); stored != crc) {
    Fail("the record's " + std::to_string(length) +
         " bytes are corrupted: " + Mismatch(stored, crc));
  }
  begin_ += total;
  position_ += total;
  return record;
}

/// Makes `size` bytes available at begin_; returns false if the file ends before.
bool RecordReader::Fetch(size_t size) {
  while (end_ - begin_ < size) {
    if (begin_ == end_) begin_ = end_ = 0;
    if (capacity_ - begin_ < size && begin_ != 0) {
      std::memmove(buffer_.get(), buffer_.get() + begin_, end_ - begin_);
      end_ -= begin_;
      begin_ = 0;
    }
    if (end_ == capacity_) {
      const size_t larger = capacity_ > size / 2 ? size : 2 * capacity_;
      auto grown = std::make_unique_for_overwrite<char[]>(larger);
      std::memcpy(grown.get(), buffer_.get(), end_);
      buffer_ = std::move(grown);
      capacity_ = larger;
    }
    const size_t missing = size - (end_ - begin_);
    const size_t wanted = std::min(std::max(missing, kChunk), capacity_ - end_);
    const size_t got = source_(buffer_.get() + end_, wanted);
    if (got == 0) return false;
    end_ += got;
  }
  return true;
}

void RecordReader::Fail(const std::string& what) {
  failure_ = path_ + ": record " + std::to_string(index()) + " at offset " +
             std::to_string(offset_) + ": " + what;
  throw DataError(failure_);
}

RecordFrame FrameOf(std::string_view record) {
  RecordFrame frame;
  Store<uint64_t>(record.size(), frame.header);
  Store<uint32_t>(MaskCrc(Crc32c({frame.header, 8})), frame.header + 8);
  Store<uint32_t>(MaskCrc(Crc32c(record)), frame.footer);
  return frame;
}

}  // namespace torch_xla::data
