// What a compiled program takes, read out of its optimized HLO.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace torch_xla::runtime {

/// The dense bytes of each parameter of one device's part of the program, from a serialized
/// HloModuleProto ("hlo") or HloModuleProtoWithConfig ("hlo_with_config"). -1 for a parameter of a
/// type that the runtime does not carry, nothing where the text is not such a message.
std::optional<std::vector<int64_t>> ParameterBytes(std::string_view format, std::string_view hlo);

}  // namespace torch_xla::runtime
