// A libFuzzer target: any bytes are records, or an error; never a crash: `make fuzz`.
#include <algorithm>
#include <cstring>
#include <string>

#include "data/errors.h"
#include "data/example.h"
#include "data/record_reader.h"

using namespace torch_xla::data;

namespace {

void ReadAll(std::string_view bytes, Compression compression, size_t buffer_size) {
  auto source = [bytes, at = size_t{0}](char* to, size_t size) mutable {
    const size_t count = std::min(size, bytes.size() - at);
    std::memcpy(to, bytes.data() + at, count);
    at += count;
    return count;
  };
  try {
    RecordReader reader(Inflate(source, compression, "file"), "file", buffer_size);
    // A small compressed file may have any number of empty records.
    for (int i = 0; i < 1000; ++i) {
      const auto record = reader.Next();
      if (!record) return;
      ParseExample(*record);
    }
  } catch (const DataError&) {
  }
}

/// What parses must survive being written and parsed again.
void Parse(std::string_view bytes) {
  Example example;
  try {
    example = ParseExample(bytes);
  } catch (const DataError&) {
    return;
  }
  const std::string again = SerializeExample(example);
  if (SerializeExample(ParseExample(again)) != again) __builtin_trap();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 2, size - 2);
  switch (data[0] % 5) {
    case 0:
      ReadAll(bytes, Compression::kNone, data[1]);
      break;
    case 1:
      ReadAll(bytes, Compression::kZlib, data[1]);
      break;
    case 2:
      ReadAll(bytes, Compression::kGzip, data[1]);
      break;
    case 3: {
      // Behind valid checksums, which no mutation gets past.
      std::string file;
      for (size_t at = 0; at <= bytes.size(); at += data[1] + 1) {
        const std::string_view record = bytes.substr(at, data[1] + 1);
        const RecordFrame frame = FrameOf(record);
        file.append(frame.header, sizeof(frame.header)).append(record);
        file.append(frame.footer, sizeof(frame.footer));
      }
      file.resize(file.size() - std::min<size_t>(file.size(), data[0] / 5 % 20));
      ReadAll(file, Compression::kNone, data[1]);
      break;
    }
    default:
      Parse(bytes);
  }
  return 0;
}
