// The StableHLO builder: inferred types, errors, text; every op is compiled by a real
// plugin (PJRT_CPU_LIBRARY_PATH), several run for their values.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "runtime/client.h"
#include "runtime/plugin.h"
#include "stablehlo/ops.h"

namespace torch_xla::stablehlo {
namespace {

using enum ElementType;

runtime::Client* PluginClient() {
  static std::unique_ptr<runtime::Client> client = []() -> std::unique_ptr<runtime::Client> {
    const char* library = std::getenv("PJRT_CPU_LIBRARY_PATH");
    if (library == nullptr) return nullptr;
    // A name of its own, for four devices whatever the environment says.
    runtime::AddPlugin("STABLEHLO_TEST", {library, {{"cpu_device_count", int64_t{4}}}});
    return runtime::Client::Create("STABLEHLO_TEST");
  }();
  return client.get();
}

#define REQUIRE_PLUGIN() \
  if (PluginClient() == nullptr) GTEST_SKIP() << "PJRT_CPU_LIBRARY_PATH is not set"

/// Compiles the module; a failure shows the plugin's words and the text.
std::unique_ptr<runtime::Executable> Compile(const std::string& text,
                                             runtime::CompileOptions options = {}) {
  // What counts is that XLA takes the text, not how well LLVM does with it.
  options.overrides.push_back({"xla_backend_optimization_level", "0"});
  try {
    return PluginClient()->Compile(text, options);
  } catch (const std::exception& e) {
    ADD_FAILURE() << e.what() << "\n" << text;
    return nullptr;
  }
}

/// Runs a module without parameters; the elements of its one output.
template <typename T>
std::vector<T> Evaluate(Builder& builder, Value output) {
  auto executable = Compile(builder.Finish({output}));
  if (executable == nullptr) return {};
  auto result = executable->Execute({});
  std::vector<T> host(result.outputs[0]->bytes() / sizeof(T));
  result.outputs[0]->CopyToHost(host.data()).Await();
  return host;
}

template <typename T>
Value Array(Builder& builder, ElementType element, Dims dims, std::vector<T> values) {
  return ConstantFromBytes(builder, Type(element, std::move(dims)),
                           std::as_bytes(std::span<const T>(values)));
}

Value F32(Builder& builder, Dims dims, std::vector<float> values) {
  return Array<float>(builder, kF32, std::move(dims), std::move(values));
}

std::string ErrorOf(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

#define EXPECT_TYPE(value, element, ...) EXPECT_EQ((value).type(), Type(element, Dims __VA_ARGS__))

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
  b.AddModuleAttributes("mhlo.num_partitions = 1 : i32");
  std::string text = b.Finish({sum, total}, "step");
  EXPECT_EQ(text,
            R"(module @step attributes {mhlo.num_partitions = 1 : i32} {
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
  Value f = Scalar(b, 0, kF32), token = CreateToken(b);
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
  EXPECT_THROW(ReducePrecision(x, 0, 1), Error);
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
  EXPECT_THROW(SelectAndScatter(x, x, {.dimensions = {2, 2}}), Error);
  EXPECT_THROW(Sort({x}, 2, true, same), Error);
  EXPECT_THROW(Sort({x}, 1, true, same), Error);
  EXPECT_THROW(TopK(x, 4), Error);
  EXPECT_THROW(RngBitGenerator(u, RngAlgorithm::kDefault, Type(kU32, {2})), Error);
  EXPECT_THROW(Fft(x, FftType::kFft, {3}), Error);
  EXPECT_THROW(Fft(c, FftType::kFft, {4}), Error);
  EXPECT_THROW(Cholesky(x, true), Error);
  EXPECT_THROW(TriangularSolve(x, x, Side::kLeft, true, false, TransposeA::kNoTranspose), Error);
  EXPECT_THROW(BatchNormTraining(x, f, f, 1e-5f, 1), Error);
  EXPECT_THROW(While({s}, same, same), Error);
  EXPECT_THROW(If(s, none, none), Error);
  EXPECT_THROW(If(Scalar(b, true, kPred), none, [&](auto) -> std::vector<Value> { return {x}; }),
               Error);
  EXPECT_THROW(Case(s, {}), Error);
  EXPECT_THROW(AfterAll({x}), Error);
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
    _Float16 half = static_cast<_Float16>(numbers[i]);
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

// ---- Elementwise ----------------------------------------------------------------------

using UnaryOp = Value (*)(Value);
using BinaryOp = Value (*)(Value, Value);

constexpr UnaryOp kInexact[] = {Abs,   Cosine,     Exponential, ExponentialMinusOne,
                                Log,   LogPlusOne, Logistic,    Negate,
                                Rsqrt, Sign,       Sine,        Sqrt,
                                Tan,   Tanh,       Acos,        Acosh,
                                Asin,  Asinh,      Atan,        Atanh,
                                Conj,  Cosh,       Sinh,        Square,
                                Real,  Imag};
constexpr UnaryOp kReal[] = {
    Cbrt, Ceil,   Floor, IsFinite, RoundNearestAfz, RoundNearestEven, BesselI1e, Digamma,
    Erf,  ErfInv, Erfc,  Lgamma,   IsInf,           IsPosInf,         IsNegInf};

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
      outputs.push_back(ReducePrecision(x, 5, 2));
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
      for (UnaryOp op : {CountLeadingZeros, PopulationCount, Negate, Square}) {
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
      add({Atan2, NextAfter, Zeta, Polygamma});
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
               {BesselI1e, 1.f, 0.2079104f},
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
  EXPECT_EQ(Evaluate<float>(v, BroadcastInDim(F32(v, {2}, {7, 8}), {3, 2}, {1})),
            (std::vector<float>{7, 8, 7, 8, 7, 8}));
  EXPECT_EQ(Evaluate<float>(v, Pad(y, Scalar(v, 9, kF32), {0, 1}, {0, 0}, {1, 0})),
            (std::vector<float>{9, 0, 1, 2, 9, 9, 9, 9, 9, 3, 4, 5}));
}

// ---- Gather, scatter --------------------------------------------------------------------

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

TEST(Reductions, SelectAndScatterSortTopK) {
  Builder b;
  Value x = F32(b, {4}, {3, 1, 2, 4});
  Value spread = SelectAndScatter(x, F32(b, {2}, {10, 20}), {.dimensions = {2}, .strides = {2}});
  EXPECT_EQ(spread.type(), x.type());
  auto sorted = Sort({x, Iota(b, Type(kS32, {4}), 0)}, 0, true,
                     [](std::span<const Value> v) -> std::vector<Value> {
                       return {Compare(v[0], v[1], Direction::kLt, true)};
                     });
  TopKResult top = TopK(x, 2);
  EXPECT_TYPE(top.values, kF32, {2});
  EXPECT_TYPE(top.indices, kS32, {2});
  REQUIRE_PLUGIN();
  EXPECT_EQ(Evaluate<float>(b, spread), (std::vector<float>{10, 0, 0, 20}));
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

TEST(Math, BatchNorm) {
  Builder b;
  Value x = b.Parameter(Type(kF32, {2, 3, 4})), s = b.Parameter(Type(kF32, {3}));
  auto training = BatchNormTraining(x, s, s, 1e-5f, 1);
  EXPECT_EQ(training.output.type(), x.type());
  EXPECT_EQ(training.variance.type(), s.type());
  Value inference = BatchNormInference(x, s, s, s, s, 1e-5f, 1);
  auto grad = BatchNormGrad(x, s, s, s, x, 1e-5f, 1);
  EXPECT_EQ(grad.operand.type(), x.type());
  EXPECT_EQ(grad.offset.type(), s.type());
  REQUIRE_PLUGIN();
  Compile(b.Finish({training.output, training.mean, training.variance, inference, grad.operand,
                    grad.scale, grad.offset}));
}

// ---- Control ----------------------------------------------------------------------------

TEST(Control, WhileIfCaseUseOuterValues) {
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
  auto chosen =
      Case(Scalar(b, 7, kS32), {[&](auto) -> std::vector<Value> { return {x}; },
                                [&](auto) -> std::vector<Value> { return {Abs(x)}; },
                                [&](auto) -> std::vector<Value> {
                                  return {If(
                                      Scalar(b, true, kPred),
                                      [&](auto) -> std::vector<Value> { return {Multiply(x, x)}; },
                                      [&](auto) -> std::vector<Value> { return {x}; })};
                                }});
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

TEST(Control, BarrierTokensCustomCalls) {
  Builder b;
  Value x = b.Parameter(Type(kF32, {2, 3}));
  auto barrier = OptimizationBarrier({x, Abs(x)});
  EXPECT_EQ(barrier[1].type(), x.type());
  Value token = AfterAll({CreateToken(b), CreateToken(b)});
  EXPECT_EQ(token.type(), Type::Token());
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
  Value x = b.Parameter(Type(kF32, {2})), token = CreateToken(b);
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
          R"(%1:3 = "stablehlo.custom_call"(%arg0, %0) {call_target_name = "my.call", api_version = 4 : i32, has_side_effect = true, backend_config = {axis = 1 : i64, name = "a"}, output_operand_aliases = [#stablehlo.output_operand_alias<output_tuple_indices = [1], operand_index = 0, operand_tuple_indices = []>]} : (tensor<2xf32>, !stablehlo.token) -> (tensor<i32>, tensor<2xf32>, !stablehlo.token))"),
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
    // XLA's partitioner takes PartitionId only where the sharding is manual.
    outputs.push_back(ReplicaId(b));
    if (!partitions) outputs.push_back(PartitionId(b));
    EXPECT_TYPE(outputs.back(), kU32, {});
    if (PluginClient() == nullptr) continue;
    runtime::CompileOptions compile;
    (partitions ? compile.num_partitions : compile.num_replicas) = 4;
    compile.use_spmd_partitioning = partitions;
    Compile(b.Finish(outputs), compile);
  }
}

TEST(Collectives, BroadcastAndUnevenGroupsText) {
  Builder b;
  Value x = b.Parameter(Type(kF32, {2}));
  CollectiveBroadcast(x, {{1, 0}}, {});
  AllReduce({x}, {{0, 1}, {2}}, ReduceOp::kAdd);
  std::string text = b.Finish({x});
  EXPECT_NE(text.find("{replica_groups = dense<[[1, 0]]> : tensor<1x2xi64>}"), std::string::npos);
  EXPECT_NE(text.find("dense<[[0, 1], [2, -1]]> : tensor<2x2xi64>"), std::string::npos);
}

}  // namespace
}  // namespace torch_xla::stablehlo
