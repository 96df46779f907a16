#include "ops/attention_cudnn.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>

#include "cpu/calls.h"
#include "lowering/elementwise.h"
#include "lowering/row_major.h"
#include "runtime/client.h"
#include "runtime/platform.h"
#include "stablehlo/arithmetic.h"
#include "stablehlo/constants.h"
#include "stablehlo/text.h"
#include "tensor/device.h"

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

/// How a product takes its operands: the dimension of each that is summed over.
std::string Product(const char* name, int left, int right) {
  return Cat(
      ", \"", name, "_dot_dimension_numbers\": {\"lhs_contracting_dimensions\": [\"", left,
      "\"], \"rhs_contracting_dimensions\": [\"", right,
      "\"], \"lhs_batch_dimensions\": [\"0\", \"1\"], \"rhs_batch_dimensions\": [\"0\", \"1\"]}");
}

std::string Digits(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", number);
  return text;
}

/// XLA's CudnnfMHABackendConfig as JSON, for arrays [N, heads, length, width].
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

/// The mask [N or 1, heads or 1, queries, keys], as cuDNN takes it.
Value AllPairs(Value mask, Value query, Value key) {
  Dims dims{1, 1, query.dim(2), key.dim(2)};
  if (mask.rank() == 4) std::copy_n(mask.dims().begin(), 2, dims.begin());
  return stablehlo::BroadcastTo(mask, dims);
}

/// `x` [N, heads, queries, width], zeros of the queries that may attend to nothing: the kernel
/// knows no infinite mask.
Value WhereAttends(Value mask, Value x) {
  Value largest = stablehlo::Reduce(mask, {3}, stablehlo::ReduceOp::kMax);
  Value attends = KeepDims(largest > -std::numeric_limits<double>::infinity(), mask.dims(), {3});
  return stablehlo::Select(stablehlo::BroadcastTo(attends, x.dims()), x, 0);
}

Value Finite(Value mask) {
  Value least = stablehlo::MinFinite(mask.builder(), mask.element());
  return stablehlo::Maximum(mask, stablehlo::BroadcastTo(least, mask.dims()));
}

struct Operand {
  Value value;
  Dims layout;
};

Operand Plain(Value x) { return {x, RowMajor(x.rank())}; }
/// As products of matrices make it.
Operand Made(Value x) { return {x, HeadsInside()}; }
/// Keys and values: where few queries attend to them they are kept from call to call, and not to be
/// laid out anew.
Operand Kept(Value x, Value query) { return query.dim(2) <= cpu::kFewQueries ? Plain(x) : Made(x); }

std::vector<Value> Call(const char* target, const std::vector<Operand>& operands,
                        std::vector<Type> results, std::string config) {
  constexpr int kOpaqueConfig = 2;
  stablehlo::CustomCallOptions options{.api_version = kOpaqueConfig,
                                       .backend_config = std::move(config)};
  results.emplace_back(stablehlo::ElementType::kU8, Dims{0});  // what it computes in
  std::vector<Value> values;
  for (const auto& [value, layout] : operands) {
    values.push_back(value);
    options.operand_layouts.push_back(layout);
  }
  for (const Type& type : results) {
    options.result_layouts.push_back(type.rank() == 4 ? HeadsInside() : RowMajor(type.rank()));
  }
  std::vector<Value> found =
      stablehlo::CustomCall(values[0].builder(), target, values, results, options);
  found.pop_back();
  return found;
}

}  // namespace

bool HasCudnnAttention() { return has_attention.load(std::memory_order_relaxed); }

bool FitsCudnnAttention(const AttentionShape& shape, bool is_causal) {
  constexpr int64_t kStep = 8, kWidest = 128;
  const bool is_half = shape.element == stablehlo::ElementType::kBF16 ||
                       shape.element == stablehlo::ElementType::kF16;
  return HasCudnnAttention() && is_half && shape.width % kStep == 0 && shape.width <= kWidest &&
         (!is_causal || shape.queries == shape.keys);
}

std::vector<Value> CallCudnnAttention(const std::vector<Value>& operands,
                                      const AttentionCall& call) {
  Value query = operands[0], key = operands[1], value = operands[2];
  const Type logsumexp(stablehlo::ElementType::kF32, {query.dim(0), query.dim(1), query.dim(2)});
  const std::string config =
      Config(query, key, call, Product("bmm1", 3, 3) + Product("bmm2", 3, 2));
  std::vector<Operand> inputs{Made(query), Kept(key, query), Kept(value, query)};
  if (operands.size() == 3) {
    return Call("__cudnn$fmhaSoftmax", inputs, {query.type(), logsumexp}, config);
  }
  Value mask = AllPairs(operands[3], query, key);
  inputs.push_back(Plain(Finite(mask)));
  std::vector<Value> results =
      Call("__cudnn$fmhaScaleBiasSoftmax", inputs, {query.type(), logsumexp}, config);
  results[0] = WhereAttends(mask, results[0]);
  return results;
}

std::vector<Value> CallCudnnAttentionBackward(const std::vector<Value>& operands,
                                              const AttentionCall& call) {
  Value gradient = operands[0], query = operands[1], key = operands[2], value = operands[3],
        output = operands[4], logsumexp = operands[5];
  const std::string products = Product("bmm1_grad_gemm1", 2, 2) + Product("bmm1_grad_gemm2", 3, 2) +
                               Product("bmm2_grad_gemm1", 2, 2) + Product("bmm2_grad_gemm2", 3, 3);
  const char* target = "__cudnn$fmhaSoftmaxBackward";
  std::vector<Operand> inputs{Made(query), Made(key), Made(value), Plain(logsumexp)};
  if (operands.size() == 7) {
    target = "__cudnn$fmhaScaleBiasSoftmaxBackward";
    Value mask = AllPairs(operands[6], query, key);
    inputs.push_back(Made(WhereAttends(mask, gradient)));
    inputs.push_back(Plain(Finite(mask)));
  } else {
    inputs.push_back(Made(gradient));
  }
  inputs.push_back(Made(output));
  return Call(target, inputs, {query.type(), key.type(), value.type()},
              Config(query, key, call, products));
}

}  // namespace torch_xla::lowering
