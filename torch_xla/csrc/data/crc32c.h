// CRC-32C (Castagnoli), the checksum of TFRecord files.
#pragma once

#include <cstdint>
#include <string_view>

namespace torch_xla::data {

uint32_t Crc32c(std::string_view data);

/// The CRC as TFRecord files store it: a CRC over bytes that contain CRCs would be weak.
inline uint32_t MaskCrc(uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8u; }

/// The implementation without the processor's CRC instruction; public for tests.
uint32_t PortableCrc32c(std::string_view data);

}  // namespace torch_xla::data
