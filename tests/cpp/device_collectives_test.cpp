// Collectives as the devices carry them out: four replicas in this process against what ATen makes
// of their inputs.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "distributed/device_lowering.h"
#include "lowering/context.h"
#include "runtime/client.h"
#include "runtime/plugin.h"

namespace torch_xla::distributed {
namespace {

using at::Tensor;
using lowering::LowerToDevices;
using stablehlo::Value;
using Tensors = std::vector<Tensor>;

constexpr int kReplicas = 4;

runtime::Client* FourDevices() {
  static std::unique_ptr<runtime::Client> client = []() -> std::unique_ptr<runtime::Client> {
    const char* library = std::getenv("PJRT_CPU_LIBRARY_PATH");
    if (library == nullptr) return nullptr;
    runtime::AddPlugin("COLLECTIVES_TEST", {library, {{"cpu_device_count", int64_t{kReplicas}}}});
    return runtime::Client::Create("COLLECTIVES_TEST");
  }();
  return client.get();
}

/// From the inputs of a replica's group, in its order, and its place in it.
using Reference = std::function<Tensor(const Tensors& group, size_t place)>;

struct Case {
  std::string name;
  Collective collective;
  Tensors inputs;  // by rank
  Reference expected;
  bool by_halves = false;
};

/// Different on every replica; the bits of integers too.
Tensors Inputs(at::ScalarType dtype) {
  Tensors inputs;
  for (int rank = 0; rank < kReplicas; ++rank) {
    Tensor numbers = (at::arange(32, at::kDouble) * (rank + 2)).remainder(11) - 4;
    if (dtype == at::kBool) numbers = numbers.remainder(3).gt(0).to(at::kDouble);
    inputs.push_back(numbers.to(dtype).reshape({8, 4}).contiguous());
  }
  return inputs;
}

Tensor Fold(const Tensors& group, const std::function<Tensor(const Tensor&, const Tensor&)>& op) {
  Tensor result = group[0];
  for (size_t i = 1; i < group.size(); ++i) result = op(result, group[i]);
  return result.to(group[0].scalar_type());
}

Tensor Reduced(const Tensors& group, Reduction reduction) {
  return Fold(group, [&](const Tensor& a, const Tensor& b) -> Tensor {
    switch (reduction) {
      case Reduction::kSum:
        return a + b;
      case Reduction::kMul:
        return a * b;
      case Reduction::kAnd:
        return a.bitwise_and(b);
      case Reduction::kOr:
        return a.bitwise_or(b);
      case Reduction::kXor:
        return a.bitwise_xor(b);
      case Reduction::kMin:
        return at::minimum(a, b);
      default:
        return at::maximum(a, b);
    }
  });
}

std::vector<Case> Cases() {
  const Groups pairs = {{0, 2}, {3, 1}};
  std::vector<Case> cases;
  for (at::ScalarType dtype :
       {at::kFloat, at::kBFloat16, at::kInt, at::kByte, at::kLong, at::kBool, at::kComplexFloat}) {
    const Tensors inputs = Inputs(dtype);
    const bool ordered = dtype != at::kComplexFloat, bits = c10::isIntegralType(dtype, true);
    const std::string suffix = std::string(" ") + c10::toString(dtype);
    for (const Groups& groups : {Groups{}, pairs}) {
      const int64_t size = groups.empty() ? kReplicas : 2;
      for (int r = 0; r < 7; ++r) {
        const auto reduction = static_cast<Reduction>(r);
        const bool compares = reduction == Reduction::kMin || reduction == Reduction::kMax;
        if ((IsBitwise(reduction) && !bits) || (compares && !ordered)) continue;
        const std::string name = Name(reduction) + suffix;
        cases.push_back({"all_reduce " + name,
                         {CollectiveKind::kAllReduce, reduction, groups},
                         inputs,
                         [=](const Tensors& group, size_t) { return Reduced(group, reduction); }});
        cases.push_back({"reduce_scatter " + name,
                         {CollectiveKind::kReduceScatter, reduction, groups, {1, size}},
                         inputs,
                         [=](const Tensors& group, size_t place) {
                           return Reduced(group, reduction).chunk(size, 1)[place];
                         }});
      }
      cases.push_back({"all_gather" + suffix,
                       {CollectiveKind::kAllGather, Reduction::kSum, groups, {1, size}},
                       inputs,
                       [](const Tensors& group, size_t) { return at::cat(group, 1); }});
      cases.push_back({"all_to_all" + suffix,
                       {CollectiveKind::kAllToAll, Reduction::kSum, groups, {0, 1, size}},
                       inputs,
                       [=](const Tensors& group, size_t place) {
                         Tensors parts;
                         for (const Tensor& x : group) parts.push_back(x.chunk(size, 0)[place]);
                         return at::cat(parts, 1);
                       }});
    }
    cases.push_back({"broadcast" + suffix,
                     {CollectiveKind::kBroadcast, Reduction::kSum, {}, {2}},
                     inputs,
                     [](const Tensors& group, size_t) { return group[2]; }});
    cases.push_back({"collective_permute" + suffix,
                     {CollectiveKind::kPermute, Reduction::kSum, {}, {0, 1, 1, 3, 3, 0}},
                     inputs,
                     [](const Tensors& group, size_t place) {
                       const int source[] = {3, 0, -1, 1};
                       return source[place] < 0 ? at::zeros_like(group[0]) : group[source[place]];
                     }});
  }
  // As TPUs have them. Of the wide ones the upper halves differ, or are all -1.
  const size_t count = cases.size();
  for (size_t i = 0; i < count; ++i) {
    Case c = cases[i];
    const at::ScalarType dtype = c.inputs[0].scalar_type();
    if (dtype != at::kLong && dtype != at::kComplexFloat) continue;
    c.by_halves = true;
    for (const int64_t factor : {int64_t{1}, (int64_t{1} << 33) + 5, int64_t{-7}}) {
      Case scaled = c;
      scaled.name += " by halves, times " + std::to_string(factor);
      for (Tensor& x : scaled.inputs) x = factor == -7 ? x.abs() * factor - 1 : x * factor;
      cases.push_back(std::move(scaled));
      if (dtype != at::kLong) break;
    }
  }
  // What a sum would lose.
  Tensors special;
  for (int rank = 0; rank < kReplicas; ++rank) {
    special.push_back(at::tensor({-0.0f, std::numeric_limits<float>::infinity(), 1.0f * rank}));
  }
  cases.push_back({"broadcast of -0 and inf",
                   {CollectiveKind::kBroadcast, Reduction::kSum, {}, {1}},
                   special,
                   [](const Tensors& group, size_t) { return group[1]; }});
  return cases;
}

/// The members of a rank's group.
std::vector<int64_t> GroupOf(const Case& c, int64_t rank) {
  return c.collective.GroupOf(rank, kReplicas);
}

TEST(DeviceCollectivesTest, GiveWhatTheHostGives) {
  runtime::Client* client = FourDevices();
  if (client == nullptr) GTEST_SKIP() << "PJRT_CPU_LIBRARY_PATH is not set";
  const std::vector<Case> cases = Cases();
  stablehlo::Builder builder;
  std::vector<Value> outputs;
  for (const Case& c : cases) {
    const Value x = builder.Parameter(
        {lowering::NaturalType(c.inputs[0].scalar_type()), c.inputs[0].sizes().vec()});
    outputs.push_back(LowerToDevices(c.collective, {x}, c.by_halves)[0]);
  }
  runtime::CompileOptions options;
  options.num_replicas = kReplicas;
  options.overrides.emplace_back("xla_backend_optimization_level", "0");
  auto program = client->Compile(builder.Finish(outputs), options);
  std::vector<std::unique_ptr<runtime::Buffer>> buffers;
  std::vector<std::vector<runtime::Buffer*>> arguments(kReplicas);
  for (int rank = 0; rank < kReplicas; ++rank) {
    for (const Case& c : cases) {
      const Tensor& x = c.inputs[rank];
      buffers.push_back(client->BufferFromHost(x.const_data_ptr(),
                                               lowering::NaturalType(x.scalar_type()),
                                               {x.sizes().data(), x.sizes().size()}, rank));
      arguments[rank].push_back(buffers.back().get());
    }
  }
  auto results = program->ExecuteSharded(arguments);
  for (int rank = 0; rank < kReplicas; ++rank) {
    for (size_t i = 0; i < cases.size(); ++i) {
      const Case& c = cases[i];
      const std::vector<int64_t> members = GroupOf(c, rank);
      Tensors group;
      size_t place = 0;
      for (size_t k = 0; k < members.size(); ++k) {
        group.push_back(c.inputs[members[k]]);
        if (members[k] == rank) place = k;
      }
      const Tensor expected = c.expected(group, place).contiguous();
      Tensor actual = at::empty_like(expected);
      ASSERT_EQ(results[rank].outputs[i]->bytes(), expected.nbytes()) << c.name;
      results[rank].outputs[i]->CopyToHost(actual.mutable_data_ptr()).Await();
      const bool rounds = expected.scalar_type() == at::kBFloat16;
      EXPECT_TRUE(rounds ? at::allclose(actual, expected, 2e-2, 2e-2) : at::equal(actual, expected))
          << c.name << " on replica " << rank << ":\n"
          << actual << "\nexpected\n"
          << expected;
      if (expected.is_floating_point()) {
        EXPECT_TRUE(at::equal(actual.signbit(), expected.signbit())) << c.name;
      }
    }
  }
}

}  // namespace
}  // namespace torch_xla::distributed
