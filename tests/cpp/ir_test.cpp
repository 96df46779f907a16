#include <c10/util/Exception.h>
#include <c10/util/complex.h>
#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "XLAOps.h"
#include "ir/dump.h"
#include "ir/node.h"
#include "ir/of_thread.h"
#include "ir/shape.h"
#include "lowering/context.h"
#include "tensor/graph.h"
#include "tensor/node_factory.h"

namespace torch_xla {
namespace {

using c10::ScalarType;
using ir::ArgKind;
using ir::ArgSpec;
using ir::GetShape;
using ir::Hash128;
using ir::NodePtr;
using ir::OpSpec;
using ir::ShapeRef;
using ir::Value;

debug::Counter& counter = *new debug::Counter("xla::ir_test");

const ArgSpec kPairArgs[] = {{"self", ArgKind::kTensor}, {"other", ArgKind::kTensor}};
const OpSpec pair{"test::pair", "", kPairArgs, nullptr, &counter};
const OpSpec other_pair{"test::other_pair", "", kPairArgs, nullptr, &counter};
const OpSpec source{"test::source", "", {}, nullptr, &counter};

const ArgSpec kSumArgs[] = {{"self", ArgKind::kTensor},
                            {"dim", ArgKind::kIntList},
                            {"keepdim", ArgKind::kBool},
                            {"dtype", ArgKind::kOptionalDtype}};
const OpSpec sum{"test::sum", "dim", kSumArgs, nullptr, &counter};

ShapeRef Floats(c10::IntArrayRef dims) { return GetShape(ScalarType::Float, dims); }

Value Source(ShapeRef shape = Floats({2})) { return tensor::MakeNode(&source, {}, {}, shape); }
Value Pair(const Value& a, const Value& b, const OpSpec& op = pair) {
  return tensor::MakeNode(&op, {a, b}, {}, a.shape());
}
Value Sum(const Value& self, c10::IntArrayRef dims, bool keepdim,
          std::optional<ScalarType> dtype = std::nullopt) {
  ir::Words words;
  ir::AttributeWriter writer(words);
  writer.IntList(dims);
  writer.Int(keepdim);
  writer.Int(dtype.has_value());
  if (dtype) writer.Int(static_cast<int64_t>(*dtype));
  return tensor::MakeNode(&sum, {self}, words, Floats({}));
}

// ---------------------------------------------------------------- errors of lowering

TEST(LoweringTest, AnErrorKeepsItsClassAndNamesTheOperation) {
  const OpSpec fails{"test::fails",
                     "",
                     {},
                     [](lowering::LoweringContext&, const ir::Node&) {
                       TORCH_CHECK_INDEX(false, "no such dimension");
                     },
                     &counter};
  lowering::LoweringContext cx("CPU");
  try {
    cx.Lower(*tensor::MakeNode(&fails, {}, {}, Floats({2})).node);
    FAIL() << "no error";
  } catch (const c10::IndexError& error) {
    const std::string message = error.what_without_backtrace();
    EXPECT_EQ(message.find("no such dimension (lowering test::fails()"), 0u) << message;
  }
}

// ---------------------------------------------------------------- shapes

TEST(ShapeTest, EqualShapesAreOneObject) {
  EXPECT_EQ(Floats({2, 3}), Floats({2, 3}));
  std::set<ShapeRef> distinct{Floats({2, 3}),
                              Floats({3, 2}),
                              Floats({6}),
                              Floats({2, 3, 1}),
                              Floats({}),
                              Floats({0}),
                              GetShape(ScalarType::Half, {2, 3}),
                              GetShape(ScalarType::Float, {}, /*wrapped=*/true)};
  EXPECT_EQ(distinct.size(), 8u);
}

TEST(ShapeTest, ThreadsShareThem) {
  ShapeRef mine = Floats({5, 7, 11}), theirs = nullptr;
  std::thread([&] { theirs = Floats({5, 7, 11}); }).join();
  EXPECT_EQ(mine, theirs);
}

TEST(ShapeTest, CountsElementsAndPrints) {
  EXPECT_EQ(Floats({2, 3, 4})->numel, 24);
  EXPECT_EQ(Floats({2, 0, 4})->numel, 0);
  EXPECT_EQ(Floats({})->numel, 1);
  EXPECT_EQ(Floats({2, 3})->ToString(), "f32[2,3]");
  EXPECT_EQ(GetShape(ScalarType::Bool, {})->ToString(), "pred[]");
  EXPECT_EQ(GetShape(ScalarType::Long, {1})->ToString(), "s64[1]");
  EXPECT_EQ(GetShape(ScalarType::BFloat16, {1})->ToString(), "bf16[1]");
}

// ---------------------------------------------------------------- what is remembered

struct Mortal {
  static inline std::atomic<int> alive{0};
  Mortal() { ++alive; }
  ~Mortal() { --alive; }
};
constinit thread_local void* mortal_of_thread = nullptr;

TEST(OfThreadTest, EndsWithTheThread) {
  std::thread([] {
    Mortal& mine = ir::OfThread<Mortal>(mortal_of_thread);
    EXPECT_EQ(&ir::OfThread<Mortal>(mortal_of_thread), &mine);
    EXPECT_EQ(Mortal::alive, 1);
  }).join();
  EXPECT_EQ(Mortal::alive, 0);
}

const OpSpec same{"test::same", "", kPairArgs,
                  [](lowering::LoweringContext& cx, const ir::Node& node) {
                    cx.SetOutputs(node, cx.Lowered(node.operands()[0]));
                  },
                  &counter};

/// A node of its own kind for each `number`; how often its shape had to be inferred.
int Inferred(int64_t number) {
  int count = 0;
  tensor::MakeOpNode(&same, {Source()}, {static_cast<uint64_t>(number)}, [&] {
    ++count;
    return ir::OutputShapes{{Floats({2})}};
  });
  return count;
}

TEST(MemoTest, ShapesAreInferredOnceForAllThreads) {
  EXPECT_EQ(Inferred(-1), 1);
  EXPECT_EQ(Inferred(-1), 0);
  int theirs = -1;
  std::thread([&] { theirs = Inferred(-1); }).join();
  EXPECT_EQ(theirs, 0);
}

TEST(MemoTest, HasABound) {
  EXPECT_EQ(Inferred(-2), 1);
  int64_t i = 0;
  while (i < 8 * static_cast<int64_t>(ir::kMaxRemembered) && Inferred(-2) == 0) {
    for (int k = 0; k < 4096; ++k) ASSERT_EQ(Inferred(i++), 1);
  }
  EXPECT_GE(i, static_cast<int64_t>(ir::kMaxRemembered));
  EXPECT_LT(i, 8 * static_cast<int64_t>(ir::kMaxRemembered)) << "nothing is forgotten";
}

// ---------------------------------------------------------------- attributes

TEST(AttributesTest, ReadBackInOrder) {
  ir::Words words;
  ir::AttributeWriter writer(words);
  writer.Int(-3);
  writer.IntList({1, -2});
  writer.Double(0.5);
  writer.String("reflect pad");
  writer.String("");
  writer.Scalar(c10::Scalar(2.5));
  writer.Scalar(c10::Scalar(int64_t{-7}));
  writer.Scalar(c10::Scalar(true));
  writer.Scalar(c10::Scalar(c10::complex<double>(1, -2)));
  writer.DoubleList({1.5, -0.0});
  writer.IntList({});

  ir::AttributeReader reader(words);
  EXPECT_EQ(reader.Int(), -3);
  EXPECT_EQ(reader.IntList().vec(), (std::vector<int64_t>{1, -2}));
  EXPECT_EQ(reader.Double(), 0.5);
  EXPECT_EQ(reader.String(), "reflect pad");
  EXPECT_EQ(reader.String(), "");
  EXPECT_EQ(reader.Scalar().toDouble(), 2.5);
  c10::Scalar integer = reader.Scalar();
  EXPECT_TRUE(integer.isIntegral(/*includeBool=*/false));
  EXPECT_EQ(integer.toLong(), -7);
  c10::Scalar boolean = reader.Scalar();
  EXPECT_TRUE(boolean.isBoolean());
  EXPECT_TRUE(boolean.toBool());
  EXPECT_EQ(reader.Scalar().toComplexDouble(), c10::complex<double>(1, -2));
  EXPECT_TRUE(std::signbit(reader.DoubleList()[1]));
  EXPECT_TRUE(reader.IntList().empty());
}

// ---------------------------------------------------------------- hashes

TEST(HasherTest, OrderAndLengthMatter) {
  auto hash = [](std::vector<uint64_t> words) {
    ir::Hasher hasher;
    for (uint64_t word : words) hasher.Add(word);
    return hasher.Finish();
  };
  EXPECT_EQ(hash({1, 2}), hash({1, 2}));
  std::vector<Hash128> hashes;
  for (const auto& words : std::vector<std::vector<uint64_t>>{{},
                                                              {0},
                                                              {0, 0},
                                                              {0, 0, 0},
                                                              {1},
                                                              {1, 2},
                                                              {2, 1},
                                                              {~0ull},
                                                              {1ull << 63},
                                                              {1, 0},
                                                              {0, 1}}) {
    hashes.push_back(hash(words));
  }
  for (size_t i = 0; i < hashes.size(); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_FALSE(hashes[i] == hashes[j]) << i << ' ' << j;
  }
}

TEST(HasherTest, NoCollisionsAmongNeighbours) {
  // Both halves: each alone must already tell small changes apart.
  std::set<uint64_t> low, high;
  constexpr uint64_t kCount = 300;
  for (uint64_t a = 0; a < kCount; ++a) {
    for (uint64_t b = 0; b < kCount; ++b) {
      ir::Hasher hasher;
      hasher.Add(a);
      hasher.Add(b);
      Hash128 hash = hasher.Finish();
      low.insert(hash.low);
      high.insert(hash.high);
    }
  }
  EXPECT_EQ(low.size(), kCount * kCount);
  EXPECT_EQ(high.size(), kCount * kCount);
}

TEST(NodeHashTest, TellsOpsAttributesAndShapesApart) {
  Value a = Source(), b = Source(Floats({3}));
  EXPECT_EQ(Source().node->hash(), Source().node->hash());
  EXPECT_FALSE(a.node->hash() == b.node->hash());
  EXPECT_EQ(Pair(a, a).node->hash(), Pair(Source(), Source()).node->hash());
  EXPECT_FALSE(Pair(a, a).node->hash() == Pair(a, a, other_pair).node->hash());
  EXPECT_FALSE(Pair(a, a).node->hash() == Pair(a, b).node->hash());

  std::vector<Value> sums{Sum(a, {0}, false),
                          Sum(a, {0}, true),
                          Sum(a, {1}, false),
                          Sum(a, {0, 1}, false),
                          Sum(a, {}, false),
                          Sum(a, {0}, false, ScalarType::Double),
                          Sum(a, {0}, false, ScalarType::Half),
                          Sum(b, {0}, false)};
  for (size_t i = 0; i < sums.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      EXPECT_FALSE(sums[i].node->hash() == sums[j].node->hash()) << i << ' ' << j;
    }
  }
  EXPECT_EQ(Sum(a, {0}, true).node->hash(), sums[1].node->hash());
}

TEST(NodeHashTest, NumbersAreParametersButZeroAndOne) {
  auto hash = [](const c10::Scalar& value) { return tensor::MakeScalar(value).node->hash(); };
  EXPECT_EQ(hash(2.5), hash(-7.25));
  EXPECT_EQ(hash(int64_t{2}), hash(int64_t{1} << 40));
  EXPECT_FALSE(hash(2.5) == hash(int64_t{2}));
  EXPECT_FALSE(hash(1.0) == hash(2.0));
  EXPECT_FALSE(hash(1.0) == hash(0.0));
  EXPECT_FALSE(hash(-0.0) == hash(0.0));
  EXPECT_FALSE(hash(true) == hash(false));
}

Hash128 GraphHash(std::vector<Value> roots) { return tensor::CollectGraph(std::move(roots)).hash; }

TEST(GraphHashTest, TellsWiringsApart) {
  // Every graph is of equal nodes; only what feeds what differs.
  Value a = Source(), b = Source();
  Value ab = Pair(a, b), ba = Pair(b, a);
  std::vector<std::pair<const char*, std::vector<Value>>> graphs{
      {"f(a, a)", {Pair(a, a)}},
      {"f(a, b)", {ab}},
      {"a, b, f(a, b)", {a, b, ab}},
      {"a, b, f(b, a)", {a, b, ba}},
      {"b, a, f(a, b), twice", {a, b, ab, ab}},
      {"f(a, b), f(a, b)", {Pair(a, b), Pair(a, b)}},
      {"f(a, b), f(b, a)", {Pair(a, b), Pair(b, a)}},
      {"f(f(a, b), f(a, b)) shared", {Pair(ab, ab)}},
      {"f(f(a, b), f(a, b)) not shared", {Pair(Pair(a, b), Pair(a, b))}},
      {"f(f(a, b), f(b, a))", {Pair(ab, ba)}},
      {"f(f(a, b), a)", {Pair(ab, a)}},
      {"f(f(a, b), b)", {Pair(ab, b)}},
      {"f(a, f(a, b))", {Pair(a, ab)}},
  };
  for (size_t i = 0; i < graphs.size(); ++i) {
    EXPECT_EQ(GraphHash(graphs[i].second), GraphHash(graphs[i].second));
    for (size_t j = 0; j < i; ++j) {
      EXPECT_FALSE(GraphHash(graphs[i].second) == GraphHash(graphs[j].second))
          << graphs[i].first << " and " << graphs[j].first;
    }
  }
  // The same wiring of other nodes is the same graph: f(b, a) alone is f(a, b).
  EXPECT_EQ(GraphHash({ab}), GraphHash({ba}));
  EXPECT_EQ(GraphHash({Pair(ab, ab)}), GraphHash({Pair(ba, ba)}));
}

TEST(GraphHashTest, TellsRootsAndResultsApart) {
  auto* two = new ir::OutputShapes{{Floats({2}), Floats({2})}};
  ir::NodePtr node(new ir::Node(&source, {}, {}, two, {1, 2}));
  Value first{node, 0}, second{node, 1};
  EXPECT_FALSE(GraphHash({first}) == GraphHash({second}));
  EXPECT_FALSE(GraphHash({first, second}) == GraphHash({second, first}));
  EXPECT_FALSE(GraphHash({Pair(first, second)}) == GraphHash({Pair(first, first)}));
  EXPECT_FALSE(GraphHash({Pair(first, second)}) == GraphHash({Pair(second, first)}));
}

TEST(GraphTest, OperandsComeBeforeUsersEachOnce) {
  Value a = Source(), b = Pair(a, a), c = Pair(b, a), d = Pair(c, b);
  tensor::Graph graph = tensor::CollectGraph({d, b});
  std::vector<const ir::Node*> expected{a.node.get(), b.node.get(), c.node.get(), d.node.get()};
  EXPECT_EQ(graph.order, expected);
  EXPECT_EQ(graph.roots.size(), 2u);
  EXPECT_EQ(ir::PostOrder(graph.roots), expected);
}

TEST(GraphTest, NumbersBecomePackedParameters) {
  Value x = Source();
  Value y = Pair(Pair(x, tensor::MakeScalar(2.5)), tensor::MakeScalar(int64_t{7}));
  Value z = Pair(y, tensor::MakeScalar(c10::complex<double>(3, 4)));
  tensor::Graph graph = tensor::CollectGraph({z});
  EXPECT_EQ(graph.floats, (std::vector<double>{2.5, 3, 4}));
  EXPECT_EQ(graph.integers, (std::vector<int64_t>{7}));
  EXPECT_EQ(graph.num_parameters(), 2u);
  Value other = Pair(Pair(Pair(x, tensor::MakeScalar(-1.5)), tensor::MakeScalar(int64_t{9})),
                     tensor::MakeScalar(c10::complex<double>(5, 6)));
  EXPECT_EQ(GraphHash({other}), graph.hash);
}

TEST(GraphTest, UsesAreCountedPerWalk) {
  Value a = Source(), b = Pair(a, a);
  for (int i = 0; i < 2; ++i) {
    tensor::Graph graph = tensor::CollectGraph({b, b, a});
    EXPECT_EQ(a.node->mark().uses, 3u);
    EXPECT_EQ(b.node->mark().uses, 2u);
  }
}

// ---------------------------------------------------------------- ownership

TEST(NodePtrTest, CountsReferences) {
  Value a = Source();
  EXPECT_EQ(a.node->references(), 1u);
  {
    NodePtr copy = a.node;
    EXPECT_EQ(a.node->references(), 2u);
    NodePtr moved = std::move(copy);
    EXPECT_FALSE(copy);  // NOLINT: what a move leaves is defined
    EXPECT_EQ(a.node->references(), 2u);
    moved = moved;  // NOLINT: assignment to itself keeps it
    EXPECT_EQ(a.node->references(), 2u);
    Value b = Pair(a, a);
    EXPECT_EQ(a.node->references(), 4u);
  }
  EXPECT_EQ(a.node->references(), 1u);
}

struct Payload : c10::intrusive_ptr_target {
  explicit Payload(int* deaths) : deaths(deaths) {}
  ~Payload() override { ++*deaths; }
  int* deaths;
};

TEST(NodePtrTest, TheLastOwnerFreesTheNodeAndItsPayload) {
  int deaths = 0;
  Value a = Source();
  a.node->set_payload(c10::make_intrusive<Payload>(&deaths));
  Value b = Pair(a, a);
  a = {};
  EXPECT_EQ(deaths, 0);
  Value c = Pair(b, b);
  b = {};
  EXPECT_EQ(deaths, 0);
  c = {};
  EXPECT_EQ(deaths, 1);
}

TEST(NodePtrTest, DroppedOperandsAreReleased) {
  int deaths = 0;
  Value a = Source();
  a.node->set_payload(c10::make_intrusive<Payload>(&deaths));
  Value b = Pair(a, Source());
  a = {};
  b.node->DropOperand(0);
  EXPECT_EQ(deaths, 1);
}

constexpr int kDeep = 1'000'000;

TEST(NodePtrTest, AChainOfAMillionNodesIsReleasedWithoutRecursion) {
  int deaths = 0;
  Value chain = Source();
  chain.node->set_payload(c10::make_intrusive<Payload>(&deaths));
  for (int i = 0; i < kDeep; ++i) chain = Pair(chain, chain);
  EXPECT_EQ(deaths, 0);
  chain = {};
  EXPECT_EQ(deaths, 1);
}

TEST(NodePtrTest, AChainOfAMillionNodesIsWalkedWithoutRecursion) {
  Value chain = Source();
  for (int i = 0; i < kDeep; ++i) chain = Pair(chain, chain);
  EXPECT_EQ(tensor::CollectGraph({chain}).order.size(), kDeep + 1u);
}

TEST(NodePtrTest, ThreadsShareNodes) {
  int deaths = 0;
  Value shared = Source();
  shared.node->set_payload(c10::make_intrusive<Payload>(&deaths));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([value = shared] {
      for (int i = 0; i < 20000; ++i) Value user = Pair(value, value);
    });
  }
  for (std::thread& thread : threads) thread.join();
  threads.clear();
  EXPECT_EQ(shared.node->references(), 1u);
  shared = {};
  EXPECT_EQ(deaths, 1);
}

// ---------------------------------------------------------------- text

TEST(DumpTest, NamesNodesAttributesAndRoots) {
  Value a = Source(Floats({2, 3}));
  Value s = Sum(a, {0, 1}, true, ScalarType::Double);
  Value p = Pair(s, s);
  std::vector<Value> roots{p, a};
  EXPECT_EQ(ir::ToText(roots),
            "IR {\n"
            "  %0 = f32[2,3] test::source(), ROOT=1\n"
            "  %1 = f32[] test::sum(%0), dim=(0, 1), keepdim=1, dtype=f64\n"
            "  %2 = f32[] test::pair(%1, %1), ROOT=0\n"
            "}\n");
}

TEST(DumpTest, NamesResultsOfNodesWithSeveral) {
  auto* two = new ir::OutputShapes{{Floats({2}), GetShape(ScalarType::Long, {2})}};
  ir::NodePtr node(new ir::Node(&source, {}, {}, two, {3, 4}));
  std::vector<Value> roots{Pair({node, 1}, {node, 0})};
  std::string text = ir::ToText(roots);
  EXPECT_NE(text.find("%0 = (f32[2], s64[2]) test::source()"), std::string::npos) << text;
  EXPECT_NE(text.find("test::pair(%0.1, %0.0), ROOT=0"), std::string::npos) << text;
}

TEST(DumpTest, PrintsAbsentOptionalsAndLocations) {
  Value s = Sum(Source(), {}, false);
  const ir::SourceCode code{"train.py", "step", {{0, 10}, {4, 12}, {8, 11}}};
  const ir::SourceLocation location{&code, 6};
  s.node->set_location(&location);
  std::string text = ir::Describe(*s.node, std::vector<std::string>{"%7"});
  EXPECT_EQ(text, "test::sum(%7), dim=(), keepdim=0, dtype=None, location=step@train.py:12");
}

TEST(SourceTest, LinesByOffset) {
  const ir::SourceCode code{"train.py", "step", {{2, 10}, {4, 0}, {8, 11}}};
  EXPECT_EQ(code.LineAt(0), 0);
  EXPECT_EQ(code.LineAt(2), 10);
  EXPECT_EQ(code.LineAt(3), 10);
  EXPECT_EQ(code.LineAt(4), 0);
  EXPECT_EQ(code.LineAt(1000), 11);
  EXPECT_EQ((ir::SourceLocation{&code, 8, true}).ToString(), "train.py:11 (backward)");
  EXPECT_EQ((ir::SourceLocation{&code, 5}).ToString(), "train.py");
  EXPECT_EQ(ir::LineOf(nullptr), "an unknown line");
}

TEST(DumpTest, DotHasAnEdgePerOperand) {
  Value a = Source();
  std::vector<Value> roots{Pair(a, a)};
  std::string dot = ir::ToDot(roots);
  EXPECT_EQ(dot.find("digraph G {\n"), 0u);
  size_t edges = 0;
  for (size_t at = dot.find("->"); at != std::string::npos; at = dot.find("->", at + 1)) ++edges;
  EXPECT_EQ(edges, 2u);
  EXPECT_NE(dot.find("ROOT=0"), std::string::npos);
}

}  // namespace
}  // namespace torch_xla
