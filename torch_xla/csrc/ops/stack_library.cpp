#include "ops/stack_library.h"

#include <cstring>

#include "cpu/ffi_parts.h"
#include "cpu/ffi_tensor.h"
#include "lowering/library_call.h"
#include "stablehlo/text.h"
#include "tensor/cpu_handler.h"

namespace torch_xla::lowering {

using namespace cpu;

namespace {

using namespace runtime::pjrt;

constexpr const char* kStackTarget = "torch_xla.cpu_stack";
constexpr const char* kUnbindTarget = "torch_xla.cpu_unbind";

/// Copies each part from or to its place in the whole.
template <bool kStack>
void Handle(const XLA_FFI_CallFrame& frame) {
  const int64_t bytes = FfiAttributes(frame.attrs).List("bytes")[0];
  const int64_t count = kStack ? frame.args.size : frame.rets.size;
  InParts(frame, count, bytes, 1 << 18, [&](int64_t, int64_t begin, int64_t end) {
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

[[maybe_unused]] const bool registered =
    lazy::RegisterWithClient<kStackTarget, cpu::Handler<Handle<true>>>() &&
    lazy::RegisterWithClient<kUnbindTarget, cpu::Handler<Handle<false>>>();

std::string BytesOf(const stablehlo::Type& part) {
  const auto bytes = static_cast<int64_t>(part.num_elements() * runtime::ByteWidth(part.element));
  return "bytes = " + stablehlo::I64Array(Dims{bytes});
}

}  // namespace

Value Stack(const std::vector<Value>& parts) {
  const stablehlo::Type& part = parts[0].type();
  const auto count = static_cast<int64_t>(parts.size());
  Dims whole = part.dims;
  whole.insert(whole.begin(), count);
  const std::string text = BothForms(
      std::vector<stablehlo::Type>(parts.size(), part),
      [&](stablehlo::Builder&, const std::vector<Value>& arguments) {
        Dims one = whole;
        one[0] = 1;
        std::vector<Value> rows;
        for (Value argument : arguments) rows.push_back(stablehlo::Reshape(argument, one));
        return std::vector<Value>{stablehlo::Concatenate(rows, 0)};
      },
      [&](stablehlo::Builder&, const std::vector<Value>& arguments) {
        return CallLibrary(kStackTarget, arguments, {{part.element, whole}}, BytesOf(part));
      });
  stablehlo::Builder& builder = parts[0].builder();
  return builder.Call(builder.AddFunctions(text), parts)[0];
}

std::vector<Value> Unbind(Value x) {
  const int64_t count = x.dim(0);
  Dims dims = x.dims();
  dims.erase(dims.begin());
  const stablehlo::Type part(x.element(), dims);
  const std::string text = BothForms(
      {x.type()},
      [&](stablehlo::Builder&, const std::vector<Value>& arguments) {
        std::vector<Value> parts;
        Dims starts(x.rank(), 0), limits = x.dims();
        for (int64_t i = 0; i < count; ++i) {
          starts[0] = i;
          limits[0] = i + 1;
          parts.push_back(stablehlo::Reshape(stablehlo::Slice(arguments[0], starts, limits), dims));
        }
        return parts;
      },
      [&](stablehlo::Builder&, const std::vector<Value>& arguments) {
        return CallLibrary(kUnbindTarget, arguments, std::vector<stablehlo::Type>(count, part),
                           BytesOf(part));
      });
  stablehlo::Builder& builder = x.builder();
  return builder.Call(builder.AddFunctions(text), std::vector<Value>{x});
}

}  // namespace torch_xla::lowering
