// Counter-based generators (Philox): the seed alone determines the numbers.
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "XLALowerings.h"
#include "cpu/calls.h"
#include "lowering/elementwise.h"
#include "lowering/kernel_choice.h"
#include "lowering/library_call.h"
#include "ops/order.h"
#include "ops/reduction.h"
#include "stablehlo/arithmetic.h"

namespace torch_xla::lowering {
namespace {

using namespace stablehlo;  // NOLINT: formulas

/// The output of rng_bit_generator (Philox) from the state [seed, 0], after `blocks` blocks of 4
/// words. `seed` is a number of 64 bits, and `type` is u32 or u64.
Value CallRandomBits(Value seed, int64_t blocks, const stablehlo::Type& type) {
  return CallLibrary(cpu::kRandomBitsTarget, {seed}, {type}, cpu::RandomBitsCall{blocks})[0];
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// A stream of random bits.
class Stream {
 public:
  explicit Stream(Value state) : state_(state) {}
  Stream(const LoweringContext& cx, Value seed) : state_(seed) {
    calls_ = runtime::ByteWidth(seed.element()) == 8 && ChoosesLibrary(cx, "random.bits");
    if (!calls_) state_ = StateAfter(0);
  }

  Value state() const { return calls_ ? StateAfter(blocks_) : state_; }

  /// Uniform bits of an unsigned type.
  Value Bits(ElementType element, const Dims& dims) {
    if (!calls_) {
      auto [state, bits] = RngBitGenerator(state_, RngAlgorithm::kPhilox, {element, dims});
      state_ = state;
      return bits;
    }
    const Type type(element, dims);
    Value bits = CallRandomBits(state_, blocks_, type);
    const auto per_block = static_cast<int64_t>(16 / runtime::ByteWidth(element));
    blocks_ += (type.num_elements() + per_block - 1) / per_block;
    return bits;
  }

  /// Uniform in [0, 1) with as many bits as the type's mantissa has. With `centered` in (0, 1),
  /// half a step from both ends.
  Value Uniform(ElementType element, const Dims& dims, bool centered = false) {
    const bool wide = element == ElementType::kF64;
    Value bits = Bits(wide ? ElementType::kU64 : ElementType::kU32, dims);
    // The half step takes one bit: 2^24 - 0.5 is no float32.
    const int kept = (wide ? 53 : 24) - (centered ? 1 : 0);
    bits = ShiftRightLogical(bits, FullLike(bits, (wide ? 64 : 32) - kept));
    Value x = Convert(bits, wide ? ElementType::kF64 : ElementType::kF32);
    return (centered ? x + 0.5 : x) * std::ldexp(1.0, -kept);
  }

  /// By the inverse of the distribution function: sqrt(2) erfinv(2u - 1).
  Value Normal(ElementType element, const Dims& dims) {
    return ErfInv(Uniform(element, dims, /*centered=*/true) * 2 - 1) * std::sqrt(2.0);
  }

 private:
  /// The state of the seed `state_` after `blocks` blocks.
  Value StateAfter(int64_t blocks) const {
    Value seed = Reshape(Convert(state_, ElementType::kU64), {1});
    return Concatenate({seed, FullLike(seed, blocks)}, 0);
  }

  Value state_;  // the seed, if the library is called
  bool calls_ = false;
  int64_t blocks_ = 0;  // drawn by the library
};

/// The type to compute a float output in.
ElementType FloatFor(LoweringContext& cx) {
  return cx.output_element() == ElementType::kF64 ? ElementType::kF64 : ElementType::kF32;
}

struct Proposal {
  Value accepted, value;
};

/// Draws until every element is accepted. Elements that are `done` at the start keep `value`.
template <typename Propose>
Value UntilAccepted(Stream& stream, Value done, Value value, const Propose& propose) {
  // Every valid element is accepted sooner or later; the bound is for invalid parameters.
  constexpr int kLimit = 1000;
  Dims all(done.rank());
  std::iota(all.begin(), all.end(), 0);
  auto more = [&](std::span<const Value> v) -> std::vector<Value> {
    return {And(v[0] < kLimit, Not(Reduce(v[2], all, ReduceOp::kAnd)))};
  };
  auto draw = [&](std::span<const Value> v) -> std::vector<Value> {
    Stream next(v[1]);
    const Proposal proposal = propose(next);
    Value takes = And(Not(v[2]), proposal.accepted);
    return {v[0] + 1, next.state(), Or(v[2], takes), Select(takes, proposal.value, v[3])};
  };
  Value zero = Scalar(value, 0, ElementType::kS32);
  std::vector<Value> results = While({zero, stream.state(), done, value}, more, draw);
  stream = Stream(results[1]);
  return results[3];
}

/// The least k whose cumulative probability reaches `u`. `first` is the probability of 0, and
/// ratio(k) is the probability of k over the probability of k - 1.
template <typename Ratio>
Value Inverted(Value u, Value first, const Ratio& ratio) {
  constexpr int kLimit = 1000;  // rounding may keep the sum below u
  Dims all(u.rank());
  std::iota(all.begin(), all.end(), 0);
  auto more = [&](std::span<const Value> v) -> std::vector<Value> {
    return {And(v[0] < kLimit, Reduce(And(u > v[3], v[2] > 0), all, ReduceOp::kOr))};
  };
  auto add = [&](std::span<const Value> v) -> std::vector<Value> {
    Value open = And(u > v[3], v[2] > 0);
    Value next = v[0] + 1;
    Value probability = v[2] * ratio(BroadcastTo(Convert(next, u.element()), u.dims()));
    return {next, Select(open, v[1] + 1, v[1]), Select(open, probability, v[2]),
            Select(open, v[3] + probability, v[3])};
  };
  return While({Scalar(u, 0, ElementType::kS32), ZerosLike(u), first, first}, more, add)[1];
}

}  // namespace

namespace aten {

Value uniform(LoweringContext& cx, Value seed, Value from, Value to) {
  const ElementType element = FloatFor(cx), output = cx.output_element();
  const Dims dims = cx.output_dims();
  Value u = Stream(cx, seed).Uniform(element, dims);
  // The number next to the excluded end, which rounding could reach, above all to fewer bits.
  Value last = NextAfter(Convert(to, output), Convert(from, output));
  from = To(from, element, dims), to = To(to, element, dims);
  return ToOutputElement(cx, Minimum(from + u * (to - from), To(last, element, dims)));
}

Value normal(LoweringContext& cx, Value seed, Value mean, Value std) {
  const ElementType element = FloatFor(cx);
  const Dims dims = cx.output_dims();
  Value x = Stream(cx, seed).Normal(element, dims);
  return ToOutputElement(cx, To(mean, element, dims) + x * To(std, element, dims));
}

Value random(LoweringContext& cx, Value seed, Value from, Value to) {
  const Dims dims = cx.output_dims();
  from = To(from, ElementType::kU64, dims), to = To(to, ElementType::kU64, dims);
  // Modulo, as PyTorch's random_ does; the bias is negligible for small ranges.
  Value x = Remainder(Stream(cx, seed).Bits(ElementType::kU64, dims), to - from) + from;
  return ToOutputElement(cx, BitcastConvert(x, ElementType::kS64));
}

Value bernoulli(LoweringContext& cx, Value seed, Value p) {
  const Dims dims = cx.output_dims();
  Value u = Stream(cx, seed).Uniform(ElementType::kF32, dims);
  return ToOutputElement(cx, u < To(p, ElementType::kF32, dims));
}

Value exponential(LoweringContext& cx, Value seed, Value lambd) {
  const ElementType element = FloatFor(cx);
  const Dims dims = cx.output_dims();
  Value u = Stream(cx, seed).Uniform(element, dims, /*centered=*/true);
  return ToOutputElement(cx, -Log(u) / To(lambd, element, dims));
}

Value poisson(LoweringContext& cx, Value seed, Value self) {
  const ElementType element = cx.Physical(c10::ScalarType::Double);
  const Dims dims = cx.output_dims();
  Stream stream(cx, seed);
  Value rate = To(self, element, dims);
  // Small rates by inversion, the others by transformed rejection (PTRS, Hoermann 1993).
  Value large = rate >= 10;
  Value small_rate = Select(And(rate >= 0, Not(large)), rate, 0);
  Value small = Inverted(stream.Uniform(element, dims, true), Exponential(-small_rate),
                         [&](Value k) { return small_rate / k; });
  Value done = Not(And(large, rate < kInfinity));
  Value mean = Select(done, 10, rate);
  Value b = Sqrt(mean) * 2.53 + 0.931, a = b * 0.02483 - 0.059;
  Value inverse_alpha = 1.1328 / (b - 3.4) + 1.1239, limit = 0.9277 - 3.6224 / (b - 2);
  Value result = UntilAccepted(stream, done, small, [&](Stream& draw) -> Proposal {
    Value u = draw.Uniform(element, dims, true) - 0.5, v = draw.Uniform(element, dims, true);
    Value us = 0.5 - Abs(u);
    Value k = Floor((2 * a / us + b) * u + mean + 0.43);
    Value fast = And(us >= 0.07, v <= limit);
    Value out = Or(k < 0, And(us<0.013, v> us));
    Value exact =
        Log(v * inverse_alpha / (a / (us * us) + b)) <= k * Log(mean) - mean - Lgamma(k + 1);
    return {Or(fast, And(Not(out), exact)), k};
  });
  result = Select(Equal(rate, kInfinity), rate, Select(rate >= 0, result, kNan));
  return ToOutputElement(cx, result);
}

Value binomial(LoweringContext& cx, Value seed, Value trials, Value prob) {
  const ElementType element = cx.Physical(c10::ScalarType::Double);
  const Dims dims = cx.output_dims();
  Stream stream(cx, seed);
  Value n = To(trials, element, dims), p = To(prob, element, dims);
  // Count failures where success is likelier. Small means use inversion, large means use
  // transformed rejection (BTRS, Hoermann 1993).
  Value flipped = p > 0.5;
  Value q = Select(flipped, 1 - p, p);
  Value large = And(n * q >= 10, n < kInfinity);
  Value some = And(n > 0, q > 0);
  Value small_n = Select(And(some, Not(large)), n, 0),
        small_q = Select(And(some, Not(large)), q, 0);
  Value small_odds = small_q / (1 - small_q);
  Value small =
      Inverted(stream.Uniform(element, dims, true), Exponential(small_n * LogPlusOne(-small_q)),
               [&](Value k) { return Maximum(small_n - k + 1, 0) / k * small_odds; });
  Value count = Select(large, n, 100), chance = Select(large, q, 0.5);
  Value deviation = Sqrt(count * chance * (1 - chance));
  Value b = deviation * 2.53 + 1.15, a = b * 0.0248 + chance * 0.01 - 0.0873;
  Value limit = 0.92 - 4.2 / b, odds = chance / (1 - chance);
  Value alpha = (5.1 / b + 2.83) * deviation, mode = Floor((count + 1) * chance);
  auto log_ways = [&](Value k) { return -Lgamma(k + 1) - Lgamma(count - k + 1); };
  Value result = UntilAccepted(stream, Not(large), small, [&](Stream& draw) -> Proposal {
    Value u = draw.Uniform(element, dims, true) - 0.5, v = draw.Uniform(element, dims, true);
    Value us = 0.5 - Abs(u);
    Value k = Floor((2 * a / us + b) * u + count * chance + 0.5);
    Value inside = And(k >= 0, k <= count);
    Value fast = And(us >= 0.07, v <= limit);
    Value ratio = log_ways(k) - log_ways(mode) + (k - mode) * Log(odds);
    Value exact = Log(v * alpha / (a / (us * us) + b)) <= ratio;
    return {And(inside, Or(fast, exact)), k};
  });
  result = Select(some, Minimum(result, n), 0);
  result = Select(flipped, n - result, result);
  result = Select(n > 0, result, 0);
  result = Select(Or(IsNan(n), IsNan(p)), kNan, result);
  return ToOutputElement(cx, result);
}

Value _standard_gamma(LoweringContext& cx, Value seed, Value self) {
  const ElementType element = FloatFor(cx);
  const Dims dims = cx.output_dims();
  Stream stream(cx, seed);
  Value alpha = To(self, element, dims);
  // Rejection from a transformed normal (Marsaglia and Tsang 2000). For alpha below 1: a sample for
  // alpha + 1 times a uniform number to the power of 1 / alpha.
  Value below = alpha < 1, valid = And(alpha > 0, alpha < kInfinity);
  Value d = Select(valid, Select(below, alpha + 1, alpha), 1) - 1.0 / 3;
  Value c = Rsqrt(d * 9);
  Value power = Power(stream.Uniform(element, dims, true), 1 / Select(valid, alpha, 1));
  Value boost = Select(below, power, 1);
  Value result = UntilAccepted(stream, Not(valid), alpha, [&](Stream& draw) -> Proposal {
    Value x = draw.Normal(element, dims), u = draw.Uniform(element, dims, true);
    Value v = c * x + 1;
    v = v * v * v;
    Value bound = x * x * 0.5 + d * (1 - v + Log(Maximum(v, 1e-30)));
    return {And(v > 0, Log(u) < bound), d * v * boost};
  });
  // PyTorch's samples are positive in the type of the result.
  const double least = cx.output_element() == ElementType::kF64 ? std::numeric_limits<double>::min()
                       : cx.output_element() == ElementType::kF16
                           ? 0x1p-14
                           : std::numeric_limits<float>::min();
  result = Select(alpha >= 0, Maximum(result, least), kNan);
  return ToOutputElement(cx, result);
}

Value randperm(LoweringContext& cx, Value seed) {
  const Dims dims = cx.output_dims();
  // The index is the last bits of a random key, since XLA:CPU sorts one array much faster than two.
  // In the rare case that the other bits are equal, the smaller index comes first.
  const uint64_t mask = std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(dims[0], 1))) - 1;
  Value bits = Stream(cx, seed).Bits(ElementType::kU64, dims);
  Value index = Iota(cx.builder(), bits.type(), 0);
  Value keys = Or(And(bits, FullLike(bits, static_cast<int64_t>(~mask))), index);
  Value sorted = Sort({keys}, 0, /*stable=*/false, [](std::span<const Value> args) {
    return std::vector<Value>{Compare(args[0], args[1], Direction::kLt)};
  })[0];
  return ToOutputElement(cx, And(sorted, FullLike(sorted, static_cast<int64_t>(mask))));
}

Value multinomial(LoweringContext& cx, Value seed, Value weights, bool replacement) {
  const Dims out = cx.output_dims();
  const int64_t n = weights.dims().back(), k = out.back();
  const int64_t rows = weights.rank() == 2 ? weights.dim(0) : 1;
  const ElementType element =
      weights.element() == ElementType::kF64 ? ElementType::kF64 : ElementType::kF32;
  weights = Reshape(Convert(weights, element), {rows, n});
  if (replacement && k > 1) {
    // The inverse of the distribution function: the number of cumulative weights that are not above
    // u. A weight of zero gets its predecessor's sum, in whatever order sums were computed, so that
    // it is never the first one above u.
    Value sums = Scan(weights, 1, ReduceOp::kAdd);
    Value cumulated = Scan(Select(weights > 0, sums, 0), 1, ReduceOp::kMax);
    Value total = BroadcastInDim(Slice(cumulated, {0, n - 1}, {rows, n}), {rows, k}, {0, 1});
    Value u = Stream(cx, seed).Uniform(element, {rows, k}) * total;
    u = Select(u < total, u, 0);  // rounding may have reached total
    Value index = Minimum(CountBefore(cumulated, u, /*right=*/true), n - 1);
    return Reshape(ToOutputElement(cx, index), out);
  }
  // The k smallest of exponential variables divided by their weights (Efraimidis and Spirakis
  // 2006). For k = 1 that is the smallest one.
  Value u = Stream(cx, seed).Uniform(element, {rows, n}, /*centered=*/true);
  Value keys = Negate(Log(u)) / weights;
  if (k == 1) {
    Value least = Reduce(keys, {1}, ReduceOp::kMin);
    return Reshape(ToOutputElement(cx, FirstIndex(keys, least, {1})), out);
  }
  if (element == ElementType::kF32) {
    return Reshape(ToOutputElement(cx, stablehlo::TopK(Negate(keys), k).indices), out);
  }
  Value index = Iota(cx.builder(), {ElementType::kS64, {rows, n}}, 1);
  std::vector<Value> sorted =
      Sort({keys, index}, 1, /*stable=*/true, [](std::span<const Value> args) {
        return std::vector<Value>{Compare(args[0], args[1], Direction::kLt)};
      });
  return Reshape(Slice(sorted[1], {0, 0}, {rows, k}), out);
}

}  // namespace aten
}  // namespace torch_xla::lowering
