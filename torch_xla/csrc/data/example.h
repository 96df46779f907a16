// tf.train.Example: named lists of byte strings, floats or integers, as a protocol buffer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace torch_xla::data {

/// Byte strings are looks at the record that they were parsed from. monostate: an empty feature.
using Feature = std::variant<std::monostate, std::vector<std::string_view>, std::vector<float>,
                             std::vector<int64_t>>;

/// In the order in which the names first occur; each name once.
using Example = std::vector<std::pair<std::string_view, Feature>>;

/// Parses a serialized Example. Fields that it does not know are skipped. Throws DataError
/// ("at byte N: ...") where the bytes are no valid Example.
Example ParseExample(std::string_view record);

std::string SerializeExample(const Example& example);

}  // namespace torch_xla::data
