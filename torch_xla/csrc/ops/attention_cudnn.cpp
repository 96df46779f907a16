#include "ops/attention_cudnn.h"

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "lazy/device.h"
#include "lowering/row_major.h"
#include "runtime/client.h"
#include "runtime/platform.h"
#include "stablehlo/text.h"

namespace torch_xla::lowering {
namespace {

using stablehlo::Cat;
using stablehlo::Type;

std::atomic<bool> has_attention{false};

[[maybe_unused]] const bool registered = [] {
  lazy::OnClientCreated([](runtime::Client& client) {
    constexpr double kLeastCapability = 8.0;
    bool all = runtime::HasCudnn(client.platform());
    for (const runtime::DeviceInfo& device : client.devices()) {
      const auto found = device.attributes.find("compute_capability");
      const auto* text =
          found == device.attributes.end() ? nullptr : std::get_if<std::string>(&found->second);
      all = all && text && std::atof(text->c_str()) >= kLeastCapability;
    }
    has_attention = all;
  });
  return true;
}();

/// [N, heads, length, width] as [N, length, heads, width], and back.
Value SwapHeads(Value x) { return stablehlo::Transpose(x, {0, 2, 1, 3}); }

/// How a product takes its operands: a dimension that is summed over and the one of heads, of each.
std::string Product(const char* name, int left, int left_heads, int right, int right_heads) {
  return Cat(", \"", name, "_dot_dimension_numbers\": {\"lhs_contracting_dimensions\": [\"", left,
             "\"], \"rhs_contracting_dimensions\": [\"", right,
             "\"], \"lhs_batch_dimensions\": [\"0\", \"", left_heads,
             "\"], \"rhs_batch_dimensions\": [\"0\", \"", right_heads, "\"]}");
}

std::string Digits(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", number);
  return text;
}

/// XLA's CudnnfMHABackendConfig as JSON, for arrays [N, length, heads, width].
std::string Config(Value query, Value key, const AttentionCall& call, const std::string& products) {
  const double scale = call.scale ? *call.scale : 1 / std::sqrt(static_cast<double>(query.dim(3)));
  const bool bf16 = query.element() == stablehlo::ElementType::kBF16;
  return Cat(
      R"({"operation_queue_id": "0", "cudnn_fmha_backend_config": {"algorithm": {"algo_id": "0", )",
      R"("math_type": "TENSOR_OP_MATH", "tuning_knobs": {"17": "1", "24": "0"}, )",
      R"("is_cudnn_frontend": true, "workspace_size": "0"}, "fmha_scale": )", Digits(scale),
      R"(, "intermediate_tensor_shape": {"element_type": ")", bf16 ? "BF16" : "F16",
      R"(", "dimensions": [")", query.dim(0), R"(", ")", query.dim(1), R"(", ")", query.dim(2),
      R"(", ")", key.dim(2), R"("], "layout": {"minor_to_major": ["3", "2", "1", "0"]}, )",
      R"("is_dynamic_dimension": [false, false, false, false]}, "is_flash_attention": true, )",
      R"("mask_type": ")", call.is_causal ? "CAUSAL" : "NO_MASK", "\"", products,
      R"(, "dropout_rate": 0.0, "seed": 42, "max_seg_per_batch": 1}})");
}

std::vector<Value> Call(const char* target, const std::vector<Value>& operands,
                        std::vector<Type> results, std::string config) {
  constexpr int kOpaqueConfig = 2;
  stablehlo::CustomCallOptions options{.api_version = kOpaqueConfig,
                                       .backend_config = std::move(config)};
  results.emplace_back(stablehlo::ElementType::kU8, Dims{0});  // what it computes in
  for (Value operand : operands) options.operand_layouts.push_back(RowMajor(operand.rank()));
  for (const Type& type : results) {
    options.result_layouts.push_back(type.rank() == 4 ? HeadsInside() : RowMajor(type.rank()));
  }
  std::vector<Value> found =
      stablehlo::CustomCall(operands[0].builder(), target, operands, results, options);
  found.pop_back();
  return found;
}

}  // namespace

bool HasCudnnAttention() { return has_attention.load(std::memory_order_relaxed); }

bool FitsCudnnAttention(const AttentionShape& shape, bool has_mask, bool is_causal) {
  constexpr int64_t kStep = 8, kWidest = 128;
  const bool is_half = shape.element == stablehlo::ElementType::kBF16 ||
                       shape.element == stablehlo::ElementType::kF16;
  return HasCudnnAttention() && is_half && !has_mask && shape.width % kStep == 0 &&
         shape.width <= kWidest && (!is_causal || shape.queries == shape.keys);
}

std::vector<Value> CallCudnnAttention(const std::vector<Value>& operands,
                                      const AttentionCall& call) {
  Value query = operands[0], key = operands[1], value = operands[2];
  const Type logsumexp(stablehlo::ElementType::kF32, {query.dim(0), query.dim(1), query.dim(2)});
  const std::string products = Product("bmm1", 3, 2, 3, 2) + Product("bmm2", 3, 1, 1, 2);
  return Call("__cudnn$fmhaSoftmax", {SwapHeads(query), SwapHeads(key), SwapHeads(value)},
              {query.type(), logsumexp}, Config(query, key, call, products));
}

std::vector<Value> CallCudnnAttentionBackward(const std::vector<Value>& operands,
                                              const AttentionCall& call) {
  Value gradient = operands[0], query = operands[1], key = operands[2], value = operands[3],
        output = operands[4], logsumexp = operands[5];
  const std::string products =
      Product("bmm1_grad_gemm1", 2, 1, 1, 2) + Product("bmm1_grad_gemm2", 3, 1, 1, 2) +
      Product("bmm2_grad_gemm1", 2, 1, 1, 2) + Product("bmm2_grad_gemm2", 3, 2, 3, 2);
  return Call("__cudnn$fmhaSoftmaxBackward",
              {SwapHeads(query), SwapHeads(key), SwapHeads(value), logsumexp, SwapHeads(gradient),
               SwapHeads(output)},
              {query.type(), key.type(), value.type()}, Config(query, key, call, products));
}

}  // namespace torch_xla::lowering
