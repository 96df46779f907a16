// tf.train.Example: named lists of byte strings, floats or integers, as a protocol buffer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace torch_xla::data {

/// Byte strings are views of the record that they were parsed from. monostate is an empty feature.
using Feature = std::variant<std::monostate, std::vector<std::string_view>, std::vector<float>,
                             std::vector<int64_t>>;

/// Ordered by the first occurrence of each name; names are unique.
using Example = std::vector<std::pair<std::string_view, Feature>>;

/// Parses a serialized Example. Unknown fields are skipped. Throws DataError ("at byte N: ...") if
/// the bytes are no valid Example.
Example ParseExample(std::string_view record);

std::string SerializeExample(const Example& example);

}  // namespace torch_xla::data
