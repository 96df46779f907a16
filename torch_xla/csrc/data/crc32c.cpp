#include "data/crc32c.h"

#include <array>
#include <cstddef>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace torch_xla::data {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // bit-reversed

// kTables[k][b] is the effect of byte `b` on the CRC if k bytes follow it.
using Tables = std::array<std::array<uint32_t, 256>, 8>;

constexpr Tables MakeTables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (size_t k = 1; k < tables.size(); ++k) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t previous = tables[k - 1][byte];
      tables[k][byte] = (previous >> 8) ^ tables[0][previous & 0xff];
    }
  }
  return tables;
}

constexpr Tables kTables = MakeTables();

uint32_t Byte(uint32_t crc, unsigned char byte) {
  return (crc >> 8) ^ kTables[0][(crc ^ byte) & 0xff];
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t HardwareCrc32c(std::string_view data) {
  uint64_t crc = 0xffffffff;
  const char* at = data.data();
  const char* end = at + data.size();
  for (; end - at >= 8; at += 8) {
    uint64_t word;
    std::memcpy(&word, at, 8);
    crc = _mm_crc32_u64(crc, word);
  }
  auto low = static_cast<uint32_t>(crc);
  for (; at != end; ++at) low = _mm_crc32_u8(low, static_cast<unsigned char>(*at));
  return ~low;
}
#endif

}  // namespace

uint32_t PortableCrc32c(std::string_view data) {
  uint32_t crc = 0xffffffff;
  const auto* at = reinterpret_cast<const unsigned char*>(data.data());
  const unsigned char* end = at + data.size();
  for (; end - at >= 8; at += 8) {
    // Assembles words from single bytes, so that the host's byte order does not matter.
    const uint32_t low =
        crc ^ (at[0] | at[1] << 8 | at[2] << 16 | static_cast<uint32_t>(at[3]) << 24);
    crc = kTables[7][low & 0xff] ^ kTables[6][low >> 8 & 0xff] ^ kTables[5][low >> 16 & 0xff] ^
          kTables[4][low >> 24] ^ kTables[3][at[4]] ^ kTables[2][at[5]] ^ kTables[1][at[6]] ^
          kTables[0][at[7]];
  }
  for (; at != end; ++at) crc = Byte(crc, *at);
  return ~crc;
}

uint32_t Crc32c(std::string_view data) {
#if defined(__x86_64__)
  static const bool hardware = __builtin_cpu_supports("sse4.2");
  if (hardware) return HardwareCrc32c(data);
#endif
  return PortableCrc32c(data);
}

}  // namespace torch_xla::data
