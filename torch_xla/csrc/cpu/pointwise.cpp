// Elementwise functions by ATen's kernels on the device's memory. ATen computes vectors of
// elements; XLA:CPU calls libm for one element after the other.
#include <ATen/ops/acos.h>
#include <ATen/ops/asin.h>
#include <ATen/ops/atan.h>
#include <ATen/ops/atan2.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/fmod.h>
#include <ATen/ops/polygamma.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tan.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "cpu/aten_calls.h"
#include "cpu/calls.h"
#include "cpu/handlers.h"

namespace torch_xla::cpu {
namespace {

using namespace runtime::pjrt;

using Unary = at::Tensor& (*)(at::Tensor&, const at::Tensor&);
using Binary = at::Tensor& (*)(at::Tensor&, const at::Tensor&, const at::Tensor&);

/// ATen's vectorized kernels give NaN if the quotient is beyond the largest number, so fix these.
template <typename T>
void MendRemainders(at::Tensor& result, const at::Tensor& a, const at::Tensor& b, bool is_floored) {
  if (!std::isnan(at::sum(result).item<T>())) return;  // the sum of a result with NaN is NaN
  T* out = result.mutable_data_ptr<T>();
  const T *x = a.const_data_ptr<T>(), *y = b.const_data_ptr<T>();
  for (int64_t i = 0, size = result.numel(); i < size; ++i) {
    if (!std::isnan(out[i])) continue;
    out[i] = std::fmod(x[i], y[i]);
    if (is_floored && out[i] != 0 && std::signbit(out[i]) != std::signbit(y[i])) out[i] += y[i];
  }
}

template <Binary kFunction, bool kIsFloored>
at::Tensor& Remainders(at::Tensor& result, const at::Tensor& a, const at::Tensor& b) {
  kFunction(result, a, b);
  if (result.scalar_type() == at::kFloat) {
    MendRemainders<float>(result, a, b, kIsFloored);
  } else {
    MendRemainders<double>(result, a, b, kIsFloored);
  }
  return result;
}

at::Tensor& Trigamma(at::Tensor& result, const at::Tensor& x) {
  return at::polygamma_out(result, 1, x);
}

struct Function {
  std::string_view name;
  Unary unary = nullptr;
  Binary binary = nullptr;
};

constexpr Function kFunctions[] = {
    {"aten::acos", at::acos_out},
    {"aten::asin", at::asin_out},
    {"aten::atan", at::atan_out},
    {"aten::atan2", nullptr, at::atan2_out},
    {"aten::cos", at::cos_out},
    {"aten::fmod", nullptr, Remainders<at::fmod_out, false>},
    {"aten::polygamma", Trigamma},
    {"aten::remainder", nullptr, Remainders<at::remainder_out, true>},
    {"aten::rsqrt", at::rsqrt_out},
    {"aten::sin", at::sin_out},
    {"aten::tan", at::tan_out},
};

}  // namespace

int64_t FindPointwise(std::string_view name) {
  const auto* found = std::ranges::find(kFunctions, name, &Function::name);
  return found == std::end(kFunctions) ? -1 : found - std::begin(kFunctions);
}

void RunPointwise(const XLA_FFI_CallFrame& frame) {
  const Function& function = kFunctions[CallOf<PointwiseCall>(frame).function];
  const at::Tensor result = FfiTensor(frame.rets.rets[0]).flatten();
  std::vector<at::Tensor> operands;
  for (int64_t i = 0; i < frame.args.size; ++i) {
    operands.push_back(FfiTensor(frame.args.args[i]).flatten());
  }
  const int64_t parts = FfiParts(frame, result.numel() * choices::kFunction);
  RunAtenParts(frame, parts, [&](const AtenPart& part) {
    at::Tensor out = part(result);
    const at::Tensor first = part(operands[0]);
    if (function.unary) {
      function.unary(out, first);
    } else {
      function.binary(out, first, part(operands[1]));
    }
  });
}

}  // namespace torch_xla::cpu
