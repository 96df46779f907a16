// Reads the records of a TFRecord file: length (8 bytes), its CRC (4), data, the data's CRC (4).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "data/byte_source.h"

namespace torch_xla::data {

class RecordReader {
 public:
  /// `path` is used in errors. `buffer_size` is the number of bytes to read ahead. For a longer
  /// record the buffer grows as bytes arrive, so that a wrong length costs no memory.
  RecordReader(ByteSource source, std::string path, size_t buffer_size);

  /// The next record, which is valid until the next call; nullopt at the end of the file. Throws
  /// DataError if the file is corrupted or truncated, and then in every later call as well.
  std::optional<std::string_view> Next();

  const std::string& path() const { return path_; }
  /// The offset of the last record in the (decompressed) file, and the number of records before it.
  uint64_t offset() const { return offset_; }
  uint64_t index() const { return count_ - 1; }

 private:
  bool Fetch(size_t size);
  [[noreturn]] void Fail(const std::string& what);

  ByteSource source_;
  std::string path_;
  size_t capacity_;
  std::unique_ptr<char[]> buffer_;
  size_t begin_ = 0, end_ = 0;  // the bytes in the buffer that are not returned yet
  uint64_t position_ = 0;       // position of begin_ in the file
  uint64_t offset_ = 0, count_ = 0;
  std::string failure_;
};

/// The bytes in a file before and after a record's data.
struct RecordFrame {
  char header[12];
  char footer[4];
};
RecordFrame FrameOf(std::string_view record);

}  // namespace torch_xla::data
