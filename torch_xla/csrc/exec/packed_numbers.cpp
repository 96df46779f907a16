#include "exec/packed_numbers.h"

#include "cpu/calls.h"
#include "cpu/choices.h"
#include "lowering/may_call.h"

namespace torch_xla::exec {
namespace {

int64_t CountOf(stablehlo::Value packed) { return packed.valid() ? packed.dims()[0] : 0; }

stablehlo::Value Element(const std::vector<stablehlo::Value>& unpacked, int64_t place,
                         stablehlo::Value packed, int64_t index) {
  return unpacked.empty() ? Unpack(packed, index) : unpacked[static_cast<size_t>(place)];
}

}  // namespace

stablehlo::Value Unpack(stablehlo::Value packed, int64_t index) {
  return stablehlo::Reshape(stablehlo::Slice(packed, {index}, {index + 1}), {});
}

NumberReader::NumberReader(std::string_view platform, stablehlo::Value floats,
                           stablehlo::Value integers)
    : floats_(floats), integers_(integers) {
  if (!lowering::MayCallLibraries(platform) ||
      CountOf(floats) + CountOf(integers) < cpu::choices::kNumbersToUnpack)
    return;
  std::vector<stablehlo::Value> arrays;
  std::vector<stablehlo::Type> types;
  for (stablehlo::Value packed : {floats, integers}) {
    if (!packed.valid()) continue;
    arrays.push_back(packed);
    types.insert(types.end(), static_cast<size_t>(CountOf(packed)),
                 stablehlo::Type(packed.element(), {}));
  }
  unpacked_ = stablehlo::CustomCall(arrays[0].builder(), cpu::kUnpackNumbersTarget, arrays, types);
}

stablehlo::Value NumberReader::Float(int64_t index) const {
  return Element(unpacked_, index, floats_, index);
}

stablehlo::Value NumberReader::Integer(int64_t index) const {
  return Element(unpacked_, CountOf(floats_) + index, integers_, index);
}

}  // namespace torch_xla::exec
