// Interpolation to another size, and padding by copies of elements: a linear map along each
// dimension (interpolation.h), and its transpose for the gradient.
//
// Source indices are computed as in ATen, in float unless the tensor is double, because rounding
// decides which element is nearest.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "XLALowerings.h"
#include "lowering/elementwise.h"
#include "ops/interpolation.h"
#include "stablehlo/arithmetic.h"

namespace torch_xla::lowering::aten {
namespace {

using Scale = std::optional<double>;

/// One dimension of an interpolation.
struct Line {
  int64_t input, output;
  bool align_corners;
  Scale scale;
};

/// The distance in the input between neighbouring outputs.
template <typename T>
T Step(const Line& line) {
  if (line.align_corners) {
    return line.output > 1 ? static_cast<T>(line.input - 1) / (line.output - 1) : T{0};
  }
  if (line.scale && *line.scale > 0) return static_cast<T>(1.0 / *line.scale);
  return static_cast<T>(line.input) / line.output;
}

template <typename T>
T SourcePosition(const Line& line, int64_t o) {
  const T step = Step<T>(line);
  return line.align_corners ? step * o : step * (o + static_cast<T>(0.5)) - static_cast<T>(0.5);
}

// ---- Filters: the terms of output o ----------------------------------------------------

template <typename T>
std::vector<MapTerm> Nearest(const Line& line, int64_t o) {
  if (line.output == line.input) return {{o}};
  const auto index = static_cast<int64_t>(std::floor(o * Step<T>(line)));
  return {{std::min(index, line.input - 1)}};
}

template <typename T>
std::vector<MapTerm> NearestExact(const Line& line, int64_t o) {
  const auto index = static_cast<int64_t>(std::floor(static_cast<T>((o + 0.5) * Step<T>(line))));
  return {{std::min(index, line.input - 1)}};
}

template <typename T>
std::vector<MapTerm> Linear(const Line& line, int64_t o) {
  if (line.output == line.input) return {{o}};
  const T position = std::max(SourcePosition<T>(line, o), T{0});
  const int64_t low = std::min(static_cast<int64_t>(position), line.input - 1);
  const T rest = std::clamp(position - static_cast<T>(low), T{0}, T{1});
  return {{low, T{1} - rest}, {std::min(low + 1, line.input - 1), rest}};
}

/// Keys' convolution kernel (IEEE Trans. ASSP 29(6), 1981): |x| up to 1, and above.
double CubicNear(double x, double a) { return ((a + 2) * x - (a + 3)) * x * x + 1; }
double CubicFar(double x, double a) { return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a; }

template <typename T>
std::vector<MapTerm> Cubic(const Line& line, int64_t o) {
  constexpr double kA = -0.75;
  const T position = SourcePosition<T>(line, o);
  const T floor = std::floor(position), t = position - floor;
  const double weights[] = {CubicFar(t + 1, kA), CubicNear(t, kA), CubicNear(1 - t, kA),
                            CubicFar(2 - t, kA)};
  std::vector<MapTerm> terms;
  for (int64_t i = 0; i < 4; ++i) {
    const auto index = static_cast<int64_t>(floor) - 1 + i;
    terms.push_back({std::clamp<int64_t>(index, 0, line.input - 1), weights[i]});
  }
  return terms;
}

/// A filter that is widened to cover the input if the output is smaller, as in Pillow's resize.
template <typename T>
std::vector<MapTerm> Antialiased(const Line& line, int64_t o, int64_t width,
                                 double (*filter)(double)) {
  const T step = Step<T>(line), stretch = std::max(step, T{1});
  const T support = static_cast<T>(width * 0.5) * stretch;
  const T center = step * (o + static_cast<T>(0.5));
  const auto first = std::max<int64_t>(static_cast<int64_t>(center - support + T{0.5}), 0);
  const auto last = std::min(static_cast<int64_t>(center + support + T{0.5}), line.input);
  std::vector<MapTerm> terms;
  double total = 0;
  for (int64_t i = first; i < last; ++i) {
    terms.push_back({i, filter((i - center + T{0.5}) / stretch)});
    total += terms.back().weight;
  }
  for (MapTerm& term : terms) term.weight /= total != 0 ? total : 1;
  return terms;
}

double TriangleFilter(double x) { return std::max(1 - std::abs(x), 0.0); }

double CubicFilter(double x) {
  constexpr double kA = -0.5;
  x = std::abs(x);
  return x < 1 ? CubicNear(x, kA) : x < 2 ? CubicFar(x, kA) : 0;
}

double LanczosFilter(double x) {
  constexpr double kLobes = 3;
  auto sinc = [](double y) {
    y *= std::numbers::pi;
    return y == 0 ? 1 : std::sin(y) / y;
  };
  return std::abs(x) < kLobes ? sinc(x) * sinc(x / kLobes) : 0;
}

template <typename T>
std::vector<MapTerm> LinearAntialiased(const Line& line, int64_t o) {
  return Antialiased<T>(line, o, 2, TriangleFilter);
}
template <typename T>
std::vector<MapTerm> CubicAntialiased(const Line& line, int64_t o) {
  return Antialiased<T>(line, o, 4, CubicFilter);
}
template <typename T>
std::vector<MapTerm> LanczosAntialiased(const Line& line, int64_t o) {
  return Antialiased<T>(line, o, 6, LanczosFilter);
}

// ---- All dimensions ---------------------------------------------------------------------

using Filter = std::vector<MapTerm> (*)(const Line&, int64_t);

template <typename T>
Filter FilterOf(Interpolation interpolation) {
  switch (interpolation) {
    case Interpolation::kNearest:
      return Nearest<T>;
    case Interpolation::kNearestExact:
      return NearestExact<T>;
    case Interpolation::kLinear:
      return Linear<T>;
    case Interpolation::kLinearAntialiased:
      return LinearAntialiased<T>;
    case Interpolation::kCubic:
      return Cubic<T>;
    case Interpolation::kCubicAntialiased:
      return CubicAntialiased<T>;
    case Interpolation::kLanczosAntialiased:
      return LanczosAntialiased<T>;
  }
  return nullptr;
}

/// Interpolates the last `scales.size()` dimensions; `backward` maps gradients of the output to
/// gradients of the input.
Value Interpolate(LoweringContext& cx, Interpolation interpolation, Value x, bool align_corners,
                  const std::vector<Scale>& scales, bool backward = false) {
  const Dims dims = cx.output_dims();
  int64_t dim = x.rank() - static_cast<int64_t>(scales.size());
  for (int64_t i = dim; i < x.rank(); ++i) {
    TORCH_CHECK(x.dim(i) > 0 && dims[i] > 0,
                "Input and output sizes should be greater than 0, but got ", x.dim(i), " and ",
                dims[i], " in dimension ", i);
  }
  if (cx.output_type().num_elements() == 0) return Constant(cx.builder(), 0, cx.output_type());
  const Filter filter = x.element() == ElementType::kF64 ? FilterOf<double>(interpolation)
                                                         : FilterOf<float>(interpolation);
  const bool integral = !runtime::IsFloat(x.element());
  Value y = Convert(x, integral ? ElementType::kF32 : ComputeType(x.element()));
  for (Scale scale : scales) {
    const int64_t input = backward ? dims[dim] : x.dim(dim);
    const int64_t output = backward ? x.dim(dim) : dims[dim];
    CheckRows(output);
    MapRows rows;
    for (int64_t o = 0; o < output; ++o) {
      rows.push_back(filter({input, output, align_corners, scale}, o));
    }
    y = MapDimension(y, dim++, backward ? Transposed(rows, input) : rows);
  }
  // uint8 is the only integer type that ATen interpolates.
  if (integral) y = Floor(Clamp(ScalarLike(y, 0), y, ScalarLike(y, 255)) + 0.5);
  return ToOutput(cx, y);
}

/// Pads the last dimensions with copies of elements. `source` maps an index relative to the input,
/// and the input's size, to the index of the element to copy.
Value PadByCopies(LoweringContext& cx, Value x, c10::IntArrayRef padding,
                  int64_t (*source)(int64_t position, int64_t size), bool backward = false) {
  if (cx.output_type().num_elements() == 0) return Constant(cx.builder(), 0, cx.output_type());
  Value y = backward ? Convert(x, ComputeType(x.element())) : x;
  const Dims dims = cx.output_dims();
  for (size_t i = 0; i < padding.size() / 2; ++i) {
    const int64_t dim = x.rank() - 1 - static_cast<int64_t>(i);
    const int64_t input = backward ? dims[dim] : x.dim(dim);
    const int64_t output = backward ? x.dim(dim) : dims[dim];
    CheckRows(output);
    MapRows rows;
    for (int64_t o = 0; o < output; ++o) rows.push_back({{source(o - padding[2 * i], input)}});
    y = MapDimension(y, dim, backward ? Transposed(rows, input) : rows);
  }
  return ToOutputElement(cx, y);
}

int64_t Reflected(int64_t position, int64_t size) {
  position = std::abs(position);
  return position < size ? position : 2 * (size - 1) - position;
}

int64_t Replicated(int64_t position, int64_t size) {
  return std::clamp<int64_t>(position, 0, size - 1);
}

}  // namespace

using Scales = std::vector<Scale>;

Value Upsample(LoweringContext& cx, Interpolation interpolation, Value self, c10::IntArrayRef,
               const Scales& scales) {
  return Interpolate(cx, interpolation, self, false, scales);
}

Value Upsample(LoweringContext& cx, Interpolation interpolation, Value self, c10::IntArrayRef,
               bool align_corners, const Scales& scales) {
  return Interpolate(cx, interpolation, self, align_corners, scales);
}

Value UpsampleBackward(LoweringContext& cx, Interpolation interpolation, Value grad_output,
                       c10::IntArrayRef, c10::IntArrayRef, const Scales& scales) {
  return Interpolate(cx, interpolation, grad_output, false, scales, /*backward=*/true);
}

Value UpsampleBackward(LoweringContext& cx, Interpolation interpolation, Value grad_output,
                       c10::IntArrayRef, c10::IntArrayRef, bool align_corners,
                       const Scales& scales) {
  return Interpolate(cx, interpolation, grad_output, align_corners, scales, /*backward=*/true);
}

Value ReflectionPad(LoweringContext& cx, Value self, c10::IntArrayRef padding) {
  return PadByCopies(cx, self, padding, Reflected);
}

Value ReflectionPadBackward(LoweringContext& cx, Value grad_output, Value /*self*/,
                            c10::IntArrayRef padding) {
  return PadByCopies(cx, grad_output, padding, Reflected, /*backward=*/true);
}

Value ReplicationPad(LoweringContext& cx, Value self, c10::IntArrayRef padding) {
  return PadByCopies(cx, self, padding, Replicated);
}

Value ReplicationPadBackward(LoweringContext& cx, Value grad_output, Value /*self*/,
                             c10::IntArrayRef padding) {
  return PadByCopies(cx, grad_output, padding, Replicated, /*backward=*/true);
}

}  // namespace torch_xla::lowering::aten
