// Sampling at the places of a grid, and its gradients.
//
// All modes are separable: along each dimension a sampled place has a few taps. A tap has a weight,
// and the weight's slope if the gradient of the grid is asked for. Elements are read and written as
// rows of all channels.
#include <cmath>
#include <limits>
#include <string>

#include "XLALowerings.h"
#include "lowering/cpu_kernel.h"
#include "lowering/elementwise.h"
#include "lowering/kernel_choice.h"
#include "ops/indexing.h"
#include "stablehlo/arithmetic.h"

namespace torch_xla::lowering::aten {
namespace {

// ATen's numbers of at::native::GridSamplerInterpolation and GridSamplerPadding.
enum class Mode { kBilinear, kNearest, kBicubic };
enum class Edge { kZeros, kBorder, kReflection };

/// A place and its derivative by the place that it was computed from.
struct Place {
  Value at, slope;
};

struct Tap {
  Value index;          // within the dimension
  Value inside;         // whether there is such an element
  Value weight, slope;  // the latter by the grid's coordinate
};

/// One dimension that is sampled.
class Axis {
 public:
  /// `nan` is the index that a place of NaN gets from padding.
  Axis(int64_t size, Mode mode, Edge edge, bool align_corners, double nan)
      : size_(size), mode_(mode), edge_(edge), align_corners_(align_corners), nan_(nan) {}

  /// The taps of coordinates in [-1, 1].
  std::vector<Tap> Taps(Value coordinate) const;

 private:
  Place Clipped(Place place) const;
  Place Reflected(Place place) const;
  Place Inside(Place place) const;
  Tap At(Value place, Value weight, Value slope) const;

  int64_t size_;
  Mode mode_;
  Edge edge_;
  bool align_corners_;
  double nan_;
};

Place Axis::Clipped(Place place) const {
  const auto last = static_cast<double>(size_ - 1);
  Value within = And(place.at > 0, place.at < last);
  Value at = Select(IsNan(place.at), nan_, Minimum(Maximum(place.at, 0), last));
  return {at, Select(within, place.slope, 0)};
}

Place Axis::Reflected(Place place) const {
  const double low = align_corners_ ? 0 : -0.5;
  const auto span = static_cast<double>(align_corners_ ? size_ - 1 : size_);
  if (span == 0) return {ZerosLike(place.at), ZerosLike(place.slope)};
  Value x = place.at - low;
  Value slope = Select(x < 0, -place.slope, place.slope);
  x = Abs(x);
  Value flips = Floor(x / span), rest = Remainder(x, FullLike(x, span));
  Value odd = Equal(Remainder(flips, FullLike(x, 2)), 1);
  return {Select(odd, (span + low) - rest, rest + low), Select(odd, -slope, slope)};
}

/// The place after padding; the mode kZeros leaves it unchanged.
Place Axis::Inside(Place place) const {
  if (edge_ == Edge::kZeros) return place;
  return Clipped(edge_ == Edge::kReflection ? Reflected(place) : place);
}

Tap Axis::At(Value place, Value weight, Value slope) const {
  // Compare as floats, so that NaN is not inside.
  const auto last = static_cast<double>(size_ - 1);
  Value index = Convert(Minimum(Maximum(place, 0), last), ElementType::kS64);
  return {index, And(place >= 0, place <= last), weight, slope};
}

std::vector<Tap> Axis::Taps(Value coordinate) const {
  const double scale = static_cast<double>(align_corners_ ? size_ - 1 : size_) / 2;
  Value at = (coordinate + 1) * scale;
  Place place{align_corners_ ? at : at - 0.5, FullLike(coordinate, scale)};
  Value zero = ZerosLike(at), one = OnesLike(at);
  if (mode_ != Mode::kBicubic) place = Inside(place);
  if (mode_ == Mode::kNearest) return {At(RoundNearestEven(place.at), one, zero)};
  Value floor = Floor(place.at), t = place.at - floor;
  if (mode_ == Mode::kBilinear) {
    return {At(floor, 1 - t, -place.slope), At(floor + 1, t, place.slope)};
  }
  // Keys' kernel, as in upsample.cpp; here each tap is moved inside by itself.
  constexpr double kA = -0.75;
  auto near = [](Value x) { return ((kA + 2) * x - (kA + 3)) * x * x + 1; };
  auto far = [](Value x) { return ((kA * x - 5 * kA) * x + 8 * kA) * x - 4 * kA; };
  auto near_slope = [](Value x) { return (3 * (kA + 2) * x - 2 * (kA + 3)) * x; };
  auto far_slope = [](Value x) { return (3 * kA * x - 10 * kA) * x + 8 * kA; };
  auto tap = [&](int64_t i, Value weight, Value slope) {
    return At(Inside({floor + i, one}).at, weight, slope * place.slope);
  };
  return {tap(-1, far(t + 1), far_slope(t + 1)), tap(0, near(t), near_slope(t)),
          tap(1, near(1 - t), -near_slope(1 - t)), tap(2, far(2 - t), -far_slope(2 - t))};
}

/// All combinations of one tap per dimension. Each array is [combinations, places].
struct Corners {
  Value row;     // which element, of all inputs of the batch
  Value inside;  // whether there is such an element
  Value weight;
  std::vector<Value> slopes;  // by each coordinate of the grid
};

/// One array of [taps, places].
Value Stack(const std::vector<Tap>& taps, Value Tap::* member) {
  std::vector<Value> rows;
  for (const Tap& tap : taps) rows.push_back(Reshape(tap.*member, {1, tap.index.dim(0)}));
  return stablehlo::Concatenate(rows, 0);
}

/// The product of each row of `a` with each row of `b`.
Value Combine(Value a, Value b) {
  Value product = Reshape(a, {a.dim(0), 1, a.dim(1)}) * Reshape(b, {1, b.dim(0), b.dim(1)});
  return Reshape(product, {a.dim(0) * b.dim(0), a.dim(1)});
}

void CheckModes(int64_t mode, int64_t padding) {
  if (mode < 0 || mode > 2 || padding < 0 || padding > 2) {
    throw stablehlo::Error("expected interpolation_mode and padding_mode 0, 1 or 2, got " +
                           std::to_string(mode) + " and " + std::to_string(padding));
  }
}

/// Whether ATen's kernel does the sampling.
bool CallsKernel(const LoweringContext& cx, Value input) {
  return (input.element() == ElementType::kF32 || input.element() == ElementType::kF64) &&
         ChoosesLibrary(cx, "grid_sampler");
}

/// The corners for a grid [N, output…, rank] and an input of the dimensions `dims` [N, C, input…].
Corners AllCorners(Value grid, const Dims& dims, int64_t mode, int64_t padding, bool align_corners,
                   bool backward) {
  const auto rank = static_cast<int64_t>(dims.size()) - 2;
  const int64_t places = grid.type().num_elements() / rank;
  Value flat = Reshape(grid, {places, rank});
  Value batch = Iota(grid.builder(), {ElementType::kS64, {dims[0], places / dims[0]}}, 0);
  Corners corners{Reshape(batch, {1, places}), {}, {}, {}};
  for (int64_t i = 0; i < rank; ++i) {
    // Coordinates are in the order x, y, z, so the last dimension's coordinate comes first.
    Value coordinate = Reshape(Slice(flat, {0, rank - 1 - i}, {places, rank - i}), {places});
    // CPU kernels move NaN to the first element in two dimensions, and to the last in three, where
    // it gets no gradient.
    const double nan = rank == 2  ? 0
                       : backward ? std::numeric_limits<double>::quiet_NaN()
                                  : static_cast<double>(dims[i + 2] - 1);
    const Axis axis(dims[i + 2], static_cast<Mode>(mode), static_cast<Edge>(padding), align_corners,
                    nan);
    const std::vector<Tap> taps = axis.Taps(coordinate);
    Value index = Stack(taps, &Tap::index), inside = Stack(taps, &Tap::inside);
    Value weight = Stack(taps, &Tap::weight), slope = Stack(taps, &Tap::slope);
    if (i == 0) {
      corners = {corners.row * dims[2] + index, inside, weight, {slope}};
      continue;
    }
    Value ones = OnesLike(index), before = OnesLike(corners.row);
    corners.row = Combine(corners.row * dims[i + 2], ones) + Combine(before, index);
    corners.inside = Combine(corners.inside, inside);
    for (Value& other : corners.slopes) other = Combine(other, weight);
    corners.slopes.insert(corners.slopes.begin(), Combine(corners.weight, slope));
    corners.weight = Combine(corners.weight, weight);
  }
  return corners;
}

/// `x` times the weights, and 0 outside of the input. In two dimensions a weight of NaN has an
/// effect even there, as in the CPU's kernels.
Value Weighted(Value x, Value weight, Value inside, bool two_dims) {
  return two_dims ? Select(inside, x, 0) * weight : Select(inside, x * weight, 0);
}

/// [combinations, places] for all channels.
Value Channels(Value x, const Dims& dims) { return BroadcastInDim(x, dims, {0, 1}); }

/// [N, C, …] as rows [N * …, C], and back.
Value ToRows(Value x) {
  Dims order = DimsBetween(0, x.rank(), {1});
  order.push_back(1);
  return Reshape(Transpose(x, order), {x.type().num_elements() / x.dim(1), x.dim(1)});
}

Value FromRows(Value rows, const Dims& dims) {
  Dims split = {dims[0]}, order = {0, static_cast<int64_t>(dims.size()) - 1};
  split.insert(split.end(), dims.begin() + 2, dims.end());
  split.push_back(dims[1]);
  for (size_t i = 1; i + 1 < dims.size(); ++i) order.push_back(static_cast<int64_t>(i));
  return Transpose(Reshape(rows, split), order);
}

}  // namespace

Value GridSampler(LoweringContext& cx, Value input, Value grid, int64_t interpolation_mode,
                  int64_t padding_mode, bool align_corners) {
  const ElementType element = ComputeType(cx.output_element());
  const Dims dims = cx.output_dims();
  if (cx.output_type().num_elements() == 0) return Constant(cx.builder(), 0, cx.output_type());
  CheckModes(interpolation_mode, padding_mode);
  if (CallsKernel(cx, input)) return CpuKernel(cx)[0];
  const Corners corners = AllCorners(Convert(grid, element), input.dims(), interpolation_mode,
                                     padding_mode, align_corners, /*backward=*/false);
  Value read = Take(ToRows(Convert(input, element)), 0, corners.row);
  Value terms = Weighted(read, Channels(corners.weight, read.dims()),
                         Channels(corners.inside, read.dims()), input.rank() == 4);
  return ToOutputElement(cx, FromRows(Reduce(terms, {0}, ReduceOp::kAdd), dims));
}

std::vector<Value> GridSamplerBackward(LoweringContext& cx, Value grad_output, Value input,
                                       Value grid, int64_t interpolation_mode, int64_t padding_mode,
                                       bool align_corners,
                                       const std::vector<bool>& /*output_mask*/) {
  const ElementType element = ComputeType(input.element());
  const bool of_input = cx.node().shape(0) != nullptr, of_grid = cx.node().shape(1) != nullptr;
  std::vector<Value> gradients(2);
  if (grad_output.type().num_elements() == 0) {
    if (of_input) gradients[0] = Constant(cx.builder(), 0, cx.output_type(0));
    if (of_grid) gradients[1] = Constant(cx.builder(), 0, cx.output_type(1));
    return gradients;
  }
  CheckModes(interpolation_mode, padding_mode);
  if (CallsKernel(cx, input)) return CpuKernel(cx);
  const Corners corners = AllCorners(Convert(grid, element), input.dims(), interpolation_mode,
                                     padding_mode, align_corners, /*backward=*/true);
  Value rows = ToRows(Convert(input, element)), grad = ToRows(Convert(grad_output, element));
  const Dims dims = {corners.row.dim(0), grad.dim(0), grad.dim(1)};
  Value all = BroadcastInDim(grad, dims, {1, 2});
  if (of_input) {
    // Elements outside go to a row that does not exist, which Put skips.
    Value row = Select(corners.inside, corners.row, rows.dim(0));
    Value sum = Put(ZerosLike(rows), 0, row, all * Channels(corners.weight, dims), ReduceOp::kAdd);
    gradients[0] = Convert(FromRows(sum, input.dims()), cx.output_element(0));
  }
  if (of_grid) {
    Value product = Reduce(all * Take(rows, 0, corners.row), {2}, ReduceOp::kAdd);
    std::vector<Value> columns;
    for (Value slope : corners.slopes) {
      Value terms = Weighted(product, slope, corners.inside, input.rank() == 4);
      Value sum = Reduce(terms, {0}, ReduceOp::kAdd);
      columns.push_back(Reshape(sum, {sum.dim(0), 1}));
    }
    gradients[1] = Convert(Reshape(stablehlo::Concatenate(columns, 1), cx.output_dims(1)),
                           cx.output_element(1));
  }
  return gradients;
}

}  // namespace torch_xla::lowering::aten
