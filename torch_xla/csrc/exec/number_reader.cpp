#include "exec/number_reader.h"

#include <cstring>

#include "lowering/kernel_choice.h"
#include "tensor/cpu_handler.h"

namespace torch_xla::lazy {
namespace {

using namespace runtime::pjrt;

constexpr const char* kTarget = "torch_xla.unpack_numbers";

size_t SizeOf(XLA_FFI_DataType type) {
  switch (type) {
    case XLA_FFI_DataType_F64:
    case XLA_FFI_DataType_S64:
      return 8;
    case XLA_FFI_DataType_F32:
      return 4;
    case XLA_FFI_DataType_BF16:
      return 2;
    default:
      return 0;
  }
}

/// Called on XLA's threads.
XLA_FFI_Error* Handler(XLA_FFI_CallFrame* frame) {
  if (!cpu::EntersExecution(frame)) return nullptr;
  int64_t next = 0;
  for (int64_t i = 0; i < frame->args.size; ++i) {
    const auto& packed = *static_cast<const XLA_FFI_Buffer*>(frame->args.args[i]);
    const size_t size = SizeOf(packed.dtype);
    if (packed.rank != 1 || size == 0 || packed.dims[0] > frame->rets.size - next) {
      return cpu::FfiError(frame, PJRT_Error_Code_INTERNAL, "not an array of numbers");
    }
    const char* from = static_cast<const char*>(packed.data);
    for (int64_t k = 0; k < packed.dims[0]; ++k, from += size) {
      std::memcpy(cpu::FfiData<void>(frame->rets.rets[next++]), from, size);
    }
  }
  return nullptr;
}

[[maybe_unused]] const bool registered = RegisterWithClient<kTarget, Handler>();

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
  if (!lowering::MayCallLibraries(platform) || CountOf(floats) + CountOf(integers) < kFewest)
    return;
  std::vector<stablehlo::Value> arrays;
  std::vector<stablehlo::Type> types;
  for (stablehlo::Value packed : {floats, integers}) {
    if (!packed.valid()) continue;
    arrays.push_back(packed);
    types.insert(types.end(), static_cast<size_t>(CountOf(packed)),
                 stablehlo::Type(packed.element(), {}));
  }
  unpacked_ = stablehlo::CustomCall(arrays[0].builder(), kTarget, arrays, types);
}

stablehlo::Value NumberReader::Float(int64_t index) const {
  return Element(unpacked_, index, floats_, index);
}

stablehlo::Value NumberReader::Integer(int64_t index) const {
  return Element(unpacked_, CountOf(floats_) + index, integers_, index);
}

}  // namespace torch_xla::lazy
