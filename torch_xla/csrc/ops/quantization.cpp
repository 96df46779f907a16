// Fake quantization: rounds floats to the values that a scale and a zero point can represent.
#include "XLALowerings.h"
#include "lowering/elementwise.h"
#include "stablehlo/arithmetic.h"

namespace torch_xla::lowering::aten {
namespace {

/// The quantized and dequantized value, and whether it is within the bounds. `scale` and
/// `zero_point` have the element type of x.
std::vector<Value> FakeQuantize(LoweringContext& cx, Value x, Value scale, Value zero_point,
                                bool round_sum, int64_t low, int64_t high) {
  Value steps = x * (1 / scale);
  Value level =
      round_sum ? RoundNearestEven(steps + zero_point) : RoundNearestEven(steps) + zero_point;
  Value inside = And(level >= low, level <= high);
  Value bounded = Select(level >= low, Minimum(level, high), low);  // of a NaN, too
  return {Convert((bounded - zero_point) * scale, cx.output_element(0)), inside};
}

}  // namespace

std::vector<Value> fake_quantize_per_tensor_affine_cachemask(LoweringContext& cx, Value self,
                                                             const Number& scale,
                                                             const Number& zero_point,
                                                             int64_t quant_min, int64_t quant_max) {
  auto [x] = ToCompute(cx, self);
  return FakeQuantize(cx, x, scale.Like(x), zero_point.Like(x), /*round_sum=*/false, quant_min,
                      quant_max);
}

std::vector<Value> _fake_quantize_per_tensor_affine_cachemask_tensor_qparams(
    LoweringContext& cx, Value self, Value scale, Value zero_point, Value fake_quant_enabled,
    int64_t quant_min, int64_t quant_max) {
  auto [x, step] = ToCompute(cx, self, Reshape(scale, {}));
  auto [zero] = ToCompute(cx, Reshape(zero_point, {}));
  std::vector<Value> results = FakeQuantize(cx, x, step, zero, false, quant_min, quant_max);
  Value enabled = BroadcastTo(NotEqual(Reshape(fake_quant_enabled, {}), 0), self.dims());
  return {Select(enabled, results[0], self), Or(results[1], Not(enabled))};
}

std::vector<Value> fake_quantize_per_channel_affine_cachemask(LoweringContext& cx, Value self,
                                                              Value scale, Value zero_point,
                                                              int64_t axis, int64_t quant_min,
                                                              int64_t quant_max) {
  auto [x] = ToCompute(cx, self);
  const Dims channel = {WrapDim(axis, self.rank())};
  auto spread = [&](Value v) { return BroadcastInDim(Convert(v, x.element()), x.dims(), channel); };
  return FakeQuantize(cx, x, spread(scale), spread(zero_point),
                      runtime::IsFloat(zero_point.element()), quant_min, quant_max);
}

}  // namespace torch_xla::lowering::aten
