// Sources of bytes that are read piece by piece.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

namespace torch_xla::data {

/// Writes up to `size` bytes to `to` and returns their number; 0 at the end. May throw.
using ByteSource = std::function<size_t(char* to, size_t size)>;

enum class Compression { kNone, kZlib, kGzip };

/// The decompressed bytes of `source`. Errors name `path` and the offset in the compressed bytes.
ByteSource Inflate(ByteSource source, Compression compression, std::string path);

}  // namespace torch_xla::data
