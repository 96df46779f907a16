#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "data/crc32c.h"
#include "data/errors.h"
#include "data/example.h"
#include "data/record_reader.h"

namespace torch_xla::data {
namespace {

ByteSource SourceOf(std::string bytes, size_t at_most = SIZE_MAX) {
  return [bytes = std::move(bytes), at = size_t{0}, at_most](char* to, size_t size) mutable {
    const size_t count = std::min({size, at_most, bytes.size() - at});
    std::memcpy(to, bytes.data() + at, count);
    at += count;
    return count;
  };
}

std::string Framed(const std::vector<std::string>& records) {
  std::string file;
  for (const std::string& record : records) {
    const RecordFrame frame = FrameOf(record);
    file.append(frame.header, sizeof(frame.header));
    file += record;
    file.append(frame.footer, sizeof(frame.footer));
  }
  return file;
}

std::vector<std::string> ReadAll(ByteSource source, size_t buffer_size) {
  RecordReader reader(std::move(source), "file", buffer_size);
  std::vector<std::string> records;
  while (auto record = reader.Next()) records.emplace_back(*record);
  return records;
}

std::string ErrorOf(std::string bytes, size_t buffer_size = 64) {
  try {
    ReadAll(SourceOf(std::move(bytes)), buffer_size);
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

std::string Deflated(const std::string& bytes, int window_bits) {
  z_stream stream{};
  deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, window_bits, 8, Z_DEFAULT_STRATEGY);
  std::string result(deflateBound(&stream, bytes.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(result.data());
  stream.avail_out = static_cast<uInt>(result.size());
  deflate(&stream, Z_FINISH);
  result.resize(stream.total_out);
  deflateEnd(&stream);
  return result;
}

const std::vector<std::string> kRecords = {"", "a", std::string(100, 'b'), std::string(5000, 'c'),
                                           "last"};

TEST(Crc32c, KnownAnswers) {
  // RFC 3720, B.4.
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(Crc32c(""), 0u);
}

TEST(Crc32c, PortableAgrees) {
  std::mt19937 random(0);
  std::string bytes;
  for (int size = 0; size < 100; ++size) {
    EXPECT_EQ(Crc32c(bytes), PortableCrc32c(bytes)) << size;
    bytes.push_back(static_cast<char>(random()));
  }
}

TEST(RecordReader, ReadsWhateverTheBuffers) {
  for (size_t buffer_size : {1, 16, 117, 100000}) {
    for (size_t at_most : {1, 7, 100000}) {
      EXPECT_EQ(ReadAll(SourceOf(Framed(kRecords), at_most), buffer_size), kRecords);
    }
  }
}

TEST(RecordReader, EveryTruncationIsAnError) {
  const std::string file = Framed({"first", "second"});
  for (size_t size = 1; size < file.size(); ++size) {
    if (size == 21) continue;  // the first record, whole
    const std::string record = size < 21 ? "record 0 at offset 0" : "record 1 at offset 21";
    EXPECT_NE(ErrorOf(file.substr(0, size)).find("file: " + record), std::string::npos) << size;
  }
}

TEST(RecordReader, EveryFlippedBitIsAnError) {
  const std::string file = Framed({"first", "second"});
  for (size_t bit = 0; bit < 8 * file.size(); ++bit) {
    std::string changed = file;
    changed[bit / 8] ^= static_cast<char>(1 << bit % 8);
    EXPECT_NE(ErrorOf(changed).find("CRC"), std::string::npos) << bit;
  }
}

TEST(RecordReader, AFalseLengthCostsNoMemory) {
  for (uint64_t length : {uint64_t{1} << 40, uint64_t{1} << 62, ~uint64_t{0}}) {
    std::string header(12, '\0');
    std::memcpy(header.data(), &length, 8);
    const uint32_t crc = MaskCrc(Crc32c({header.data(), 8}));
    std::memcpy(header.data() + 8, &crc, 4);
    const std::string error = ErrorOf(header + "few bytes");
    EXPECT_TRUE(error.find("truncated") != std::string::npos ||
                error.find("impossible") != std::string::npos)
        << error;
  }
}

TEST(RecordReader, AnErrorStays) {
  RecordReader reader(SourceOf("nonsense that is longer than a header"), "file", 64);
  EXPECT_THROW(reader.Next(), DataError);
  EXPECT_THROW(reader.Next(), DataError);
}

TEST(Inflate, BothFormats) {
  for (auto [compression, bits] : {std::pair(Compression::kZlib, 15), {Compression::kGzip, 31}}) {
    const std::string file = Deflated(Framed(kRecords), bits);
    for (size_t at_most : {size_t{1}, SIZE_MAX}) {
      EXPECT_EQ(ReadAll(Inflate(SourceOf(file, at_most), compression, "file"), 64), kRecords);
    }
    for (size_t size = 0; size < file.size(); ++size) {
      EXPECT_THROW(ReadAll(Inflate(SourceOf(file.substr(0, size)), compression, "file"), 64),
                   DataError);
    }
    EXPECT_THROW(ReadAll(Inflate(SourceOf(Framed(kRecords)), compression, "file"), 64), DataError);
  }
  const std::string gzip = Deflated(Framed({"one"}), 31) + Deflated(Framed({"two"}), 31);
  EXPECT_EQ(ReadAll(Inflate(SourceOf(gzip), Compression::kGzip, "file"), 64),
            (std::vector<std::string>{"one", "two"}));
  EXPECT_THROW(
      ReadAll(Inflate(SourceOf(Deflated(Framed({"one"}), 15) + "more"), Compression::kZlib, "file"),
              64),
      DataError);
}

TEST(Example, RoundTrip) {
  const Example example = {
      {"bytes", std::vector<std::string_view>{"one", "", "three"}},
      {"floats", std::vector<float>{1.5f, -0.0f, 3e38f}},
      {"integers", std::vector<int64_t>{0, -1, INT64_MIN, INT64_MAX, 300}},
      {"none", Feature()},
      {"empty", std::vector<float>()},
      {"", std::vector<int64_t>{7}},
  };
  EXPECT_EQ(ParseExample(SerializeExample(example)), example);
}

TEST(Example, ManyFeatures) {
  std::vector<std::string> names;
  for (int i = 0; i < 100; ++i) names.push_back("feature " + std::to_string(i));
  Example example;
  for (int64_t i = 0; i < 100; ++i) example.emplace_back(names[i], std::vector<int64_t>{i});
  EXPECT_EQ(ParseExample(SerializeExample(example)), example);
  // Once more, with other values: the later ones count, the order stays.
  Example others = example;
  for (auto& [name, feature] : others) feature = std::vector<float>{0.5f};
  EXPECT_EQ(ParseExample(SerializeExample(example) + SerializeExample(others)), others);
}

TEST(Example, WhatOtherWritersMayWrite) {
  // Values that are not packed, an unknown field of each wire type, and a list in two pieces.
  using namespace std::string_literals;
  const std::string integers = "\x1a\x09\x08\x01\x0a\x01\x02\x08\x03\x10"s + "\x01";  // 1, {2}, 3
  const std::string floats = "\x12\x05\x0d\x00\x00\x80\x3f"s + "\x12\x06\x0a\x04\x00\x00\x00\x40"s;
  auto delimited = [](char field, const std::string& content) {
    return std::string{static_cast<char>(field << 3 | 2), static_cast<char>(content.size())} +
           content;
  };
  const std::string unknown = "\x48\x01"s +
                              "\x49"
                              "12345678"s +
                              "\x4a\x02xy"s +
                              "\x4d"
                              "1234"s +
                              "\x4b\x48\x01\x4c"s;
  const std::string features = delimited(1, delimited(1, "i") + delimited(2, integers)) + unknown +
                               delimited(1, delimited(2, floats) + delimited(1, "f"));
  const Example expected = {{"i", std::vector<int64_t>{1, 2, 3}},
                            {"f", std::vector<float>{1.0f, 2.0f}}};
  EXPECT_EQ(ParseExample(unknown + delimited(1, features) + unknown), expected);
}

TEST(Example, NonsenseIsAnErrorOrAnExample) {
  std::mt19937 random(0);
  const std::string valid = SerializeExample({{"bytes", std::vector<std::string_view>{"one"}},
                                              {"floats", std::vector<float>{1, 2}},
                                              {"integers", std::vector<int64_t>{1, -2}}});
  int errors = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    std::string bytes = valid;
    for (int change = 0; change < 3; ++change) bytes[random() % bytes.size()] = random();
    try {
      ParseExample(bytes);
    } catch (const DataError& error) {
      ++errors;
      EXPECT_EQ(std::string(error.what()).find("at byte "), 0u);
    }
  }
  EXPECT_GT(errors, 1000);
}

TEST(Example, DeepGroupsAreAnError) {
  EXPECT_THROW(ParseExample(std::string(100000, '\x4b')), DataError);
}

}  // namespace
}  // namespace torch_xla::data
