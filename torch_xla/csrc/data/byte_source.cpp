#include "data/byte_source.h"

#include <zlib.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <new>
#include <utility>

#include "data/errors.h"

namespace torch_xla::data {
namespace {

constexpr size_t kInputSize = 256 << 10;
constexpr int kMaxWindowBits = 15;
constexpr int kGzipWrapper = 16;  // added to the window bits

class Inflater {
 public:
  Inflater(ByteSource source, Compression compression, std::string path)
      : source_(std::move(source)),
        gzip_(compression == Compression::kGzip),
        path_(std::move(path)),
        input_(std::make_unique_for_overwrite<char[]>(kInputSize)) {
    if (inflateInit2(&stream_, kMaxWindowBits + (gzip_ ? kGzipWrapper : 0)) != Z_OK) {
      throw std::bad_alloc();
    }
  }
  ~Inflater() { inflateEnd(&stream_); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  size_t Read(char* to, size_t size) {
    const auto room = static_cast<uInt>(std::min<size_t>(size, std::numeric_limits<uInt>::max()));
    stream_.next_out = reinterpret_cast<Bytef*>(to);
    stream_.avail_out = room;
    while (stream_.avail_out == room) {
      if (stream_.avail_in == 0 && !Refill()) {
        if (between_members_) return 0;
        Fail("is truncated");
      }
      if (between_members_ && !StartMember()) return 0;
      const int status = inflate(&stream_, Z_NO_FLUSH);
      if (status == Z_STREAM_END) {
        between_members_ = true;
      } else if (status == Z_MEM_ERROR) {
        throw std::bad_alloc();
      } else if (status != Z_OK && status != Z_BUF_ERROR) {
        Fail("is corrupted or has another compression", stream_.msg);
      }
    }
    return room - stream_.avail_out;
  }

 private:
  bool Refill() {
    stream_.next_in = reinterpret_cast<Bytef*>(input_.get());
    stream_.avail_in = static_cast<uInt>(source_(input_.get(), kInputSize));
    read_ += stream_.avail_in;
    return stream_.avail_in != 0;
  }

  /// A gzip file may consist of several members.
  bool StartMember() {
    if (!gzip_) Fail("goes on after the end of its compressed data");
    between_members_ = false;
    return inflateReset(&stream_) == Z_OK;
  }

  [[noreturn]] void Fail(const std::string& what, const char* detail = nullptr) {
    throw DataError(path_ + ": the " + (gzip_ ? "GZIP" : "ZLIB") + " stream " + what +
                    " at compressed offset " + std::to_string(read_ - stream_.avail_in) +
                    (detail ? ": " + std::string(detail) : std::string()));
  }

  ByteSource source_;
  bool gzip_;
  std::string path_;
  std::unique_ptr<char[]> input_;
  z_stream stream_{};
  uint64_t read_ = 0;
  bool between_members_ = false;
};

}  // namespace

ByteSource Inflate(ByteSource source, Compression compression, std::string path) {
  if (compression == Compression::kNone) return source;
  auto inflater = std::make_shared<Inflater>(std::move(source), compression, std::move(path));
  return [inflater](char* to, size_t size) { return inflater->Read(to, size); };
}

}  // namespace torch_xla::data
