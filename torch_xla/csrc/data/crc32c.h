// CRC-32C (Castagnoli), the checksum of TFRecord files.
#pragma once

#include <cstdint>
#include <string_view>

namespace torch_xla::data {

uint32_t Crc32c(std::string_view data);

/// As TFRecord files store it: a CRC over bytes that have CRCs in them would be weak.
inline uint32_t MaskCrc(uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8u; }

/// Without the processor's instruction for it; exposed to tests.
uint32_t PortableCrc32c(std::string_view data);

}  // namespace torch_xla::data
