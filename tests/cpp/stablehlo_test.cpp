// The StableHLO builder: inferred types, errors, text, constants, collectives.
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>

#include "stablehlo/joined_dims.h"
#include "stablehlo_testing.h"

namespace torch_xla::stablehlo {
namespace {

// ---- Types, text, the builder ---------------------------------------------------------

TEST(Type, Spelling) {
  EXPECT_EQ(Type(kF32, {2, 3}).ToString(), "tensor<2x3xf32>");
  EXPECT_EQ(Type(kPred, {}).ToString(), "tensor<i1>");
  EXPECT_EQ(Type(kU8, {0}).ToString(), "tensor<0xui8>");
  EXPECT_EQ(Type(kC64, {4}).ToString(), "tensor<4xcomplex<f32>>");
  EXPECT_EQ(Type::Token().ToString(), "!stablehlo.token");
  EXPECT_EQ(Type(kF32, {2, 3}).num_elements(), 6);
  EXPECT_EQ(Type(kF32, {}).num_elements(), 1);
  EXPECT_NE(Type(kF32, {2}), Type(kF32, {2, 1}));
}

TEST(Builder, GoldenModule) {
  Builder b;
  Value x = b.Parameter(Type(kF32, {2, 3}));
  Value y = b.Parameter(Type(kF32, {3}), "mhlo.sharding = \"{replicated}\"");
  b.SetLocation("a \"b\".py", 7, "train/add");
  Value sum = Add(x, BroadcastTo(y, {2, 3}));
  b.ClearLocation();
  Value total = Reduce(sum, {1}, ReduceOp::kAdd);
  b.SetAlias(0, 0);
  b.AddOutputAttributes(1, "mhlo.sharding = \"{replicated}\"");
  std::string text = b.Finish({sum, total}, "step");
  EXPECT_EQ(text,
            R"(module @step {
  func.func public @main(%arg0: tensor<2x3xf32> {tf.aliasing_output = 0 : i32}, %arg1: tensor<3xf32> {mhlo.sharding = "{replicated}"}) -> (tensor<2x3xf32>, tensor<2xf32> {mhlo.sharding = "{replicated}"}) {
    %0 = "stablehlo.broadcast_in_dim"(%arg1) {broadcast_dimensions = array<i64: 1>} : (tensor<3xf32>) -> tensor<2x3xf32> loc("train/add"("a \22b\22.py":7:0))
    %1 = "stablehlo.add"(%arg0, %0) : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32> loc("train/add"("a \22b\22.py":7:0))
    %2 = "stablehlo.constant"() {value = dense<0.0> : tensor<f32>} : () -> tensor<f32>
    %3 = stablehlo.reduce(%1 init: %2) applies stablehlo.add across dimensions = [1] : (tensor<2x3xf32>, tensor<f32>) -> tensor<2xf32>
    return %1, %3 : tensor<2x3xf32>, tensor<2xf32>
  }
}
)");
  REQUIRE_PLUGIN();
  auto executable = Compile(text);
  ASSERT_NE(executable, nullptr);
  EXPECT_EQ(executable->num_outputs(), 2u);
}

TEST(Builder, Partitions) {
  Builder b;
  EXPECT_EQ(b.partitions(), 1);
  b.SetPartitions(2);
  EXPECT_TRUE(b.Finish({b.Parameter(Type(kF32, {2}))})
                  .starts_with("module @main attributes {mhlo.num_partitions = 2 : i32, "
                               "mhlo.num_replicas = 1 : i32} {"));
}

/// A function of one argument that calls `inner`, text of another.
std::string CallerOf(const std::string& inner, FunctionForm form) {
  Builder b;
  b.TakeFunctions(form);
  Value x = b.Parameter(Type(kF32, {2}));
  return b.Finish(b.Call(b.AddFunctions(inner), std::vector<Value>{x}));
}

TEST(Builder, FunctionsOfTwoForms) {
  auto write = [](Value (*body)(Value)) {
    Builder b;
    return b.Finish({body(b.Parameter(Type(kF32, {2})))});
  };
  const std::string plain = write([](Value x) { return Sine(x); });
  const std::string calling = write([](Value x) { return Cosine(x); });
  EXPECT_EQ(JoinForms(plain, plain), plain);
  const std::string both = JoinForms(plain, calling);
  auto has = [](const std::string& text, std::string_view word) {
    return text.find(word) != std::string::npos;
  };
  // A function around it has both, too.
  for (const std::string& text : {both, CallerOf(both, FunctionForm::kBoth)}) {
    EXPECT_TRUE(has(text, "sine") && has(text, "torch_xla.calling")) << text;
    const std::string without = CallerOf(text, FunctionForm::kPlain);
    const std::string with = CallerOf(text, FunctionForm::kCalling);
    EXPECT_TRUE(has(without, "stablehlo.sine") && !has(without, "cosine")) << without;
    EXPECT_TRUE(has(with, "cosine") && !has(with, "stablehlo.sine")) << with;
    EXPECT_FALSE(has(without + with, "torch_xla.calling"));
    EXPECT_EQ(ParseFunctions(text).results, std::vector<Type>{Type(kF32, {2})});
  }
  // A function that calls one of both forms can have two itself.
  const std::string outer = JoinForms(CallerOf(both, FunctionForm::kPlain), calling);
  EXPECT_FALSE(has(CallerOf(outer, FunctionForm::kCalling), "stablehlo.sine"));
  REQUIRE_PLUGIN();
  EXPECT_NE(Compile(CallerOf(both, FunctionForm::kCalling)), nullptr);
}

TEST(Builder, JoinsShortDimensions) {
  Builder b;
  b.JoinDimensions(true);
  Value x = b.Parameter(Type(kF32, {8, 16, 7, 7}));
  Value scale = b.Parameter(Type(kF32, {16}));
  Value scaled = Multiply(x, BroadcastInDim(scale, x.dims(), {1}));
  auto form = [&](Value value) { return ComputedForm(value).dims(); };
  EXPECT_EQ(form(scaled), x.dims());  // no costly op
  EXPECT_EQ(form(Exponential(x)), (Dims{8, 784}));
  // Along the channels alone: the pixels are joined; what follows keeps that.
  Value ratio = Divide(x, BroadcastInDim(scale, x.dims(), {1}));
  EXPECT_EQ(form(ratio), (Dims{8, 16, 49}));
  EXPECT_EQ(form(Add(Negate(ratio), x)), (Dims{8, 16, 49}));
  // Along the last dimension alone, and of what is read from other places.
  Value row = b.Parameter(Type(kF32, {7}));
  EXPECT_EQ(form(Divide(x, BroadcastInDim(row, x.dims(), {3}))), x.dims());
  Value sliced = Slice(Exponential(x), {0, 0, 0, 0}, {8, 16, 6, 7});
  EXPECT_EQ(form(Exponential(sliced)), sliced.dims());

  Builder whole;
  Value y = Exponential(whole.Parameter(Type(kF32, {8, 16, 7, 7})));
  EXPECT_EQ(ComputedForm(y), y);
}

TEST(Builder, RegionText) {
  Builder b;
  Value x = b.Parameter(Type(kS32, {}));
  Value y = While(
      {x},
      [](std::span<const Value> v) -> std::vector<Value> {
        return {Compare(v[0], ScalarLike(v[0], 10), Direction::kLt)};
      },
      [](std::span<const Value> v) -> std::vector<Value> {
        return {Add(v[0], ScalarLike(v[0], 3))};
      })[0];
  EXPECT_EQ(b.Finish({y}), R"(module @main {
  func.func public @main(%arg0: tensor<i32>) -> (tensor<i32>) {
    %6 = "stablehlo.while"(%arg0) ({
    ^bb0(%0: tensor<i32>):
      %1 = "stablehlo.constant"() {value = dense<10> : tensor<i32>} : () -> tensor<i32>
      %2 = "stablehlo.compare"(%0, %1) {comparison_direction = #stablehlo<comparison_direction LT>, compare_type = #stablehlo<comparison_type SIGNED>} : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %2 : tensor<i1>
    }, {
    ^bb0(%3: tensor<i32>):
      %4 = "stablehlo.constant"() {value = dense<3> : tensor<i32>} : () -> tensor<i32>
      %5 = "stablehlo.add"(%3, %4) : (tensor<i32>, tensor<i32>) -> tensor<i32>
      stablehlo.return %5 : tensor<i32>
    }) : (tensor<i32>) -> tensor<i32>
    return %6 : tensor<i32>
  }
}
)");
}

TEST(Builder, NamesAreQuotedWhereNeeded) {
  Builder b;
  Value x = b.Parameter(Type(kF32, {}));
  std::string text = b.Finish({x}, "my graph/1");
  EXPECT_EQ(text.substr(0, 23), "module @\"my graph/1\" {\n");
  REQUIRE_PLUGIN();
  Compile(text);
  Builder none;
  Compile(none.Finish({}));
}

TEST(Builder, EqualConstantsAreMadeOnce) {
  Builder b;
  Value a = Scalar(b, 1.0, kF32), c = Scalar(b, 1, kF32), d = Scalar(b, 1.0, kF64);
  EXPECT_EQ(a, c);
  EXPECT_NE(a, d);
  EXPECT_EQ(Iota(b, Type(kS32, {4}), 0), Iota(b, Type(kS32, {4}), 0));
  EXPECT_EQ(b.num_ops(), 3);
}

TEST(Builder, MisusedValuesThrow) {
  Builder b, other;
  Value x = b.Parameter(Type(kF32, {2})), foreign = other.Parameter(Type(kF32, {2}));
  EXPECT_THROW(Add(x, foreign), Error);
  EXPECT_THROW(Add(x, Value()), Error);
  EXPECT_THROW(Abs(Value()), Error);
  EXPECT_THROW(Value().type(), Error);
  EXPECT_THROW(x.dim(1), Error);
  EXPECT_EQ(x.dim(-1), 2);
  EXPECT_THROW(b.Finish({foreign}), Error);
  EXPECT_THROW(b.Finish({Value()}), Error);
  EXPECT_THROW(b.Op("stablehlo.abs", {foreign}, x.type()), Error);
  // A value does not leave its region, also after an exception inside one.
  Value inner;
  If(
      Scalar(b, true, kPred), [&](auto) -> std::vector<Value> { return {inner = Add(x, x)}; },
      [&](auto) -> std::vector<Value> { return {x}; });
  EXPECT_THROW(Abs(inner), Error);
  EXPECT_THROW(If(
                   Scalar(b, true, kPred), [&](auto) -> std::vector<Value> { throw Error("mine"); },
                   [&](auto) -> std::vector<Value> { return {x}; }),
               Error);
  EXPECT_THROW(If(
                   Scalar(b, true, kPred), [&](auto) -> std::vector<Value> { return {inner}; },
                   [&](auto) -> std::vector<Value> { return {x}; }),
               Error);
  EXPECT_NO_THROW(b.Finish({Abs(x)}));
  EXPECT_THROW(b.Function("f", {}, [&](auto) -> std::vector<Value> { return {Abs(x)}; }), Error);
}

TEST(Builder, AliasesAreChecked) {
  Builder b;
  Value x = b.Parameter(Type(kF32, {2})), y = b.Parameter(Type(kF32, {2}));
  Value z = b.Parameter(Type(kF32, {3}));
  b.SetAlias(0, 0);
  EXPECT_NO_THROW(b.Finish({x}));
  EXPECT_THROW(b.Finish({z}), Error);
  EXPECT_THROW(b.Finish({}), Error);
  b.SetAlias(1, 0);
  EXPECT_THROW(b.Finish({y}), Error);
  b.SetAlias(1, -1);
  EXPECT_NO_THROW(b.Finish({y}));
  EXPECT_THROW(b.SetAlias(3, 0), Error);
}

TEST(Builder, PrivateFunctions) {
  Builder b;
  Value x = F32(b, {2}, {3, 4});
  auto square = [](std::span<const Value> v) -> std::vector<Value> {
    return {Multiply(v[0], v[0]), Negate(v[0])};
  };
  std::string f = b.Function("square", {{x.type()}}, square);
  std::string g = b.Function("square", {{x.type()}}, square);
  EXPECT_EQ(f, "square");
  EXPECT_NE(f, g);
  std::vector<Value> y = b.Call(f, {{x}}), z = b.Call(g, y = {y[0]});
  EXPECT_THROW(b.Call("cube", {{x}}), Error);
  EXPECT_THROW(b.Call(f, {}), Error);
  REQUIRE_PLUGIN();
  EXPECT_EQ(Evaluate<float>(b, z[0]), (std::vector<float>{81, 256}));
}

TEST(Builder, TenThousandOpsAreLinear) {
  auto build = [](int ops) {
    auto start = std::chrono::steady_clock::now();
    Builder b;
    Value x = b.Parameter(Type(kF32, {128, 128}));
    b.SetLocation("model.py", 1, "layer");
    for (int i = 0; i < ops; ++i) x = Add(x, x);
    EXPECT_GT(b.Finish({x}).size(), 100u * ops);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  build(1000);
  EXPECT_LT(build(100000), 5.0);
}

TEST(Builder, ErrorsNameOpAndTypes) {
  Builder b;
  Value x = b.Parameter(Type(kF32, {2, 3})), y = b.Parameter(Type(kS32, {2, 3}));
  EXPECT_EQ(ErrorOf([&] { Add(x, y); }),
            "stablehlo.add: expected operands of equal types, got tensor<2x3xf32>, "
            "tensor<2x3xi32>");
  EXPECT_EQ(ErrorOf([&] { And(x, x); }),
            "stablehlo.and: expected elements of type bool or signed integer or unsigned "
            "integer, got tensor<2x3xf32>, tensor<2x3xf32>");
  EXPECT_EQ(ErrorOf([&] { Reshape(x, {4}); }),
            "stablehlo.reshape: expected 4 elements for tensor<4xf32>, got tensor<2x3xf32>");
  EXPECT_EQ(ErrorOf([&] { Transpose(x, {0, 0}); }),
            "stablehlo.transpose: expected a permutation distinct and in [0, 2), not [0, 0], "
            "got tensor<2x3xf32>");
  EXPECT_EQ(ErrorOf([&] { Add(x, Value()); }),
            "stablehlo.add: expected tensors, got tensor<2x3xf32>, an invalid value");
}

TEST(Ops, RejectsWhatStableHloDoesNotAllow) {
  Builder b;
  Value x = b.Parameter(Type(kF32, {2, 3})), i = b.Parameter(Type(kS32, {2, 3}));
  Value p = b.Parameter(Type(kPred, {2, 3})), s = b.Parameter(Type(kS32, {}));
  Value u = b.Parameter(Type(kU32, {2, 3})), c = b.Parameter(Type(kC64, {2, 3}));
  Value f = Scalar(b, 0, kF32), token = b.Parameter(Type::Token());
  auto same = [](std::span<const Value> v) { return std::vector<Value>(v.begin(), v.end()); };
  auto none = [](std::span<const Value>) { return std::vector<Value>(); };
  EXPECT_THROW(Floor(i), Error);
  EXPECT_THROW(Abs(u), Error);
  EXPECT_THROW(Not(x), Error);
  EXPECT_THROW(Ceil(c), Error);
  EXPECT_THROW(Abs(token), Error);
  EXPECT_THROW(Subtract(p, p), Error);
  EXPECT_THROW(ShiftLeft(x, x), Error);
  EXPECT_THROW(Complex(i, i), Error);
  EXPECT_THROW(Compare(x, i, Direction::kEq), Error);
  EXPECT_THROW(Compare(c, c, Direction::kLt), Error);
  EXPECT_THROW(Compare(i, i, Direction::kLt, true), Error);
  EXPECT_THROW(Select(x, x, x), Error);
  EXPECT_THROW(Select(p, x, i), Error);
  EXPECT_THROW(Clamp(x, f, f), Error);
  EXPECT_THROW(Convert(x, kInvalid), Error);
  EXPECT_THROW(BitcastConvert(x, kF64), Error);
  EXPECT_THROW(BroadcastInDim(x, {2, 4}, {0, 1}), Error);
  EXPECT_THROW(BroadcastInDim(x, {2, 3}, {0}), Error);
  EXPECT_THROW(BroadcastTo(x, {3}), Error);
  EXPECT_THROW(BroadcastShape({2}, {3}), Error);
  EXPECT_THROW(Transpose(x, {0}), Error);
  EXPECT_THROW(Slice(x, {0, 0}, {2, 4}), Error);
  EXPECT_THROW(Slice(x, {0, 0}, {2, 3}, {0, 1}), Error);
  EXPECT_THROW(Slice(x, {0}, {2}), Error);
  EXPECT_THROW(DynamicSlice(x, {s}, {1, 1}), Error);
  EXPECT_THROW(DynamicSlice(x, {s, f}, {1, 1}), Error);
  EXPECT_THROW(DynamicSlice(x, {s, s}, {1, 4}), Error);
  EXPECT_THROW(DynamicUpdateSlice(x, i, {s, s}), Error);
  EXPECT_THROW(Pad(x, s, {0, 0}, {0, 0}), Error);
  EXPECT_THROW(Pad(x, f, {0, -4}, {0, 0}), Error);
  EXPECT_THROW(Pad(x, f, {0}, {0}), Error);
  EXPECT_THROW(Concatenate({}, 0), Error);
  EXPECT_THROW(Concatenate({x, i}, 0), Error);
  EXPECT_THROW(Concatenate({x, x}, 2), Error);
  EXPECT_THROW(Reverse(x, {2}), Error);
  EXPECT_THROW(Iota(b, Type(kF32, {}), 0), Error);
  EXPECT_THROW(Gather(x, f, {.start_index_map = {0}}, {1, 1}), Error);
  EXPECT_THROW(Gather(x, s, {.start_index_map = {0}}, {1, 4}), Error);
  EXPECT_THROW(Gather(x, s, {.offset_dims = {0}, .start_index_map = {0}}, {1, 3}), Error);
  EXPECT_THROW(Scatter(x, s, f, {.inserted_window_dims = {0}, .scatter_dims_to_operand_dims = {0}}),
               Error);
  EXPECT_THROW(DotGeneral(x, i, {}), Error);
  EXPECT_THROW(DotGeneral(x, x, {{}, {}, {1}, {0}}), Error);
  EXPECT_THROW(Convolution(x, x, ConvolutionDimensionNumbers::Nchw(2)), Error);
  EXPECT_THROW(Reduce(x, {2}, ReduceOp::kAdd), Error);
  EXPECT_THROW(Reduce(x, {0, 0}, ReduceOp::kAdd), Error);
  EXPECT_THROW(Reduce(x, s, {0}, ReduceOp::kAdd), Error);
  EXPECT_THROW(Reduce(x, {0}, ReduceOp::kAnd), Error);
  EXPECT_THROW(Reduce({x}, {f}, {0}, same), Error);
  EXPECT_THROW(Reduce(c, {0}, ReduceOp::kMax), Error);
  EXPECT_THROW(ReduceWindow(x, {.dimensions = {2}}, ReduceOp::kAdd), Error);
  EXPECT_THROW(ReduceWindow(x, {.dimensions = {0, 1}}, ReduceOp::kAdd), Error);
  EXPECT_THROW(Sort({x}, 2, true, same), Error);
  EXPECT_THROW(Sort({x}, 1, true, same), Error);
  EXPECT_THROW(TopK(x, 4), Error);
  EXPECT_THROW(RngBitGenerator(u, RngAlgorithm::kDefault, Type(kU32, {2})), Error);
  EXPECT_THROW(Fft(x, FftType::kFft, {3}), Error);
  EXPECT_THROW(Fft(c, FftType::kFft, {4}), Error);
  EXPECT_THROW(Cholesky(x, true), Error);
  EXPECT_THROW(TriangularSolve(x, x, Side::kLeft, true, false, TransposeA::kNoTranspose), Error);
  EXPECT_THROW(While({s}, same, same), Error);
  EXPECT_THROW(If(s, none, none), Error);
  EXPECT_THROW(If(Scalar(b, true, kPred), none, [&](auto) -> std::vector<Value> { return {x}; }),
               Error);
  EXPECT_THROW(CustomCall(b, "f", {x}, {i.type()}, {.aliases = {{0, 0}}}), Error);
  EXPECT_THROW(AllReduce({x, i}, {}, ReduceOp::kAdd), Error);
  EXPECT_THROW(AllReduce({x}, {{}}, ReduceOp::kAdd), Error);
  EXPECT_THROW(AllReduce({x}, {}, ReduceOp::kAdd, {.use_global_device_ids = true}), Error);
  EXPECT_THROW(AllGather(x, 2, 2, {}), Error);
  EXPECT_THROW(AllGather(x, 0, 2, {{0, 1, 2}}), Error);
  EXPECT_THROW(ReduceScatter(x, 1, 2, {{0, 1}}, ReduceOp::kAdd), Error);
  EXPECT_THROW(AllToAll(x, 1, 0, 2, {{0, 1}}), Error);
  EXPECT_THROW(CollectivePermute(x, {{0, 1}, {1, 1}}), Error);
  // What was refused left nothing behind.
  EXPECT_EQ(b.Finish({}).find("\"stablehlo.add\""), std::string::npos);
  REQUIRE_PLUGIN();
  Compile(b.Finish({x}));
}

// ---- Constants ------------------------------------------------------------------------

TEST(Constants, Text) {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  EXPECT_EQ(Literal(1).ToMlir(kF32), "1.0");
  EXPECT_EQ(Literal(0.1).ToMlir(kF32), "0.1");
  EXPECT_EQ(Literal(-0.0).ToMlir(kF32), "-0.0");
  EXPECT_EQ(Literal(1e20).ToMlir(kF32), "1.0e+20");
  EXPECT_EQ(Literal(0.1).ToMlir(kF64), "0.1");
  EXPECT_EQ(Literal(1.0 / 3).ToMlir(kF64), "0.3333333333333333");
  EXPECT_EQ(Literal(1.0f / 3).ToMlir(kF32), "0.33333334");
  EXPECT_EQ(Literal(inf).ToMlir(kF32), "0x7F800000");
  EXPECT_EQ(Literal(-inf).ToMlir(kBF16), "0xFF80");
  EXPECT_EQ(Literal(nan).ToMlir(kF16), "0x7E00");
  EXPECT_EQ(Literal(inf).ToMlir(kF64), "0x7FF0000000000000");
  EXPECT_EQ(Literal(1e300).ToMlir(kF32), "0x7F800000");
  EXPECT_EQ(Literal(65520.0).ToMlir(kF16), "0x7C00");
  EXPECT_EQ(Literal(65519.0).ToMlir(kF16), "65504.0");
  EXPECT_EQ(Literal(inf).ToMlir(kF8E4M3FN), "0x7F");
  EXPECT_EQ(Literal(500.0).ToMlir(kF8E4M3FN), "0x7F");
  EXPECT_EQ(Literal(448.0).ToMlir(kF8E4M3FN), "448.0");
  EXPECT_EQ(Literal(nan).ToMlir(kF8E5M2FNUZ), "0x80");
  EXPECT_EQ(Literal(-0.0).ToMlir(kF8E4M3FNUZ), "0.0");
  EXPECT_EQ(Literal(4.0).ToMlir(kF8E8M0FNU), "4.0");
  EXPECT_EQ(Literal(-1).ToMlir(kU8), "255");
  EXPECT_EQ(Literal(300).ToMlir(kS8), "44");
  EXPECT_EQ(Literal(300.7).ToMlir(kS8), "127");
  EXPECT_EQ(Literal(nan).ToMlir(kS32), "0");
  EXPECT_EQ(Literal(inf).ToMlir(kS64), "9223372036854775807");
  EXPECT_EQ(Literal(~uint64_t{0}).ToMlir(kU64), "18446744073709551615");
  EXPECT_EQ(Literal(true).ToMlir(kF32), "1.0");
  EXPECT_EQ(Literal(0.5).ToMlir(kPred), "true");
  EXPECT_EQ(Literal(2).ToMlir(kC64), "(2.0, 0.0)");
  EXPECT_EQ(Literal(std::complex<float>(1, -2)).ToMlir(kC128), "(1.0, -2.0)");
  EXPECT_EQ(Literal(16777217).ToMlir(kF32), "16777216.0");
  EXPECT_THROW(Literal(1).ToMlir(kInvalid), Error);
  Builder b;
  EXPECT_THROW(ConstantFromBytes(b, Type(kF32, {2}), {}), Error);
}

#ifdef __aarch64__  // g++ 12 has the other name in C alone there.
using Half = __fp16;
#else
using Half = _Float16;
#endif

TEST(Constants, BitsSurviveTheCompiler) {
  REQUIRE_PLUGIN();
  Builder b;
  std::vector<double> numbers = {
      0.0,   -0.0,   0.1,        1.0 / 3,   1e-42,    3.4028234e38, 5e-324, 1e308,
      65504, 6.1e-5, 0.30004883, 123456789, INFINITY, -INFINITY,    -2.5,   1.17549435e-38};
  std::vector<Value> f32, f64, f16, bf16;
  for (double v : numbers) {
    f32.push_back(Constant(b, v, Type(kF32, {1})));
    f64.push_back(Constant(b, v, Type(kF64, {1})));
    f16.push_back(Constant(b, v, Type(kF16, {1})));
    bf16.push_back(Constant(b, v, Type(kBF16, {1})));
  }
  auto bits32 = Evaluate<float>(b, Concatenate(f32, 0));
  auto bits64 = Evaluate<double>(b, Concatenate(f64, 0));
  auto bits16 = Evaluate<uint16_t>(b, Concatenate(f16, 0));
  auto bitsb16 = Evaluate<uint16_t>(b, Concatenate(bf16, 0));
  for (size_t i = 0; i < numbers.size(); ++i) {
    float as_float = static_cast<float>(numbers[i]);
    EXPECT_EQ(std::memcmp(&bits64[i], &numbers[i], 8), 0) << numbers[i];
    EXPECT_EQ(std::memcmp(&bits32[i], &as_float, 4), 0) << numbers[i];
    Half half = static_cast<Half>(numbers[i]);
    EXPECT_EQ(std::memcmp(&bits16[i], &half, 2), 0) << numbers[i];
    uint32_t raw;
    std::memcpy(&raw, &as_float, 4);
    uint16_t brain = static_cast<uint16_t>((raw + 0x7FFF + ((raw >> 16) & 1)) >> 16);
    EXPECT_EQ(bitsb16[i], brain) << numbers[i];
  }
}

TEST(Constants, AllF16AndF8ValuesRoundTrip) {
  REQUIRE_PLUGIN();
  // Each bit pattern, through the compiler's own conversion to f32, gives its own text again.
  for (ElementType element : {kF8E4M3FN, kF8E4M3FNUZ, kF8E5M2, kF8E5M2FNUZ, kF8E8M0FNU}) {
    Builder b;
    std::vector<uint8_t> bits(256);
    for (int i = 0; i < 256; ++i) bits[i] = static_cast<uint8_t>(i);
    auto values = Evaluate<float>(b, Convert(Array<uint8_t>(b, element, {256}, bits), kF32));
    Builder again;
    std::vector<Value> parts;
    for (float v : values) parts.push_back(Constant(again, v, Type(element, {1})));
    auto back = Evaluate<uint8_t>(again, Concatenate(parts, 0));
    for (int i = 0; i < 256; ++i) {
      if (!std::isnan(values[i])) {
        EXPECT_EQ(back[i], i) << runtime::MlirName(element);
      }
    }
  }
}

TEST(Constants, DenseBytesAndExtremes) {
  REQUIRE_PLUGIN();
  Builder b;
  EXPECT_EQ(Evaluate<uint8_t>(b, Array<uint8_t>(b, kPred, {2, 3}, {1, 0, 1, 1, 0, 0})),
            (std::vector<uint8_t>{1, 0, 1, 1, 0, 0}));
  EXPECT_EQ(Evaluate<int64_t>(b, ConstantS64(b, {{-1, 1 << 20}})),
            (std::vector<int64_t>{-1, 1 << 20}));
  EXPECT_EQ(Evaluate<float>(b, F32(b, {}, {2.5f})), (std::vector<float>{2.5f}));
  EXPECT_EQ(Evaluate<float>(b, LowestOrNegInf(b, kF32)), (std::vector<float>{-INFINITY}));
  EXPECT_EQ(Evaluate<float>(b, MaxFinite(b, kF32)),
            (std::vector<float>{std::numeric_limits<float>::max()}));
  EXPECT_EQ(Evaluate<double>(b, MinFinite(b, kF64)),
            (std::vector<double>{std::numeric_limits<double>::lowest()}));
  EXPECT_EQ(Evaluate<int64_t>(b, LowestOrNegInf(b, kS64)),
            (std::vector<int64_t>{std::numeric_limits<int64_t>::min()}));
  EXPECT_EQ(Evaluate<uint32_t>(b, HighestOrInf(b, kU32)), (std::vector<uint32_t>{~0u}));
  EXPECT_EQ(Evaluate<uint8_t>(b, ReduceIdentity(b, ReduceOp::kAnd, kU8)),
            (std::vector<uint8_t>{255}));
  std::vector<Value> all;
  for (int e = static_cast<int>(kPred); e <= static_cast<int>(kC128); ++e) {
    auto element = static_cast<ElementType>(e);
    all.push_back(Constant(b, 1, Type(element, {2, 2})));
    all.push_back(Constant(b, 0.7, Type(element, {0, 2})));
    all.push_back(ConstantFromBytes(b, Type(element, {0}), {}));
    if (runtime::IsComplex(element)) {
      all.push_back(Scalar(b, std::complex<double>(INFINITY, -1), element));
      continue;
    }
    for (auto f : {MaxFinite, MinFinite, LowestOrNegInf, HighestOrInf}) {
      all.push_back(f(b, element));
    }
  }
  Compile(b.Finish(all));
}

// ---- Collectives ------------------------------------------------------------------------

TEST(Collectives, InferenceAndCompilation) {
  for (bool partitions : {false, true}) {
    SCOPED_TRACE(partitions ? "partitions" : "replicas");
    Builder b;
    Value x = b.Parameter(Type(kF32, {4, 6})), y = b.Parameter(Type(kF32, {3}));
    CollectiveOptions options;
    ReplicaGroups groups = {{0, 1}, {2, 3}};
    if (partitions) options = {.channel_id = 1, .use_global_device_ids = true};
    CollectiveOptions plain = {.channel_id = options.channel_id, .use_global_device_ids = false};
    std::vector<Value> outputs;
    for (ReduceOp op : {ReduceOp::kAdd, ReduceOp::kMul, ReduceOp::kMax, ReduceOp::kMin}) {
      // XLA's partitioner takes one operand at a time.
      auto reduced = AllReduce(partitions ? std::vector<Value>{y} : std::vector<Value>{x, y},
                               groups, op, options);
      EXPECT_EQ(reduced.back().type(), y.type());
      outputs.insert(outputs.end(), reduced.begin(), reduced.end());
    }
    if (!partitions) outputs.push_back(AllReduce({x}, {}, ReduceOp::kAdd)[0]);
    auto expect = [&](Value v, Dims dims) {
      EXPECT_EQ(v.type(), Type(kF32, dims));
      outputs.push_back(v);
    };
    expect(AllGather(x, 1, 2, groups, options), {4, 12});
    expect(ReduceScatter(x, 0, 2, groups, ReduceOp::kAdd, options), {2, 6});
    expect(AllToAll(x, 0, 1, 2, groups, plain), {2, 12});
    expect(CollectivePermute(x, {{0, 1}, {1, 2}, {2, 3}}, plain), {4, 6});
    outputs.push_back(ReplicaId(b));
    EXPECT_TYPE(outputs.back(), kU32, {});
    if (PluginClient() == nullptr) continue;
    runtime::CompileOptions compile;
    (partitions ? compile.num_partitions : compile.num_replicas) = 4;
    compile.use_spmd_partitioning = partitions;
    Compile(b.Finish(outputs), compile);
  }
}

TEST(Collectives, UnevenGroupsText) {
  Builder b;
  Value x = b.Parameter(Type(kF32, {2}));
  AllReduce({x}, {{0, 1}, {2}}, ReduceOp::kAdd);
  std::string text = b.Finish({x});
  EXPECT_NE(text.find("dense<[[0, 1], [2, -1]]> : tensor<2x2xi64>"), std::string::npos);
}

}  // namespace
}  // namespace torch_xla::stablehlo
