// Ops through PyTorch's C++ API, on CPU and xla tensors: equal results, by our own lowering
// (its xla:: counter moved) and not by the CPU (no aten:: counter did).
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "aten/index_check.h"
#include "debug/metrics.h"
#include "exec/cut_log.h"
#include "exec/executor.h"

namespace torch_xla {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;
/// Runs an op; may change its inputs, which are compared too.
using Op = std::function<Tensors(Tensors& in)>;

const at::Device kXla(at::kXLA, 0);

int64_t Count(const std::string& name) {
  debug::Counter* counter = debug::FindCounter(name);
  return counter ? counter->value() : 0;
}

std::map<std::string, int64_t> CpuFallbacks() {
  std::map<std::string, int64_t> counts;
  for (const std::string& name : debug::CounterNames()) {
    if (name.starts_with("aten::")) counts[name] = Count(name);
  }
  return counts;
}

std::string Text(const Tensor& tensor) {
  std::ostringstream out;
  out << tensor;
  return out.str();
}

void ExpectClose(const Tensor& actual, const Tensor& expected, const std::string& what) {
  ASSERT_EQ(actual.defined(), expected.defined()) << what;
  if (!expected.defined()) return;
  EXPECT_EQ(actual.device(), kXla) << what;
  EXPECT_EQ(actual.scalar_type(), expected.scalar_type()) << what;
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  Tensor cpu = actual.detach().cpu();
  const bool close = expected.is_floating_point() || expected.is_complex()
                         ? at::allclose(cpu, expected.detach(), 1e-4, 1e-5, /*equal_nan=*/true)
                         : at::equal(cpu, expected);
  EXPECT_TRUE(close) << what << ": expected\n" << Text(expected) << "\ngot\n" << Text(cpu);
}

Tensors CopyTo(const Tensors& tensors, at::Device device, bool grad = false) {
  Tensors copies;
  for (const Tensor& tensor : tensors) {
    Tensor copy = tensor.clone().to(device);
    copies.push_back(grad && copy.is_floating_point() ? copy.requires_grad_() : copy);
  }
  return copies;
}

/// Checks one call. `counter`: the op that must have been lowered.
void Check(const std::string& counter, const Tensors& inputs, const Op& op) {
  Tensors cpu = CopyTo(inputs, at::kCPU), xla = CopyTo(inputs, kXla);
  Tensors expected = op(cpu);
  const int64_t lowered = Count(counter);
  const auto fallbacks = CpuFallbacks();
  Tensors actual = op(xla);
  exec::SyncDevice(0, /*wait=*/false);
  EXPECT_GT(Count(counter), lowered) << counter;
  EXPECT_EQ(CpuFallbacks(), fallbacks) << counter;
  ASSERT_EQ(actual.size(), expected.size()) << counter;
  for (size_t i = 0; i < expected.size(); ++i) {
    ExpectClose(actual[i], expected[i], counter + ", result " + std::to_string(i));
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    ExpectClose(xla[i], cpu[i], counter + ", argument " + std::to_string(i));
  }
}

/// The same for the gradients of the sum of all results; `counter`: of the backward op.
void CheckGradients(const std::string& counter, const Tensors& inputs, const Op& op) {
  auto backward = [&](at::Device device) {
    Tensors in = CopyTo(inputs, device, /*grad=*/true);
    Tensor sum;
    for (const Tensor& result : op(in)) {
      if (!result.requires_grad()) continue;
      // Not plain sums, whose gradients are all alike.
      Tensor weight = at::arange(result.numel(), result.options()).view(result.sizes()) / 7;
      Tensor part = (result * weight.detach()).sum();
      sum = sum.defined() ? sum + part : part;
    }
    sum.backward();
    Tensors gradients;
    for (const Tensor& tensor : in) {
      gradients.push_back(tensor.is_leaf() && tensor.requires_grad() ? tensor.grad() : Tensor());
    }
    return gradients;
  };
  Tensors expected = backward(at::kCPU);
  const int64_t lowered = Count(counter);
  const auto fallbacks = CpuFallbacks();
  Tensors actual = backward(kXla);
  exec::SyncDevice(0, /*wait=*/false);
  EXPECT_GT(Count(counter), lowered) << counter;
  EXPECT_EQ(CpuFallbacks(), fallbacks) << counter;
  for (size_t i = 0; i < expected.size(); ++i) {
    ExpectClose(actual[i], expected[i], counter + ", gradient " + std::to_string(i));
  }
}

class OpTest : public testing::Test {
 protected:
  void SetUp() override { at::manual_seed(7); }
};

TEST_F(OpTest, Add) {
  Check("xla::add", {at::rand({2, 3}), at::rand({3})},
        [](Tensors& in) { return Tensors{at::add(in[0], in[1], 2.5)}; });
}

TEST_F(OpTest, AddInPlace) {
  Check("xla::add", {at::rand({2, 3}), at::rand({3})},
        [](Tensors& in) { return Tensors{in[0].add_(in[1], 3)}; });
}

TEST_F(OpTest, AddOut) {
  Check("xla::add", {at::rand({2, 3}), at::rand({3}), at::empty({0})},
        [](Tensors& in) { return Tensors{at::add_out(in[2], in[0], in[1])}; });
}

TEST_F(OpTest, AddPromotesIntegers) {
  Check("xla::add", {at::arange(3), at::rand({3})},
        [](Tensors& in) { return Tensors{in[0] + in[1], in[0] + 1, in[0] + 1.5}; });
}

TEST_F(OpTest, SubMulDiv) {
  Check("xla::div", {at::rand({4}), at::rand({4}) + 1}, [](Tensors& in) {
    return Tensors{in[0] - in[1], in[0] * in[1], in[0] / in[1], 2 / in[1], in[0].div_(3)};
  });
}

TEST_F(OpTest, DivRounded) {
  Check("xla::div", {at::randn({5}) * 9, at::rand({5}) + 1}, [](Tensors& in) {
    return Tensors{at::div(in[0], in[1], "floor"), at::div(in[0], in[1], "trunc")};
  });
}

TEST_F(OpTest, Remainder) {
  Check("xla::remainder", {at::arange(-4, 5)},
        [](Tensors& in) { return Tensors{at::remainder(in[0], 3), at::remainder(in[0], -3)}; });
}

TEST_F(OpTest, Pow) {
  Check("xla::pow", {at::rand({4}) + 0.5, at::randn({4})}, [](Tensors& in) {
    return Tensors{at::pow(in[0], 3), at::pow(in[0], in[1]), at::pow(2, in[1])};
  });
}

TEST_F(OpTest, Unary) {
  Check("xla::erf", {at::randn({6})}, [](Tensors& in) {
    const Tensor& x = in[0];
    return Tensors{at::exp(x),     at::tanh(x),  at::sin(x),   at::erf(x),  at::neg(x),
                   at::sigmoid(x), at::floor(x), at::round(x), at::sign(x), at::expm1(x)};
  });
}

TEST_F(OpTest, UnaryInPlace) {
  Check("xla::sqrt", {at::rand({6})},
        [](Tensors& in) { return Tensors{in[0].sqrt_().log_().exp_()}; });
}

TEST_F(OpTest, UnaryOut) {
  Check("xla::rsqrt", {at::rand({6}) + 1, at::empty({6})},
        [](Tensors& in) { return Tensors{at::rsqrt_out(in[1], in[0])}; });
}

TEST_F(OpTest, Compare) {
  Check("xla::lt", {at::arange(4), at::full({4}, 2)}, [](Tensors& in) {
    return Tensors{at::lt(in[0], in[1]), at::ge(in[0], 2), at::eq(in[0], in[1]), in[0] != in[1]};
  });
}

TEST_F(OpTest, Bitwise) {
  Check("xla::bitwise_xor", {at::arange(8), at::full({8}, 5)}, [](Tensors& in) {
    return Tensors{in[0] & in[1], in[0] | in[1], in[0] ^ in[1], at::bitwise_not(in[0])};
  });
}

TEST_F(OpTest, MaskedFill) {
  Check("xla::masked_fill", {at::randn({2, 3})},
        [](Tensors& in) { return Tensors{in[0].masked_fill_(in[0] > 0, -2.5)}; });
}

TEST_F(OpTest, Clamp) {
  Check("xla::clamp", {at::randn({6})},
        [](Tensors& in) { return Tensors{at::clamp(in[0], -0.5, 0.25), in[0].clamp_(-1)}; });
}

TEST_F(OpTest, Lerp) {
  Check("xla::lerp", {at::rand({4}), at::rand({4})}, [](Tensors& in) {
    return Tensors{at::lerp(in[0], in[1], 0.3), in[0].lerp_(in[1], in[1])};
  });
}

TEST_F(OpTest, AddcmulAddcdiv) {
  Check("xla::addcdiv", {at::rand({4}), at::rand({4}), at::rand({4}) + 1}, [](Tensors& in) {
    return Tensors{at::addcmul(in[0], in[1], in[2], 0.5), in[0].addcdiv_(in[1], in[2], -2)};
  });
}

TEST_F(OpTest, LeakyRelu) {
  Op op = [](Tensors& in) { return Tensors{at::leaky_relu(in[0], 0.2)}; };
  Check("xla::leaky_relu", {at::randn({6})}, op);
  CheckGradients("xla::leaky_relu_backward", {at::randn({6})}, op);
}

TEST_F(OpTest, Gelu) {
  Op op = [](Tensors& in) { return Tensors{at::gelu(in[0]), at::gelu(in[0], "tanh")}; };
  Check("xla::gelu", {at::randn({6})}, op);
  CheckGradients("xla::gelu_backward", {at::randn({6})}, op);
}

TEST_F(OpTest, Silu) {
  CheckGradients("xla::silu_backward", {at::randn({6})},
                 [](Tensors& in) { return Tensors{at::silu(in[0])}; });
}

TEST_F(OpTest, Sum) {
  Check("xla::sum", {at::rand({2, 3, 4}), at::arange(5).to(at::kInt)}, [](Tensors& in) {
    return Tensors{at::sum(in[0]), at::sum(in[0], {1}, true), at::sum(in[0], {0, 2}),
                   at::sum(in[1])};
  });
}

TEST_F(OpTest, MeanAmaxProd) {
  Check("xla::mean", {at::rand({3, 4})}, [](Tensors& in) {
    return Tensors{at::mean(in[0]), at::mean(in[0], {0}), at::amax(in[0], {1}, true),
                   at::prod(in[0], 1)};
  });
}

TEST_F(OpTest, MaxWithIndices) {
  Op op = [](Tensors& in) {
    auto [values, indices] = at::max(in[0], 1);
    return Tensors{values, indices};
  };
  Check("xla::max", {at::randn({3, 5})}, op);
  CheckGradients("xla::max", {at::randn({3, 5})}, op);
}

TEST_F(OpTest, ArgminAllAny) {
  Check("xla::argmin", {at::randn({3, 5})}, [](Tensors& in) {
    return Tensors{at::argmin(in[0], 1), at::argmax(in[0]), at::all(in[0] > -9),
                   at::any(in[0] > 0, 1)};
  });
}

TEST_F(OpTest, Cumsum) {
  Check("xla::cumsum", {at::rand({3, 4})},
        [](Tensors& in) { return Tensors{at::cumsum(in[0], 1), at::cumsum(in[0], 0)}; });
}

TEST_F(OpTest, SoftmaxAndItsGradient) {
  Op op = [](Tensors& in) { return Tensors{at::softmax(in[0], 1), at::log_softmax(in[0], 0)}; };
  Check("xla::_softmax", {at::randn({3, 4})}, op);
  CheckGradients("xla::_log_softmax_backward_data", {at::randn({3, 4})}, op);
}

TEST_F(OpTest, Losses) {
  Check("xla::mse_loss", {at::randn({3, 4}), at::randn({3, 4})}, [](Tensors& in) {
    return Tensors{at::mse_loss(in[0], in[1]), at::smooth_l1_loss(in[0], in[1])};
  });
}

TEST_F(OpTest, CrossEntropy) {
  CheckGradients("xla::nll_loss_backward", {at::randn({4, 5}), at::arange(4)},
                 [](Tensors& in) { return Tensors{at::cross_entropy_loss(in[0], in[1])}; });
}

TEST_F(OpTest, Matmul) {
  Check("xla::mm", {at::rand({2, 3}), at::rand({3, 4})},
        [](Tensors& in) { return Tensors{at::mm(in[0], in[1])}; });
  CheckGradients("xla::mm", {at::rand({2, 3}), at::rand({3, 4})},
                 [](Tensors& in) { return Tensors{at::matmul(in[0], in[1])}; });
}

TEST_F(OpTest, MatmulOut) {
  Check("xla::bmm", {at::rand({2, 3, 4}), at::rand({2, 4, 3}), at::empty({0})},
        [](Tensors& in) { return Tensors{at::bmm_out(in[2], in[0], in[1])}; });
}

TEST_F(OpTest, Linear) {
  CheckGradients("xla::addmm", {at::rand({2, 3}), at::rand({4, 3}), at::rand({4})},
                 [](Tensors& in) { return Tensors{at::linear(in[0], in[1], in[2])}; });
}

TEST_F(OpTest, Pooling) {
  CheckGradients("xla::max_pool2d_with_indices_backward", {at::randn({1, 2, 4, 4})},
                 [](Tensors& in) { return Tensors{at::max_pool2d(in[0], 2)}; });
  CheckGradients("xla::avg_pool2d_backward", {at::randn({1, 2, 4, 4})},
                 [](Tensors& in) { return Tensors{at::avg_pool2d(in[0], 2)}; });
}

TEST_F(OpTest, CatStackPad) {
  Check("xla::cat", {at::rand({2, 3}), at::rand({1, 3}), at::empty({0})}, [](Tensors& in) {
    return Tensors{at::cat({in[0], in[1]}), at::stack({in[0], in[0]}, 1),
                   at::constant_pad_nd(in[0], {1, -1, 0, 2}, 0.5),
                   at::cat_out(in[2], {in[0], in[1]}, 0)};
  });
}

TEST_F(OpTest, SortTopk) {
  Check("xla::topk", {at::randn({3, 6})}, [](Tensors& in) {
    auto [sorted, order] = at::sort(in[0], 1, true);
    auto [top, where] = at::topk(in[0], 2);
    return Tensors{sorted, order, top, where};
  });
}

TEST_F(OpTest, TriuTril) {
  Check("xla::triu", {at::rand({3, 4})},
        [](Tensors& in) { return Tensors{at::triu(in[0], 1), at::tril(in[0]), in[0].triu_(-1)}; });
}

TEST_F(OpTest, IndexWithTensors) {
  Check("xla::index", {at::rand({4, 5}), at::arange(3)}, [](Tensors& in) {
    return Tensors{at::index(in[0], {in[1]}), at::index_add(in[0], 0, in[1], in[0].slice(0, 0, 3)),
                   at::gather(in[0], 0, in[1].view({1, 3}))};
  });
}

TEST_F(OpTest, IndexPutAccumulates) {
  Check("xla::index_put_", {at::rand({4, 5}), at::zeros({3}, at::kLong), at::rand({3, 5})},
        [](Tensors& in) { return Tensors{in[0].index_put_({in[1]}, in[2], true)}; });
}

TEST_F(OpTest, HostsIntegersAreAskedAboutOnce) {
  const Tensor weight = at::rand({4, 2}, kXla), indices = at::arange(3).to(kXla),
               offsets = (at::arange(2) * 2).to(kXla);
  exec::CutLog recorder;
  exec::CutLog* outer = exec::SetCutLog(&recorder);
  aten::CheckBags("embedding_bag", weight, indices, offsets);
  exec::SetCutLog(outer);
  EXPECT_EQ(recorder.bounds.size(), 2u);  // the indices' and the offsets'
}

TEST_F(OpTest, Scatter) {
  Check("xla::scatter_add", {at::zeros({3, 4}), at::arange(4).view({1, 4}) % 3, at::rand({1, 4})},
        [](Tensors& in) {
          return Tensors{at::scatter(in[0], 0, in[1], in[2]), in[0].scatter_add_(0, in[1], in[2])};
        });
}

TEST_F(OpTest, WriteThroughViews) {
  Check("xla::add", {at::zeros({4, 5})}, [](Tensors& in) {
    in[0].t()[1].slice(0, 1, 3).add_(at::ones({2}, in[0].options()));
    in[0].view({2, 10}).diagonal().fill_(5);
    return Tensors{in[0].clone(), in[0].slice(1, 1, 5, 2)};
  });
}

TEST_F(OpTest, Copy) {
  Check("xla::copy_", {at::zeros({2, 3}), at::arange(3)},
        [](Tensors& in) { return Tensors{in[0].copy_(in[1]), in[1].to(at::kDouble)}; });
}

TEST_F(OpTest, Factories) {
  Check("xla::arange", {at::rand({2, 3})}, [](Tensors& in) {
    auto options = in[0].options();
    return Tensors{at::arange(2, 9, 3, options.dtype(at::kInt)), at::zeros_like(in[0]),
                   at::full({2}, 2.5, options), at::eye(3, options), at::ones({2}, options)};
  });
}

TEST_F(OpTest, FallbackIsCountedByTheNameOfTheOp) {
  // Its decomposition is in Python, which is not here.
  Tensor x = at::rand({4, 2});
  const int64_t before = Count("aten::renorm");
  ExpectClose(at::renorm(x.to(kXla), 2, 0, 1.0), at::renorm(x, 2, 0, 1.0), "renorm");
  EXPECT_EQ(Count("aten::renorm"), before + 1);
}

TEST_F(OpTest, StorageTellsWhatSharesMemory) {
  Tensor x = at::ones({2, 3}).to(kXla), y = at::ones({2, 3}).to(kXla);
  EXPECT_TRUE(x.is_alias_of(x));
  EXPECT_TRUE(x.select(0, 1).is_alias_of(x.t()));
  EXPECT_FALSE(x.is_alias_of(y));
  EXPECT_FALSE(x.is_alias_of(x.clone()));
  // Also where an address comes again.
  for (int i = 0; i < 200; ++i) EXPECT_FALSE(x.is_alias_of(at::ones({1}).to(kXla)));
  EXPECT_TRUE(x.is_alias_of(x.view(-1)));
}

TEST_F(OpTest, DeviceMismatchNamesBothDevices) {
  try {
    at::add(at::rand({2}).to(kXla), at::rand({2}));
    FAIL() << "no error";
  } catch (const c10::Error& error) {
    const std::string message = error.what_without_backtrace();
    EXPECT_NE(message.find("xla:0"), std::string::npos) << message;
    EXPECT_NE(message.find("cpu"), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace torch_xla
