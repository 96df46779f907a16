// What a compiled program takes, read out of its optimized HLO.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "runtime/client.h"

namespace torch_xla::runtime {

struct ProgramShape {
  /// The dense bytes of each parameter of one device's part of the program; -1 for a parameter of
  /// a type that the runtime does not carry.
  std::vector<int64_t> parameter_bytes;
  /// How the outputs lie on the devices; nothing where the program does not tell.
  std::optional<std::vector<OutputSharding>> outputs;
};

/// From a serialized HloModuleProto ("hlo") or HloModuleProtoWithConfig ("hlo_with_config");
/// nothing where the text is not such a message.
std::optional<ProgramShape> ReadProgramShape(std::string_view format, std::string_view hlo);

}  // namespace torch_xla::runtime
