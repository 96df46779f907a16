#include "ops/attention_cudnn.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <map>
#include <mutex>
#include <sstream>
#include <string>

#include "cpu/calls.h"
#include "cpu/choices.h"
#include "distributed/sharding_writer.h"
#include "lowering/elementwise.h"
#include "lowering/row_major.h"
#include "runtime/client.h"
#include "runtime/custom_partitioner.h"
#include "runtime/platform.h"
#include "stablehlo/arithmetic.h"
#include "stablehlo/constants.h"
#include "stablehlo/text.h"
#include "tensor/device.h"

namespace torch_xla::lowering {
namespace {

using stablehlo::Cat;
using stablehlo::Type;

std::atomic<bool> has_attention{false}, may_partition{false};

// Targets that no compiler knows: the partitioner replaces these calls.
constexpr const char *kForward = "torch_xla.attention", *kBackward = "torch_xla.attention_backward";

template <bool backward>
runtime::CallOnDevice OnDevice(const runtime::PartitionedCall& call);

[[maybe_unused]] const bool registered = [] {
  tensor::OnClientCreated([](runtime::Client& client) {
    constexpr double kLeastCapability = 8.0;
    bool all = runtime::HasCudnn(client.platform());
    for (const runtime::DeviceInfo& device : client.devices()) {
      const auto found = device.attributes.find("compute_capability");
      const auto* text =
          found == device.attributes.end() ? nullptr : std::get_if<std::string>(&found->second);
      all = all && text && std::atof(text->c_str()) >= kLeastCapability;
    }
    has_attention = all;
    static std::once_flag once;  // for all clients
    if (!all) return;
    std::call_once(once, [&] {
      may_partition = runtime::RegisterPartitioner(client, kForward, OnDevice<false>) &&
                      runtime::RegisterPartitioner(client, kBackward, OnDevice<true>);
    });
  });
  return true;
}();

/// A product's dimension numbers as JSON: `left` and `right` are the contraction dimensions.
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

/// The mask in the form that cuDNN takes: [N or 1, heads or 1, queries, keys].
Value AllPairs(Value mask, Value query, Value key) {
  Dims dims{1, 1, query.dim(2), key.dim(2)};
  if (mask.rank() == 4) std::copy_n(mask.dims().begin(), 2, dims.begin());
  return stablehlo::BroadcastTo(mask, dims);
}

/// `x` [N, heads, queries, width] with zeros for queries that may attend to nothing, since the
/// kernel does not support a row of infinities in the mask.
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
/// In the layout of the products that make it.
Operand Made(Value x) { return {x, HeadsInside()}; }
/// Keys and values. With few queries these are a cache, which is kept from call to call and should
/// not be copied into another layout.
Operand Kept(Value x, Value query) {
  return query.dim(2) <= cpu::choices::kFewQueries ? Plain(x) : Made(x);
}

std::vector<Value> Call(const char* target, const std::vector<Operand>& operands,
                        std::vector<Type> results, std::string config) {
  constexpr int kOpaqueConfig = 2;
  stablehlo::CustomCallOptions options{.api_version = kOpaqueConfig,
                                       .backend_config = std::move(config)};
  results.emplace_back(stablehlo::ElementType::kU8, Dims{0});  // the workspace
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

/// The dimensions of the operands and then the results of a call, each as a letter of the sharding
/// rule. Devices may partition i (the batch) and j (the heads).
std::vector<std::string> Letters(const std::vector<Dims>& operands, bool backward) {
  const std::string query = "ijkl", key = "ijml", rows = "ijk";
  std::vector<std::string> letters{query, key, key};
  if (backward) letters = {query, query, key, key, query, rows};
  if (operands.size() > letters.size()) {
    const Dims& mask = operands.back();
    letters.emplace_back("km");
    // A dimension of size 1 is shared by all batches or heads.
    std::string all;
    char other = 'n';
    for (size_t d = 0; d + 2 < mask.size(); ++d) {
      all += mask[d] == operands[1][d] ? query[d] : other++;
    }
    letters.back().insert(0, all);
  }
  for (const std::string& result :
       backward ? std::vector{query, key, key} : std::vector{query, rows}) {
    letters.push_back(result);
  }
  return letters;
}

std::string ShardingRule(const std::vector<Value>& operands, bool backward) {
  std::vector<Dims> dims;
  for (Value operand : operands) dims.push_back(operand.dims());
  std::map<char, int64_t> sizes;
  std::string arrays, factors;
  const std::vector<std::string> letters = Letters(dims, backward);
  for (size_t i = 0; i < letters.size(); ++i) {
    arrays += i == operands.size() ? ")->([" : i > 0 ? ", [" : "[";
    for (size_t d = 0; d < letters[i].size(); ++d) {
      arrays += Cat(d > 0 ? ", " : "", std::string(1, letters[i][d]));
      if (i < operands.size()) sizes[letters[i][d]] = dims[i][d];
    }
    arrays += "]";
  }
  for (const auto& [letter, size] : sizes) {
    factors += Cat(factors.empty() ? "" : ", ", std::string(1, letter), "=", size);
  }
  return Cat("sdy.sharding_rule = #sdy.op_sharding_rule<(", arrays, ") {", factors,
             "} need_replication={k, l, m}, custom>");
}

std::vector<Value> CallPartitioned(const std::vector<Value>& operands, const AttentionCall& call,
                                   const std::vector<Type>& results, bool backward) {
  stablehlo::CustomCallOptions options{.api_version = 1};
  options.backend_config =
      Cat(operands[1].element() == stablehlo::ElementType::kBF16 ? "bf16 " : "f16 ",
          call.is_causal ? "causal " : "all ", call.scale ? Digits(*call.scale) : "");
  options.attributes = ShardingRule(operands, backward);
  return stablehlo::CustomCall(operands[0].builder(), backward ? kBackward : kForward, operands,
                               results, options);
}

/// The sharding of an array with these letters, if `parts` is the sharding of the [i, j] parts.
runtime::OutputSharding Spread(const runtime::OutputSharding& parts, const std::string& letters) {
  const bool has_i = letters.find('i') != std::string::npos,
             has_j = letters.find('j') != std::string::npos;
  runtime::OutputSharding sharding;
  if (parts.tiles.empty() || (!has_i && !has_j)) return sharding;
  for (const char letter : letters) {
    sharding.tiles.push_back(letter == 'i' ? parts.tiles[0] : letter == 'j' ? parts.tiles[1] : 1);
  }
  sharding.devices = parts.devices;
  if (has_i) return sharding;
  // Put the devices with the same j next to each other.
  const size_t rows = parts.tiles[0], columns = parts.tiles[1],
               copies = parts.devices.size() / rows / columns;
  for (size_t n = 0; n < parts.devices.size(); ++n) {
    const size_t copy = n % copies, i = n / copies % rows, j = n / copies / rows;
    sharding.devices[n] = parts.devices[(i * columns + j) * copies + copy];
  }
  return sharding;
}

template <bool backward>
runtime::CallOnDevice OnDevice(const runtime::PartitionedCall& call) {
  std::istringstream config{std::string(call.config)};
  std::string element, causal;
  AttentionCall attention{false, std::nullopt};
  config >> element >> causal;
  attention.is_causal = causal == "causal";
  if (double scale = 0; config >> scale) attention.scale = scale;
  // If another dimension is partitioned, each device computes the whole.
  runtime::OutputSharding parts = call.result;
  if (parts.tiles.size() != 4 || parts.tiles[2] != 1 || parts.tiles[3] != 1) parts = {};
  const std::vector<std::string> letters = Letters(call.operands, backward);
  runtime::CallOnDevice made;
  stablehlo::Builder builder;
  std::vector<Value> operands;
  for (size_t i = 0; i < letters.size(); ++i) {
    runtime::OutputSharding sharding = Spread(parts, letters[i]);
    if (i >= call.operands.size()) {
      made.results.push_back(std::move(sharding));
      continue;
    }
    Type type(letters[i] == "ijk" ? stablehlo::ElementType::kF32
              : element == "bf16" ? stablehlo::ElementType::kBF16
                                  : stablehlo::ElementType::kF16,
              call.operands[i]);
    for (size_t d = 0; d < sharding.tiles.size(); ++d) {
      type.dims[d] = (type.dims[d] + sharding.tiles[d] - 1) / sharding.tiles[d];
    }
    operands.push_back(builder.Parameter(type));
    made.operands.push_back(std::move(sharding));
  }
  made.module = builder.Finish(backward ? CallCudnnAttentionBackward(operands, attention)
                                        : CallCudnnAttention(operands, attention));
  return made;
}

}  // namespace

bool HasCudnnAttention() { return has_attention.load(std::memory_order_relaxed); }

bool PartitionsCudnnAttention() {
  return may_partition.load(std::memory_order_relaxed) &&
         distributed::ShardingWriter::Current().shardy();
}

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
  if (query.builder().partitions() > 1) {
    return CallPartitioned(operands, call, {query.type(), logsumexp}, /*backward=*/false);
  }
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
  if (query.builder().partitions() > 1) {
    return CallPartitioned(operands, call, {query.type(), key.type(), value.type()},
                           /*backward=*/true);
  }
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
