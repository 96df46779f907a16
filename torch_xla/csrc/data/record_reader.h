// The records of a TFRecord file: length (8 bytes), its CRC (4), data, the data's CRC (4).
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
  /// `path` is for errors. `buffer_size`: how much to read ahead; a longer record makes the
  /// buffer grow as its bytes arrive, so that a false length costs no memory.
  RecordReader(ByteSource source, std::string path, size_t buffer_size);

  /// The next record, valid until the next call; nullopt at the end of the file. Throws
  /// DataError where the file is corrupted or truncated, every time from then on.
  std::optional<std::string_view> Next();

  const std::string& path() const { return path_; }
  /// Where in the (decompressed) file the last record begins, and how many came before it.
  uint64_t offset() const { return offset_; }
  uint64_t index() const { return count_ - 1; }

 private:
  bool Fetch(size_t size);
  [[noreturn]] void Fail(const std::string& what);

  ByteSource source_;
  std::string path_;
  size_t capacity_;
  std::unique_ptr<char[]> buffer_;
  size_t begin_ = 0, end_ = 0;  // of what is in the buffer and not yet given
  uint64_t position_ = 0;       // of begin_ in the file
  uint64_t offset_ = 0, count_ = 0;
  std::string failure_;
};

/// What comes before a record's data in a file, and after it.
struct RecordFrame {
  char header[12];
  char footer[4];
};
RecordFrame FrameOf(std::string_view record);

}  // namespace torch_xla::data
