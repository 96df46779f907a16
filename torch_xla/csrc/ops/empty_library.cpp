#include "ops/empty_library.h"

#include "lowering/library_call.h"
#include "stablehlo/constants.h"
#include "stablehlo/ops.h"
#include "stablehlo/text.h"
#include "tensor/cpu_handler.h"

namespace torch_xla::lowering {

using namespace cpu;

namespace {

constexpr const char* kTarget = "torch_xla.cpu_empty";

void Handle(const runtime::pjrt::XLA_FFI_CallFrame&) {}

[[maybe_unused]] const bool registered = lazy::RegisterWithClient<kTarget, cpu::Handler<Handle>>();

}  // namespace

Value Empty(stablehlo::Builder& builder, const stablehlo::Type& type) {
  // Of calls that are equal XLA makes one, and a copy for each that writes there.
  const std::string number =
      "number = " + stablehlo::I64Array(Dims{static_cast<int64_t>(builder.num_ops())});
  const std::string text = BothForms(
      {},
      [&](stablehlo::Builder& form, const std::vector<Value>&) {
        return std::vector<Value>{stablehlo::Constant(form, 0, type)};
      },
      [&](stablehlo::Builder& form, const std::vector<Value>&) {
        stablehlo::CustomCallOptions options;
        options.backend_config = number;
        return stablehlo::CustomCall(form, kTarget, {}, {type}, options);
      });
  return builder.Call(builder.AddFunctions(text), std::span<const Value>())[0];
}

}  // namespace torch_xla::lowering
