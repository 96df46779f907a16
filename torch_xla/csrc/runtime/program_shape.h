// Reads the shapes of a compiled program from its optimized HLO.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "runtime/client.h"

namespace torch_xla::runtime {

struct ProgramShape {
  /// The dense size in bytes of each parameter of one device's part of the program; -1 for a type
  /// that the runtime does not support.
  std::vector<int64_t> parameter_bytes;
  /// The shardings of the outputs; nothing if the program does not tell.
  std::optional<std::vector<OutputSharding>> outputs;
};

/// Reads a serialized OpSharding, which may be a tuple of them (type = 1, tuple_shardings = 5).
/// Returns nothing for one that is no OutputSharding.
std::optional<std::vector<OutputSharding>> ReadShardings(std::string_view text);
/// The dimensions of a serialized ShapeProto of an array.
std::vector<int64_t> ReadDimensions(std::string_view shape);

/// Reads a serialized HloModuleProto ("hlo") or HloModuleProtoWithConfig ("hlo_with_config").
/// Returns nothing if the text is no such message.
std::optional<ProgramShape> ReadProgramShape(std::string_view format, std::string_view hlo);

}  // namespace torch_xla::runtime
