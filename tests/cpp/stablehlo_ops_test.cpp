// The operations of StableHLO: every one is compiled by a real plugin (PJRT_CPU_LIBRARY_PATH),
// several run for their values.
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>

#include "stablehlo_testing.h"

namespace torch_xla::stablehlo {
namespace {

// ---- Elementwise ----------------------------------------------------------------------

using UnaryOp = Value (*)(Value);
using BinaryOp = Value (*)(Value, Value);

constexpr UnaryOp kInexact[] = {Abs,   Cosine,     Exponential, ExponentialMinusOne,
                                Log,   LogPlusOne, Logistic,    Negate,
                                Rsqrt, Sign,       Sine,        Sqrt,
                                Tan,   Tanh,       Acos,        Acosh,
                                Asin,  Asinh,      Atan,        Atanh,
                                Conj,  Cosh,       Sinh,        Real,
                                Imag};
constexpr UnaryOp kReal[] = {Cbrt,    Ceil, Floor,  IsFinite, RoundNearestAfz, RoundNearestEven,
                             Digamma, Erf,  ErfInv, Erfc,     Lgamma,          IsInf,
                             IsNegInf};

TEST(Elementwise, EveryUnaryOpCompiles) {
  REQUIRE_PLUGIN();
  for (ElementType element : {kF16, kF32, kF64, kC64}) {
    SCOPED_TRACE(runtime::MlirName(element));
    Builder b;
    Value x = b.Parameter(Type(element, {2, 3}));
    std::vector<Value> outputs;
    for (UnaryOp op : kInexact) outputs.push_back(op(x));
    if (runtime::IsFloat(element)) {
      for (UnaryOp op : kReal) outputs.push_back(op(x));
    }
    for (Value v : outputs) EXPECT_EQ(v.dims(), x.dims());
    Compile(b.Finish(outputs));
  }
  for (ElementType element : {kS8, kS64, kU8, kU32, kPred}) {
    SCOPED_TRACE(runtime::MlirName(element));
    Builder b;
    Value x = b.Parameter(Type(element, {2, 3}));
    std::vector<Value> outputs = {Not(x)};
    if (element != kPred) {
      for (UnaryOp op : {CountLeadingZeros, PopulationCount, Negate}) {
        outputs.push_back(op(x));
      }
    }
    if (runtime::IsSigned(element)) {
      outputs.push_back(Abs(x));
      outputs.push_back(Sign(x));
    }
    Compile(b.Finish(outputs));
  }
}

TEST(Elementwise, EveryBinaryOpCompiles) {
  REQUIRE_PLUGIN();
  constexpr BinaryOp kNumbers[] = {Divide, Power, Subtract};
  constexpr BinaryOp kAll[] = {Add, Maximum, Minimum, Multiply};
  for (ElementType element : {kPred, kS8, kS64, kU32, kBF16, kF32, kF64, kC128}) {
    SCOPED_TRACE(runtime::MlirName(element));
    Builder b;
    Value x = b.Parameter(Type(element, {4})), y = b.Parameter(Type(element, {4}));
    Value p = b.Parameter(Type(kPred, {4}));
    std::vector<Value> outputs;
    auto add = [&](std::initializer_list<BinaryOp> ops) {
      for (BinaryOp op : ops) {
        outputs.push_back(op(x, y));
        EXPECT_EQ(outputs.back().type(), x.type());
      }
    };
    bool complex = runtime::IsComplex(element);
    for (BinaryOp op : kAll) {
      // XLA has no order of complex numbers.
      if (complex && (op == Maximum || op == Minimum)) continue;
      add({op});
    }
    if (element != kPred) {
      for (BinaryOp op : kNumbers) add({op});
      if (!complex) add({Remainder});
    }
    if (runtime::IsInteger(element) || element == kPred) add({And, Or, Xor});
    if (runtime::IsInteger(element)) add({ShiftLeft, ShiftRightArithmetic, ShiftRightLogical});
    if (runtime::IsFloat(element)) {
      add({Atan2, NextAfter});
      EXPECT_TYPE(Compare(x, y, Direction::kLt, true), kPred, {4});
    }
    if (complex) add({Atan2});
    for (Direction d : {Direction::kEq, Direction::kNe, Direction::kGe, Direction::kGt,
                        Direction::kLe, Direction::kLt}) {
      if (complex && d != Direction::kEq && d != Direction::kNe) continue;
      outputs.push_back(Compare(x, y, d));
    }
    outputs.push_back(Select(p, x, y));
    outputs.push_back(Select(Scalar(b, true, kPred), x, y));
    if (!complex) {
      outputs.push_back(Clamp(x, y, x));
      outputs.push_back(Clamp(ScalarLike(x, 0), y, ScalarLike(x, 1)));
    }
    if (element == kF32 || element == kF64) {
      EXPECT_TYPE(Complex(x, y), element == kF32 ? kC64 : kC128, {4});
    }
    Compile(b.Finish(outputs));
  }
}

TEST(Elementwise, Values) {
  REQUIRE_PLUGIN();
  Builder b;
  Value x = F32(b, {4}, {-1.5f, 0.5f, 2.5f, NAN});
  auto f = [&](Value v) { return Evaluate<float>(b, v); };
  EXPECT_EQ(f(RoundNearestEven(Slice(x, {0}, {3}))), (std::vector<float>{-2, 0, 2}));
  EXPECT_EQ(f(RoundNearestAfz(Slice(x, {0}, {3}))), (std::vector<float>{-2, 1, 3}));
  EXPECT_EQ(Evaluate<uint8_t>(b, IsFinite(x)), (std::vector<uint8_t>{1, 1, 1, 0}));
  EXPECT_EQ(Evaluate<uint8_t>(b, Compare(x, ZerosLike(x), Direction::kGt)),
            (std::vector<uint8_t>{0, 1, 1, 0}));
  // XLA's constant folding forgets the total order: keep it from seeing constants.
  Value opaque = OptimizationBarrier({x})[0];
  EXPECT_EQ(Evaluate<uint8_t>(b, Compare(opaque, ZerosLike(x), Direction::kGt, true)),
            (std::vector<uint8_t>{0, 1, 1, 1}));
  EXPECT_EQ(Evaluate<int32_t>(b, Convert(Slice(x, {0}, {3}), kS32)),
            (std::vector<int32_t>{-1, 0, 2}));
  EXPECT_EQ(Evaluate<uint8_t>(b, Convert(x, kPred)), (std::vector<uint8_t>{1, 1, 1, 1}));
  Value u = Array<uint8_t>(b, kU8, {2}, {200, 3}), v = Array<uint8_t>(b, kU8, {2}, {100, 100});
  EXPECT_EQ(Evaluate<uint8_t>(b, Compare(u, v, Direction::kGt)), (std::vector<uint8_t>{1, 0}));
  EXPECT_EQ(Evaluate<uint8_t>(b, Maximum(u, v)), (std::vector<uint8_t>{200, 100}));
  Value s = Array<int32_t>(b, kS32, {2}, {-7, 7}), t = Array<int32_t>(b, kS32, {2}, {2, -2});
  EXPECT_EQ(Evaluate<int32_t>(b, Divide(s, t)), (std::vector<int32_t>{-3, -3}));
  EXPECT_EQ(Evaluate<int32_t>(b, Remainder(s, t)), (std::vector<int32_t>{-1, 1}));
  EXPECT_EQ(Evaluate<int32_t>(b, BitcastConvert(F32(b, {1}, {1.0f}), kS32)),
            (std::vector<int32_t>{0x3F800000}));
  struct {
    UnaryOp op;
    float x, expected;
  } table[] = {{Erf, 0.5f, 0.5204999f},
               {Erfc, 0.5f, 0.4795001f},
               {ErfInv, 0.5f, 0.4769363f},
               {Lgamma, 4.f, 1.7917595f},
               {Digamma, 1.f, -0.5772157f},
               {Sinh, 1.f, 1.1752012f},
               {Cosh, 1.f, 1.5430806f},
               {Asin, 0.5f, 0.5235988f},
               {Acos, 0.5f, 1.0471976f},
               {Atan, 1.f, 0.7853982f},
               {Asinh, 1.f, 0.8813736f},
               {Acosh, 2.f, 1.3169579f},
               {Atanh, 0.5f, 0.5493061f},
               {Tan, 1.f, 1.5574077f},
               {Logistic, 1.f, 0.7310586f},
               {Cbrt, 27.f, 3.f},
               {Rsqrt, 4.f, 0.5f},
               {LogPlusOne, 1.f, 0.6931472f},
               {ExponentialMinusOne, 1.f, 1.7182818f}};
  std::vector<Value> parts;
  for (const auto& row : table) parts.push_back(row.op(Constant(b, row.x, Type(kF32, {1}))));
  std::vector<float> got = f(Concatenate(parts, 0));
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], table[i].expected, 2e-6) << i;
}

TEST(Elementwise, EveryConversionCompiles) {
  REQUIRE_PLUGIN();
  Builder b;
  std::vector<Value> outputs;
  auto is_f8 = [](int e) {
    return e >= static_cast<int>(kF8E4M3FN) && e <= static_cast<int>(kF8E8M0FNU);
  };
  for (int from = static_cast<int>(kPred); from <= static_cast<int>(kC128); ++from) {
    Value x = b.Parameter(Type(static_cast<ElementType>(from), {3}));
    for (int to = static_cast<int>(kPred); to <= static_cast<int>(kC128); ++to) {
      bool wide = from == static_cast<int>(kF32) || to == static_cast<int>(kF32);
      if ((is_f8(from) || is_f8(to)) && !wide) continue;  // compiling them all takes long
      outputs.push_back(Convert(x, static_cast<ElementType>(to)));
    }
  }
  EXPECT_EQ(Convert(outputs[0], outputs[0].element()), outputs[0]);
  Value x = b.Parameter(Type(kF32, {4}));
  EXPECT_TYPE(BitcastConvert(x, kU8), kU8, {4, 4});
  EXPECT_TYPE(BitcastConvert(BitcastConvert(x, kU8), kF32), kF32, {4});
  EXPECT_TYPE(BitcastConvert(x, kS32), kS32, {4});
  Compile(b.Finish(outputs));
}

// ---- Shapes ---------------------------------------------------------------------------

TEST(Shapes, InferenceAndCompilation) {
  Builder b;
  Value x = b.Parameter(Type(kF32, {2, 3})), s = b.Parameter(Type(kS64, {}));
  Value zero = Scalar(b, 0, kF32);
  std::vector<Value> outputs;
  auto expect = [&](Value v, Dims dims) {
    EXPECT_EQ(v.type(), Type(kF32, dims));
    outputs.push_back(v);
  };
  EXPECT_EQ(Reshape(x, {2, 3}), x);
  EXPECT_EQ(BroadcastTo(x, {2, 3}), x);
  EXPECT_EQ(Transpose(x, {0, 1}), x);
  EXPECT_EQ(Transpose(Transpose(x, {1, 0}), {1, 0}), x);
  EXPECT_EQ(Slice(x, {0, 0}, {2, 3}), x);
  expect(Reshape(x, {3, 1, 2}), {3, 1, 2});
  expect(Reshape(Reshape(zero, {1, 1}), {}), {});
  expect(BroadcastInDim(x, {3, 4, 2}, {2, 0}), {3, 4, 2});
  expect(BroadcastTo(x, {5, 2, 3}), {5, 2, 3});
  expect(BroadcastTo(Reshape(Slice(x, {0, 0}, {2, 1}), {2, 1}), {2, 7}), {2, 7});
  expect(BroadcastTo(zero, {4}), {4});
  expect(Transpose(x, {1, 0}), {3, 2});
  expect(Slice(x, {0, 1}, {2, 3}), {2, 2});
  expect(Slice(x, {0, 0}, {2, 3}, {1, 2}), {2, 2});
  expect(Slice(x, {1, 1}, {1, 3}), {0, 2});
  expect(DynamicSlice(x, {s, s}, {1, 2}), {1, 2});
  expect(DynamicUpdateSlice(x, Slice(x, {0, 0}, {1, 1}), {s, s}), {2, 3});
  expect(Pad(x, zero, {1, -1}, {0, 2}), {3, 4});
  expect(Pad(x, zero, {0, 0}, {0, 0}, {1, 2}), {3, 7});
  expect(Concatenate({x, x, x}, 1), {2, 9});
  expect(Reverse(x, {1}), {2, 3});
  expect(Iota(b, Type(kF32, {3, 2}), 1), {3, 2});
  EXPECT_EQ(Concatenate({x}, 0), x);
  EXPECT_EQ(BroadcastShape({3, 1}, {2, 1, 4}), (Dims{2, 3, 4}));
  EXPECT_EQ(BroadcastShape({}, {2}), (Dims{2}));
  REQUIRE_PLUGIN();
  Compile(b.Finish(outputs));
  Builder v;
  Value y = F32(v, {2, 3}, {0, 1, 2, 3, 4, 5});
  EXPECT_EQ(Evaluate<float>(v, Transpose(y, {1, 0})), (std::vector<float>{0, 3, 1, 4, 2, 5}));
  Value z = Transpose(Reshape(y, {3, 1, 2}), {2, 0, 1});
  EXPECT_EQ(Transpose(z, {2, 0, 1}).dims(), (Dims{1, 2, 3}));
  EXPECT_EQ(Evaluate<float>(v, Transpose(z, {2, 0, 1})), (std::vector<float>{0, 2, 4, 1, 3, 5}));
  EXPECT_EQ(Evaluate<float>(v, Transpose(Reshape(z, {3, 2}), {1, 0})),
            (std::vector<float>{0, 4, 3, 2, 1, 5}));
  EXPECT_EQ(Evaluate<float>(v, BroadcastInDim(F32(v, {2}, {7, 8}), {3, 2}, {1})),
            (std::vector<float>{7, 8, 7, 8, 7, 8}));
  EXPECT_EQ(Evaluate<float>(v, Pad(y, Scalar(v, 9, kF32), {0, 1}, {0, 0}, {1, 0})),
            (std::vector<float>{9, 0, 1, 2, 9, 9, 9, 9, 9, 3, 4, 5}));
}

// ---- Gather, scatter --------------------------------------------------------------------

/// Whether an update of a reshape of `root` is written in place, and not by a selection.
bool UpdatesInPlace(const std::function<Value(Value root)>& update, Dims starts) {
  Builder b;
  Value root = b.Parameter(Type(kF32, {1, 20})), x = Reshape(root, {20});
  std::vector<Value> indices;
  for (int64_t start : starts) indices.push_back(Scalar(b, start, kS32));
  Value result = DynamicUpdateSlice(x, update(root), indices, starts);
  return b.Finish({result}).find("stablehlo.select") == std::string::npos;
}

TEST(StableHloTest, UpdatesThatReadWhatTheyOverwrite) {
  auto part = [](int64_t begin, int64_t end) {
    return [=](Value root) { return Slice(Reshape(root, {20}), {begin}, {end}); };
  };
  EXPECT_TRUE(UpdatesInPlace(part(0, 5), {5}));
  EXPECT_TRUE(UpdatesInPlace(part(5, 10), {5}));
  EXPECT_TRUE(UpdatesInPlace([&](Value x) { return Tanh(part(5, 10)(x)); }, {5}));
  EXPECT_FALSE(UpdatesInPlace(part(4, 9), {5}));
  EXPECT_FALSE(UpdatesInPlace([&](Value x) { return Reverse(part(5, 10)(x), {0}); }, {5}));
  EXPECT_FALSE(UpdatesInPlace([&](Value x) { return part(4, 9)(Tanh(x)); }, {5}));
  EXPECT_FALSE(
      UpdatesInPlace([](Value x) { return Reshape(Tanh(Slice(x, {0, 4}, {1, 9})), {5}); }, {5}));
  auto constant = [](Value root) { return Constant(root.builder(), 0, Type(kF32, {5})); };
  EXPECT_TRUE(UpdatesInPlace(constant, {5}));
  auto called = [&](Value x) {
    return x.builder().Op("stablehlo.custom_call", {part(4, 9)(x)}, Type(kF32, {5}), "");
  };
  EXPECT_TRUE(UpdatesInPlace(called, {5}));
}

TEST(Index, GatherAndScatter) {
  Builder b;
  Value table = F32(b, {3, 2}, {0, 1, 10, 11, 20, 21});
  Value rows = Array<int32_t>(b, kS32, {4}, {2, 0, 1, 2});
  GatherDimensionNumbers take;
  take.offset_dims = {1};
  take.collapsed_slice_dims = {0};
  take.start_index_map = {0};
  take.index_vector_dim = 1;
  Value taken = Gather(table, rows, take, {1, 2});
  EXPECT_TYPE(taken, kF32, {4, 2});
  // torch.gather along dimension 1, with batching dimensions.
  Value columns = Array<int64_t>(b, kS64, {3, 1, 1}, {1, 0, 1});
  GatherDimensionNumbers along;
  along.collapsed_slice_dims = {1};
  along.operand_batching_dims = {0};
  along.start_indices_batching_dims = {0};
  along.start_index_map = {1};
  along.index_vector_dim = 2;
  Value picked = Gather(table, columns, along, {1, 1}, true);
  EXPECT_TYPE(picked, kF32, {3, 1});

  ScatterDimensionNumbers put;
  put.update_window_dims = {1};
  put.inserted_window_dims = {0};
  put.scatter_dims_to_operand_dims = {0};
  put.index_vector_dim = 1;
  Value updates = F32(b, {4, 2}, {1, 1, 2, 2, 3, 3, 4, 4});
  Value added = Scatter(table, rows, updates, put, ReduceOp::kAdd);
  EXPECT_TYPE(added, kF32, {3, 2});
  ScatterDimensionNumbers put_along;
  put_along.inserted_window_dims = {1};
  put_along.input_batching_dims = {0};
  put_along.scatter_indices_batching_dims = {0};
  put_along.scatter_dims_to_operand_dims = {1};
  put_along.index_vector_dim = 2;
  Value replaced =
      Scatter(table, columns, F32(b, {3, 1}, {-1, -2, -3}), put_along, std::nullopt, false, true);
  Value counts = Constant(b, 0, Type(kS32, {3, 2}));
  auto both = Scatter({table, counts}, rows, {updates, Constant(b, 1, Type(kS32, {4, 2}))}, put,
                      [](std::span<const Value> v) -> std::vector<Value> {
                        return {Maximum(v[0], v[2]), Add(v[1], v[3])};
                      });
  EXPECT_TYPE(both[1], kS32, {3, 2});
  // A scalar index.
  Value one = Scalar(b, 1, kS32);
  Value row = Gather(table, one,
                     {.offset_dims = {0},
                      .collapsed_slice_dims = {0},
                      .operand_batching_dims = {},
                      .start_indices_batching_dims = {},
                      .start_index_map = {0},
                      .index_vector_dim = 0},
                     {1, 2});
  EXPECT_TYPE(row, kF32, {2});
  REQUIRE_PLUGIN();
  EXPECT_EQ(Evaluate<float>(b, taken), (std::vector<float>{20, 21, 0, 1, 10, 11, 20, 21}));
  EXPECT_EQ(Evaluate<float>(b, picked), (std::vector<float>{1, 10, 21}));
  EXPECT_EQ(Evaluate<float>(b, added), (std::vector<float>{2, 3, 13, 14, 25, 26}));
  EXPECT_EQ(Evaluate<float>(b, replaced), (std::vector<float>{0, -1, -2, 11, 20, -3}));
  EXPECT_EQ(Evaluate<int32_t>(b, both[1]), (std::vector<int32_t>{1, 1, 1, 1, 2, 2}));
  EXPECT_EQ(Evaluate<float>(b, row), (std::vector<float>{10, 11}));
}

// ---- Dot and convolution ----------------------------------------------------------------

TEST(Dot, InferenceAndValues) {
  Builder b;
  Value x = b.Parameter(Type(kBF16, {5, 2, 3})), y = b.Parameter(Type(kBF16, {3, 4, 5}));
  Value batched = DotGeneral(x, y, {{0}, {2}, {2}, {0}}, Precision::kHighest, kF32);
  EXPECT_TYPE(batched, kF32, {5, 2, 4});
  Value outer = DotGeneral(x, y, {}, Precision::kHigh);
  EXPECT_TYPE(outer, kBF16, {5, 2, 3, 3, 4, 5});
  Value a = F32(b, {2, 2}, {1, 2, 3, 4}), v = F32(b, {2}, {1, 10});
  Value product = DotGeneral(a, v, {{}, {}, {1}, {0}});
  EXPECT_TYPE(product, kF32, {2});
  REQUIRE_PLUGIN();
  Compile(b.Finish({batched, outer, product}));
  Builder values;
  Value m = F32(values, {2, 2}, {1, 2, 3, 4}), w = F32(values, {2}, {1, 10});
  EXPECT_EQ(Evaluate<float>(values, DotGeneral(m, w, {{}, {}, {1}, {0}})),
            (std::vector<float>{21, 43}));
}

TEST(Dot, Convolution) {
  Builder b;
  Value image = b.Parameter(Type(kF32, {4, 6, 8, 9})),
        kernel = b.Parameter(Type(kF32, {10, 3, 3, 2}));
  auto nchw = ConvolutionDimensionNumbers::Nchw(2);
  ConvolutionOptions options;
  options.strides = {2, 1};
  options.padding = {{1, 1}, {0, 2}};
  options.rhs_dilation = {1, 2};
  options.feature_group_count = 2;
  options.precision = Precision::kHighest;
  Value grouped = Convolution(image, kernel, nchw, options);
  EXPECT_TYPE(grouped, kF32, {4, 10, 4, 9});
  ConvolutionOptions transposed;
  transposed.lhs_dilation = {2, 2};
  transposed.padding = {{2, 2}, {1, 1}};
  transposed.window_reversal = {true, true};
  Value up = Convolution(image, b.Parameter(Type(kF32, {5, 6, 3, 2})), nchw, transposed);
  EXPECT_TYPE(up, kF32, {4, 5, 17, 18});
  ConvolutionOptions batch_groups;
  batch_groups.batch_group_count = 2;
  Value grad = Convolution(image, b.Parameter(Type(kF32, {4, 6, 1, 1})), nchw, batch_groups);
  EXPECT_TYPE(grad, kF32, {2, 4, 8, 9});
  ConvolutionDimensionNumbers nhwc{0, 3, {1, 2}, 3, 2, {0, 1}, 0, 3, {1, 2}};
  Value last = Convolution(b.Parameter(Type(kF32, {1, 8, 8, 3})),
                           b.Parameter(Type(kF32, {3, 3, 3, 7})), nhwc);
  EXPECT_TYPE(last, kF32, {1, 6, 6, 7});
  EXPECT_THROW(Convolution(image, kernel, nchw), Error);
  REQUIRE_PLUGIN();
  Compile(b.Finish({grouped, up, grad, last}));
  Builder v;
  Value line = F32(v, {1, 1, 4}, {1, 2, 3, 4}), taps = F32(v, {1, 1, 2}, {1, 10});
  EXPECT_EQ(Evaluate<float>(v, Convolution(line, taps, ConvolutionDimensionNumbers::Nchw(1))),
            (std::vector<float>{21, 32, 43}));
}

// ---- Reductions -------------------------------------------------------------------------

TEST(Reductions, EveryShortcut) {
  Builder b;
  std::vector<Value> outputs;
  for (ElementType element : {kPred, kS8, kU16, kS64, kBF16, kF32, kF64, kC64}) {
    Value x = b.Parameter(Type(element, {2, 3, 4}));
    bool bits = element == kPred || runtime::IsInteger(element);
    for (ReduceOp op : {ReduceOp::kAdd, ReduceOp::kMul, ReduceOp::kMax, ReduceOp::kMin,
                        ReduceOp::kAnd, ReduceOp::kOr}) {
      if ((op == ReduceOp::kAnd || op == ReduceOp::kOr) && !bits) continue;
      if ((op == ReduceOp::kMax || op == ReduceOp::kMin) && element == kC64) continue;
      outputs.push_back(Reduce(x, {0, 2}, op));
      EXPECT_TYPE(outputs.back(), element, {3});
      outputs.push_back(ReduceWindow(x,
                                     {.dimensions = {1, 2, 2},
                                      .strides = {1, 1, 2},
                                      .base_dilations = {},
                                      .dilations = {1, 2, 1},
                                      .padding = {{0, 0}, {1, 0}, {0, 0}}},
                                     op));
      EXPECT_TYPE(outputs.back(), element, {2, 2, 2});
    }
    EXPECT_EQ(Reduce(x, {}, ReduceOp::kAdd), x);
  }
  REQUIRE_PLUGIN();
  Compile(b.Finish(outputs));
  Builder v;
  Value x = F32(v, {2, 3}, {1, 5, 3, -1, -5, -3});
  EXPECT_EQ(Evaluate<float>(v, Reduce(x, {1}, ReduceOp::kMax)), (std::vector<float>{5, -1}));
  EXPECT_EQ(Evaluate<float>(v, Reduce(x, {0, 1}, ReduceOp::kAdd)), (std::vector<float>{0}));
  EXPECT_EQ(Evaluate<float>(v, ReduceWindow(x, {.dimensions = {1, 2}}, ReduceOp::kMin)),
            (std::vector<float>{1, 3, -5, -5}));
}

TEST(Reductions, ArgMaxWithBody) {
  Builder b;
  Value x = F32(b, {2, 3}, {1, 5, 3, -1, -5, -3});
  Value index = Iota(b, Type(kS32, {2, 3}), 1);
  auto body = [](std::span<const Value> v) -> std::vector<Value> {
    Value first = Compare(v[0], v[2], Direction::kGe);
    return {Select(first, v[0], v[2]), Select(first, v[1], v[3])};
  };
  auto best = Reduce({x, index}, {LowestOrNegInf(b, kF32), Scalar(b, 0, kS32)}, {1}, body);
  EXPECT_TYPE(best[0], kF32, {2});
  EXPECT_TYPE(best[1], kS32, {2});
  auto windows = ReduceWindow({x, index}, {LowestOrNegInf(b, kF32), Scalar(b, 0, kS32)},
                              {.dimensions = {1, 2}}, body);
  EXPECT_TYPE(windows[1], kS32, {2, 2});
  REQUIRE_PLUGIN();
  EXPECT_EQ(Evaluate<int32_t>(b, best[1]), (std::vector<int32_t>{1, 0}));
  EXPECT_EQ(Evaluate<int32_t>(b, windows[1]), (std::vector<int32_t>{1, 1, 0, 2}));
}

TEST(Reductions, SortTopK) {
  Builder b;
  Value x = F32(b, {4}, {3, 1, 2, 4});
  auto sorted = Sort({x, Iota(b, Type(kS32, {4}), 0)}, 0, true,
                     [](std::span<const Value> v) -> std::vector<Value> {
                       return {Compare(v[0], v[1], Direction::kLt, true)};
                     });
  TopKResult top = TopK(x, 2);
  EXPECT_TYPE(top.values, kF32, {2});
  EXPECT_TYPE(top.indices, kS32, {2});
  REQUIRE_PLUGIN();
  EXPECT_EQ(Evaluate<float>(b, sorted[0]), (std::vector<float>{1, 2, 3, 4}));
  EXPECT_EQ(Evaluate<int32_t>(b, sorted[1]), (std::vector<int32_t>{1, 2, 0, 3}));
  EXPECT_EQ(Evaluate<int32_t>(b, top.indices), (std::vector<int32_t>{3, 0}));
}

// ---- Random numbers, FFT, linear algebra ------------------------------------------------

TEST(Math, Rng) {
  Builder b;
  Value state = b.Parameter(Type(kU64, {2})), long_state = b.Parameter(Type(kU64, {3}));
  std::vector<Value> outputs;
  for (ElementType element : {kU8, kU16, kU32, kU64, kS32, kS64}) {
    for (RngAlgorithm a :
         {RngAlgorithm::kDefault, RngAlgorithm::kThreeFry, RngAlgorithm::kPhilox}) {
      RngResult r = RngBitGenerator(state, a, Type(element, {3, 5}));
      EXPECT_EQ(r.state.type(), state.type());
      EXPECT_TYPE(r.bits, element, {3, 5});
      outputs.push_back(r.bits);
    }
  }
  outputs.push_back(RngBitGenerator(long_state, RngAlgorithm::kPhilox, Type(kU32, {8})).bits);
  REQUIRE_PLUGIN();
  Compile(b.Finish(outputs));
}

TEST(Math, Fft) {
  Builder b;
  Value c = b.Parameter(Type(kC64, {3, 4, 8})), r = b.Parameter(Type(kF32, {3, 8}));
  Value forward = Fft(c, FftType::kFft, {4, 8}), back = Fft(c, FftType::kIfft, {8});
  Value half = Fft(r, FftType::kRfft, {8});
  EXPECT_TYPE(forward, kC64, {3, 4, 8});
  EXPECT_TYPE(half, kC64, {3, 5});
  Value real = Fft(half, FftType::kIrfft, {8});
  EXPECT_TYPE(real, kF32, {3, 8});
  REQUIRE_PLUGIN();
  Compile(b.Finish({forward, back, half, real}));
  Builder v;
  Value x = Fft(F32(v, {2}, {1, 3}), FftType::kRfft, {2});
  EXPECT_EQ(Evaluate<float>(v, Real(x)), (std::vector<float>{4, -2}));
}

TEST(Math, LinearAlgebra) {
  Builder b;
  std::vector<Value> outputs;
  for (ElementType element : {kF32, kF64, kC64}) {
    Value a = b.Parameter(Type(element, {2, 3, 3})), rhs = b.Parameter(Type(element, {2, 3, 4}));
    Value rows = b.Parameter(Type(element, {2, 4, 3}));
    outputs.push_back(Cholesky(a, true));
    outputs.push_back(Cholesky(a, false));
    for (TransposeA t : {TransposeA::kNoTranspose, TransposeA::kTranspose, TransposeA::kAdjoint}) {
      outputs.push_back(TriangularSolve(a, rhs, Side::kLeft, true, false, t));
      EXPECT_EQ(outputs.back().type(), rhs.type());
      outputs.push_back(TriangularSolve(a, rows, Side::kRight, false, true, t));
    }
  }
  REQUIRE_PLUGIN();
  Compile(b.Finish(outputs));
  Builder v;
  Value a = F32(v, {2, 2}, {4, 0, 2, 5});
  EXPECT_EQ(Evaluate<float>(v, Slice(Cholesky(F32(v, {2, 2}, {4, 2, 2, 5}), true), {1, 0}, {2, 2})),
            (std::vector<float>{1, 2}));
  EXPECT_EQ(Evaluate<float>(v, TriangularSolve(a, F32(v, {2, 1}, {4, 7}), Side::kLeft, true, false,
                                               TransposeA::kNoTranspose)),
            (std::vector<float>{1, 1}));
}

// ---- Control ----------------------------------------------------------------------------

TEST(Control, WhileIfUseOuterValues) {
  Builder b;
  Value x = F32(b, {2}, {1, 2});
  Value limit = Scalar(b, 5, kS32);
  auto looped = While(
      {Scalar(b, 0, kS32), x},
      [&](std::span<const Value> v) -> std::vector<Value> {
        return {Compare(v[0], limit, Direction::kLt)};
      },
      [&](std::span<const Value> v) -> std::vector<Value> {
        return {Add(v[0], ScalarLike(v[0], 1)), Add(v[1], x)};
      });
  EXPECT_EQ(looped[1].type(), x.type());
  auto branch = If(
      Compare(looped[0], limit, Direction::kEq),
      [&](auto) -> std::vector<Value> { return {Negate(x), limit}; },
      [&](auto) -> std::vector<Value> { return {x, Scalar(b, 0, kS32)}; });
  auto inner = [&](auto) -> std::vector<Value> {
    return If(
        Scalar(b, true, kPred), [&](auto) -> std::vector<Value> { return {Multiply(x, x)}; },
        [&](auto) -> std::vector<Value> { return {x}; });
  };
  auto chosen = If(Scalar(b, false, kPred), [&](auto) -> std::vector<Value> { return {x}; }, inner);
  REQUIRE_PLUGIN();
  EXPECT_EQ(Evaluate<float>(b, looped[1]), (std::vector<float>{6, 12}));
  EXPECT_EQ(Evaluate<float>(b, branch[0]), (std::vector<float>{-1, -2}));
  EXPECT_EQ(Evaluate<int32_t>(b, branch[1]), (std::vector<int32_t>{5}));
  EXPECT_EQ(Evaluate<float>(b, chosen[0]), (std::vector<float>{1, 4}));
}

TEST(Control, RegionsOfReductionsUseOuterConstants) {
  Builder b;
  Value x = F32(b, {3}, {1, 2, 3});
  Value two = Scalar(b, 2, kF32);
  Value y = Reduce({x}, {Scalar(b, 0, kF32)}, {0}, [&](std::span<const Value> v) {
    return std::vector<Value>{Add(v[0], Multiply(v[1], ScalarLike(v[1], 2)))};
  })[0];
  REQUIRE_PLUGIN();
  EXPECT_EQ(Evaluate<float>(b, Add(y, two)), (std::vector<float>{14}));
}

TEST(Control, BarrierCustomCalls) {
  Builder b;
  Value x = b.Parameter(Type(kF32, {2, 3}));
  auto barrier = OptimizationBarrier({x, Abs(x)});
  EXPECT_EQ(barrier[1].type(), x.type());
  REQUIRE_PLUGIN();
  // XLA's own target; the others are only known to a registry.
  Value sharded = CustomCall(b, "Sharding", {barrier[0]}, {x.type()},
                             {.api_version = 1,
                              .backend_config = "",
                              .has_side_effect = false,
                              .aliases = {},
                              .operand_layouts = {{1, 0}},
                              .result_layouts = {{1, 0}},
                              .attributes = "mhlo.sharding = \"{replicated}\""})[0];
  Compile(b.Finish({sharded, barrier[1]}));
}

TEST(Control, CustomCallText) {
  Builder b;
  Value x = b.Parameter(Type(kF32, {2})), token = b.Parameter(Type::Token());
  CustomCallOptions typed;
  typed.backend_config = "axis = 1 : i64, name = \"a\"";
  typed.has_side_effect = true;
  typed.aliases = {{1, 0}};
  auto results =
      CustomCall(b, "my.call", {x, token}, {Type(kS32, {}), x.type(), Type::Token()}, typed);
  EXPECT_EQ(results[2].type(), Type::Token());
  std::string text = b.Finish({results[1]});
  EXPECT_NE(
      text.find(
          R"(%0:3 = "stablehlo.custom_call"(%arg0, %arg1) {call_target_name = "my.call", api_version = 4 : i32, has_side_effect = true, backend_config = {axis = 1 : i64, name = "a"}, output_operand_aliases = [#stablehlo.output_operand_alias<output_tuple_indices = [1], operand_index = 0, operand_tuple_indices = []>]} : (tensor<2xf32>, !stablehlo.token) -> (tensor<i32>, tensor<2xf32>, !stablehlo.token))"),
      std::string::npos)
      << text;
  REQUIRE_PLUGIN();
  // The text parses and verifies: what fails is only that nobody registered the target.
  for (int version : {1, 4}) {
    Builder c;
    Value y = c.Parameter(Type(kF32, {2}));
    CustomCallOptions options;
    options.api_version = version;
    options.backend_config = version == 4 ? "axis = 1 : i64" : "opaque \"bytes\"";
    options.aliases = {{0, 0}};
    Value z = CustomCall(c, "no.such.target", {y}, {y.type()}, options)[0];
    try {
      PluginClient()->Compile(c.Finish({z}), {})->Execute({});
    } catch (const runtime::Error& e) {
      EXPECT_EQ(std::string(e.what()).find("parse"), std::string::npos) << e.what();
    }
  }
}

}  // namespace
}  // namespace torch_xla::stablehlo
