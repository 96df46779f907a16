// Joins equal arrays to one array, and takes it apart. XLA's kernel that joins them has a branch
// for each array. XLA also fuses each part with its users at an offset of its own, so that the
// kernels of equal layers are all different and are all compiled.
#include <c10/util/Exception.h>

#include <cstring>

#include "cpu/calls.h"
#include "cpu/ffi_parts.h"
#include "cpu/ffi_tensor.h"
#include "cpu/handlers.h"

namespace torch_xla::cpu {
namespace {

using namespace runtime::pjrt;

/// Copies each part from or to its place in the whole.
template <bool kStack>
void Handle(const XLA_FFI_CallFrame& frame) {
  const int64_t bytes = CallOf<StackCall>(frame).bytes;
  const int64_t count = kStack ? frame.args.size : frame.rets.size;
  InParts(frame, count, bytes * choices::kFloat / 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if constexpr (kStack) {
        std::memcpy(FfiData<char>(frame.rets.rets[0]) + i * bytes,
                    FfiData<char>(frame.args.args[i]), bytes);
      } else {
        std::memcpy(FfiData<char>(frame.rets.rets[i]),
                    FfiData<char>(frame.args.args[0]) + i * bytes, bytes);
      }
    }
  });
}

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

}  // namespace

void RunEmpty(const XLA_FFI_CallFrame&) {}
void RunStack(const XLA_FFI_CallFrame& frame) { Handle<true>(frame); }
void RunUnbind(const XLA_FFI_CallFrame& frame) { Handle<false>(frame); }

void RunUnpackNumbers(const XLA_FFI_CallFrame& frame) {
  int64_t next = 0;
  for (int64_t i = 0; i < frame.args.size; ++i) {
    const auto& packed = *static_cast<const XLA_FFI_Buffer*>(frame.args.args[i]);
    const size_t size = SizeOf(packed.dtype);
    TORCH_INTERNAL_ASSERT(packed.rank == 1 && size > 0 && packed.dims[0] <= frame.rets.size - next,
                          "not an array of numbers");
    const char* from = static_cast<const char*>(packed.data);
    for (int64_t k = 0; k < packed.dims[0]; ++k, from += size) {
      std::memcpy(FfiData<void>(frame.rets.rets[next++]), from, size);
    }
  }
}

}  // namespace torch_xla::cpu
