#include "ops/normalization_library.h"

#include <array>

#include "XLAOps.h"
#include "cpu/ffi_parts.h"
#include "cpu/ffi_tensor.h"
#include "cpu/ffi_threads.h"
#include "lowering/kernel_choice.h"
#include "lowering/library_call.h"
#include "stablehlo/text.h"
#include "tensor/cpu_handler.h"

namespace torch_xla::lowering {

using namespace cpu;

namespace {

using namespace runtime::pjrt;
using stablehlo::Convert;

constexpr const char* kTarget = "torch_xla.cpu_normalization";
constexpr const char* kBackwardTarget = "torch_xla.cpu_normalization_backward";

/// Which operands, results or rectifiers there are; each call has an order of its own.
using Flags = std::array<bool, 6>;

/// The buffers of a call, one after the other, and what its attributes say.
class Call {
 public:
  explicit Call(const XLA_FFI_CallFrame& frame) : frame_(frame) {
    const auto words = FfiAttributes(frame.attrs).List("form");
    form_ = {static_cast<NormalizedGroups>(words[0]), words[1], words[2], words[3], words[4]};
    for (size_t i = 0; i < has_.size(); ++i) has_[i] = words[5 + i] != 0;
    num_parts_ =
        cpu::FfiParts(frame, form_.num_groups() * form_.group_size(), 1 << 15, form_.num_groups());
  }

  const NormalizedForm& form() const { return form_; }
  bool has(size_t i) const { return has_[i]; }

  template <typename T = float>
  const T* Argument() {
    return FfiData<const T>(frame_.args.args[argument_++]);
  }
  template <typename T = float>
  const T* ArgumentIf(bool exists) {
    return exists ? Argument<T>() : nullptr;
  }
  template <typename T = float>
  T* ResultIf(bool exists) {
    return exists ? FfiData<T>(frame_.rets.rets[result_++]) : nullptr;
  }

  int64_t num_parts() const { return num_parts_; }
  /// Calls work(part, its first group, the one behind its last).
  template <typename Work>
  void InParts(const Work& work) const {
    RunParts(frame_, num_parts_, form_.num_groups(), work);
  }

 private:
  const XLA_FFI_CallFrame& frame_;
  NormalizedForm form_;
  Flags has_;
  int64_t num_parts_;
  int64_t argument_ = 0, result_ = 0;
};

template <typename T>
void Forward(const XLA_FFI_CallFrame& frame) {
  Call call(frame);
  const T* input = call.Argument<T>();
  const double eps = *call.Argument<double>();
  const float *weight = call.ArgumentIf(call.has(0)), *bias = call.ArgumentIf(call.has(1));
  RunningStatistics running;
  running.mean = call.ArgumentIf(call.has(2));
  running.variance = call.ArgumentIf(call.has(3));
  if (running.mean || running.variance) running.momentum = *call.Argument<double>();
  const bool rectifies = call.has(4);
  const T* addend = call.ArgumentIf<T>(call.has(5));
  T* output = call.ResultIf<T>(true);
  float *mean = call.ResultIf(true), *inverse_std = call.ResultIf(true);
  running.new_mean = call.ResultIf(call.has(2));
  running.new_variance = call.ResultIf(call.has(3));
  const Normalization<T> work{call.form(), eps,         input,   weight,    bias,  output,
                              mean,        inverse_std, running, rectifies, addend};
  call.InParts([&](int64_t, int64_t begin, int64_t end) { work.Run(begin, end); });
}

template <typename T>
void Backward(const XLA_FFI_CallFrame& frame) {
  Call call(frame);
  const T *grad = call.Argument<T>(), *input = call.Argument<T>();
  const float *mean = call.Argument(), *inverse_std = call.Argument();
  const float* weight = call.ArgumentIf(call.has(3));
  const T* rectified = call.ArgumentIf<T>(call.has(4));
  const NormalizationBackward<T> work{
      call.form(), grad, input, mean, inverse_std, weight, call.ResultIf<T>(call.has(0)),
      rectified};
  const std::array<float*, 2> results{call.ResultIf(call.has(1)), call.ResultIf(call.has(2))};
  const bool of_parameters = results[0] || results[1];
  const int64_t count = of_parameters ? call.form().num_parameters() : 0;
  std::vector<float> sums(2 * count * call.num_parts());
  call.InParts([&](int64_t part, int64_t begin, int64_t end) {
    float* of_weight = of_parameters ? sums.data() + 2 * count * part : nullptr;
    work.Run(begin, end, of_weight, of_weight + count);
  });
  for (size_t i = 0; i < 2; ++i) {
    if (!results[i]) continue;
    for (int64_t j = 0; j < count; ++j) {
      float sum = 0;
      for (int64_t part = 0; part < call.num_parts(); ++part) {
        sum += sums[(2 * part + static_cast<int64_t>(i)) * count + j];
      }
      results[i][j] = sum;
    }
  }
}

void ForwardOf(const XLA_FFI_CallFrame& frame) {
  IsFfiFloat(frame.args.args[0]) ? Forward<float>(frame) : Forward<c10::BFloat16>(frame);
}
void BackwardOf(const XLA_FFI_CallFrame& frame) {
  IsFfiFloat(frame.args.args[0]) ? Backward<float>(frame) : Backward<c10::BFloat16>(frame);
}

[[maybe_unused]] const bool registered =
    lazy::RegisterWithClient<kTarget, cpu::Handler<ForwardOf>>() &&
    lazy::RegisterWithClient<kBackwardTarget, cpu::Handler<BackwardOf>>();

std::string Attributes(const NormalizedForm& form, const Flags& has) {
  Dims words{static_cast<int64_t>(form.kind), form.rows, form.groups, form.channels, form.length};
  words.insert(words.end(), has.begin(), has.end());
  return "form = " + stablehlo::I64Array(words);
}

stablehlo::Type InFloat(const stablehlo::Type& type) { return {ElementType::kF32, type.dims}; }

}  // namespace

bool CallsNormalization(const LoweringContext& cx, Value input, const NormalizedForm& form,
                        const std::vector<std::optional<Value>>& others) {
  auto fits = [&](const Value& value) {
    return value.element() == ElementType::kF32 || value.element() == input.element();
  };
  if (input.element() != ElementType::kF32 && input.element() != ElementType::kBF16) return false;
  if (input.type().num_elements() == 0) return false;
  for (const auto& other : others) {
    if (other && !fits(*other)) return false;
    // Else the composition says what is wrong.
    if (other && other->rank() == 1 && form.is_batch() && other->dim(0) != form.channels) {
      return false;
    }
  }
  static constexpr std::string_view kNames[] = {"layer_norm", "group_norm", "batch_norm"};
  return ChooseKernel(cx, kNames[static_cast<int64_t>(form.kind)], {},
                      {Kernel::kStableHlo, Kernel::kLibrary}) == Kernel::kLibrary;
}

Rectifier FindRectifier(LoweringContext& cx) {
  const ir::Node& node = cx.node();
  Rectifier rectifier{cx.NextSoleReader(node), std::nullopt};
  // Of bfloat16 there would be a rounding less.
  if (const ir::Node* add = rectifier.relu;
      add && &add->op() == &ir::ops::add_Tensor && cx.output_element() == ElementType::kF32) {
    const auto& operands = add->operands();
    const ir::Value& addend = operands[operands[0].node.get() == &node ? 1 : 0];
    if (!IsNumber(operands[2], 1) || addend.shape() != node.shape(0) || !cx.IsLowered(addend)) {
      return {};
    }
    rectifier = {cx.NextSoleReader(*add), cx.Lowered(addend)};
  }
  if (!rectifier.relu || &rectifier.relu->op() != &ir::ops::relu) return {};
  return rectifier;
}

RectifiedGrad FindRectifiedGrad(LoweringContext& cx, Value grad_output) {
  const ir::Value& value = cx.node().operands()[0];
  const ir::Node& gate = *value.node;
  if (&gate.op() != &ir::ops::threshold_backward || cx.SoleReader(gate) != &cx.node() ||
      !IsNumber(gate.operands()[2], 0)) {
    return {grad_output};
  }
  const ir::Value &grad = gate.operands()[0], &rectified = gate.operands()[1];
  for (const ir::Value* operand : {&grad, &rectified}) {
    if (operand->shape() != value.shape() || !cx.IsLowered(*operand)) return {grad_output};
  }
  return {cx.Lowered(grad), cx.Lowered(rectified)};
}

std::vector<Value> CallNormalization(LoweringContext& cx, Value input, const NormalizedForm& form,
                                     const std::optional<Value>& weight,
                                     const std::optional<Value>& bias, Value eps,
                                     const RunningValues& running, const Rectifier& rectifier) {
  std::vector<Value> operands{input, eps};
  std::vector<stablehlo::Type> types{cx.output_type(0), InFloat(cx.output_type(1)),
                                     InFloat(cx.output_type(2))};
  std::vector<stablehlo::OutputOperandAlias> aliases;
  for (const auto& parameter : {weight, bias}) {
    if (parameter) operands.push_back(Convert(*parameter, ElementType::kF32));
  }
  for (const auto& statistic : {running.mean, running.variance}) {
    if (!statistic) continue;
    aliases.push_back({static_cast<int64_t>(types.size()), static_cast<int64_t>(operands.size())});
    operands.push_back(Convert(*statistic, ElementType::kF32));
    types.push_back(operands.back().type());
  }
  if (!aliases.empty()) operands.push_back(*running.momentum);
  if (rectifier.addend) operands.push_back(*rectifier.addend);
  std::vector<Value> results =
      CallLibrary(kTarget, operands, types,
                  Attributes(form, {weight.has_value(), bias.has_value(), running.mean.has_value(),
                                    running.variance.has_value(), rectifier.relu != nullptr,
                                    rectifier.addend.has_value()}),
                  aliases);
  for (size_t i = 0; i < results.size(); ++i)
    results[i] = Convert(results[i], cx.output_element(i));
  return results;
}

std::vector<Value> CallNormalizationBackward(LoweringContext& cx, const RectifiedGrad& grad_output,
                                             Value input, Value mean, Value inverse_std,
                                             const NormalizedForm& form,
                                             const std::optional<Value>& weight) {
  const std::optional<Value>& rectified = grad_output.rectified;
  std::vector<Value> operands{Convert(grad_output.grad, input.element()), input};
  for (Value moment : {mean, inverse_std}) {
    operands.push_back(Convert(moment, ElementType::kF32));
  }
  if (weight) operands.push_back(Convert(*weight, ElementType::kF32));
  if (rectified) operands.push_back(Convert(*rectified, input.element()));
  Flags has{false, false, false, weight.has_value(), rectified.has_value()};
  std::vector<stablehlo::Type> types;
  for (size_t i = 0; i < 3; ++i) {
    has[i] = static_cast<bool>(cx.node().shape(i));
    if (has[i]) types.push_back(i == 0 ? cx.output_type(i) : InFloat(cx.output_type(i)));
  }
  const std::vector<Value> results =
      CallLibrary(kBackwardTarget, operands, types, Attributes(form, has));
  std::vector<Value> gradients(3);
  for (size_t i = 0, next = 0; i < 3; ++i) {
    if (has[i]) gradients[i] = Convert(results[next++], cx.output_element(i));
  }
  return gradients;
}

}  // namespace torch_xla::lowering
