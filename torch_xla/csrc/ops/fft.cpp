// Discrete Fourier transforms.
#include <algorithm>
#include <cmath>

#include "XLALowerings.h"
#include "distributed/sharding_lowering.h"
#include "lowering/elementwise.h"
#include "stablehlo/arithmetic.h"

namespace torch_xla::lowering::aten {
namespace {

/// at::native::fft_norm_mode.
enum Normalization : int64_t { kNone, kByRootN, kByN };

double ScaleOf(int64_t normalization, double n) {
  if (normalization == kByRootN) return 1 / std::sqrt(n);
  return normalization == kByN ? 1 / n : 1;
}

Value Scaled(Value x, double scale) { return scale == 1 ? x : x * scale; }

double SizeOf(const Dims& sizes, const Dims& dims) {
  double n = 1;
  for (int64_t dim : dims) n *= static_cast<double>(sizes[dim]);
  return n;
}

Dims Wrapped(c10::IntArrayRef dims, int64_t rank) {
  Dims wrapped;
  for (int64_t dim : dims) wrapped.push_back(WrapDim(dim, rank));
  return wrapped;
}

/// Applies `op` to x with the dimensions `dims` moved to the end, in this order. They are not split
/// unevenly over devices: XLA's CPU plugin refuses what the partitioner makes of such transforms.
template <typename Op>
Value OverLast(Value x, const Dims& dims, Op op) {
  Dims forward = DimsBetween(0, x.rank(), dims);
  forward.insert(forward.end(), dims.begin(), dims.end());
  Dims backward(forward.size());
  for (size_t i = 0; i < forward.size(); ++i) backward[forward[i]] = static_cast<int64_t>(i);
  const bool even = std::ranges::all_of(
      dims, [&](int64_t dim) { return x.dims()[dim] % x.builder().partitions() == 0; });
  if (!even) x = Whole(x, DimsBetween(0, x.rank(), dims));
  return Transpose(op(Transpose(x, forward)), backward);
}

/// The transform without normalization, in either direction.
Value ComplexTransform(Value x, Dims dims, bool forward) {
  // XLA transforms up to three dimensions at a time.
  while (!dims.empty()) {
    const size_t count = std::min<size_t>(dims.size(), 3);
    const Dims last(dims.end() - static_cast<int64_t>(count), dims.end());
    dims.resize(dims.size() - count);
    Dims length;
    for (int64_t dim : last) length.push_back(x.dims()[dim]);
    const double n = SizeOf(x.dims(), last);
    x = OverLast(x, last, [&](Value v) {
      return Fft(v, forward ? stablehlo::FftType::kFft : stablehlo::FftType::kIfft, length);
    });
    if (!forward) x = Scaled(x, n);
  }
  return x;
}

bool IsEmpty(const Dims& dims) { return std::find(dims.begin(), dims.end(), 0) != dims.end(); }

}  // namespace

Value _fft_c2c(LoweringContext& cx, Value self, c10::IntArrayRef dim, int64_t normalization,
               bool forward) {
  if (IsEmpty(self.dims())) return self;
  const Dims dims = Wrapped(dim, self.rank());
  return Scaled(ComplexTransform(ToOutput(cx, self), dims, forward),
                ScaleOf(normalization, SizeOf(self.dims(), dims)));
}

Value _fft_r2c(LoweringContext& cx, Value self, c10::IntArrayRef dim, int64_t normalization,
               bool onesided) {
  Value none = Constant(cx.builder(), 0, cx.output_type());
  if (IsEmpty(self.dims()) || IsEmpty(cx.output_dims())) return none;
  const Dims dims = Wrapped(dim, self.rank());
  const double scale = ScaleOf(normalization, SizeOf(self.dims(), dims));
  if (dims.empty() || !onesided) {
    return Scaled(ComplexTransform(ToOutput(cx, self), dims, /*forward=*/true), scale);
  }
  const int64_t halved = dims.back();
  Value x = OverLast(self, {halved}, [&](Value v) {
    return Fft(v, stablehlo::FftType::kRfft, {self.dims()[halved]});
  });
  return Scaled(ComplexTransform(x, Dims(dims.begin(), dims.end() - 1), /*forward=*/true), scale);
}

Value _fft_c2r(LoweringContext& cx, Value self, c10::IntArrayRef dim, int64_t normalization,
               int64_t last_dim_size) {
  if (IsEmpty(self.dims()) || IsEmpty(cx.output_dims())) {
    return Constant(cx.builder(), 0, cx.output_type());
  }
  const Dims dims = Wrapped(dim, self.rank());
  const int64_t halved = dims.back();
  Value x = ComplexTransform(self, Dims(dims.begin(), dims.end() - 1), /*forward=*/false);
  x = OverLast(x, {halved},
               [&](Value v) { return Fft(v, stablehlo::FftType::kIrfft, {last_dim_size}); });
  return Scaled(x, static_cast<double>(last_dim_size) *
                       ScaleOf(normalization, SizeOf(cx.output_dims(), dims)));
}

}  // namespace torch_xla::lowering::aten
