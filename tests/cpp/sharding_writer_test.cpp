// The spelling of shardings in Shardy's dialect: one mesh for all shardings of a program, if any.
#include "distributed/sharding_writer.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <vector>

namespace torch_xla::distributed {
namespace {

/// What a module of lines with these shardings is declared as.
std::string Declared(const ShardingWriter& writer, const std::vector<const Sharding*>& shardings,
                     std::vector<int>* partition_devices = nullptr) {
  std::string text = "module {\n";
  for (const Sharding* sharding : shardings) {
    const auto rank = std::max<int64_t>(1, static_cast<int64_t>(sharding->tiles().size()));
    text += writer.Attribute(*sharding, rank) + "\n";
  }
  EXPECT_TRUE(ShardingWriter::HasShardings(text));
  return writer.Declare(text, partition_devices);
}

TEST(ShardingWriterTest, AMeshIsFineEnoughForAllShardings) {
  const ShardingWriter writer(8, /*shardy=*/true);
  EXPECT_EQ(Declared(writer, {Sharding::Tiled({4, 1}, {0, 1, 2, 3, 4, 5, 6, 7}),
                              Sharding::Tiled({2, 4}, {0, 2, 4, 6, 1, 3, 5, 7}),
                              Sharding::Replicated(), Local()}),
            "module {\n"
            "  sdy.mesh @mesh = <[\"a0\"=4, \"a1\"=2]>\n"
            "sdy.sharding = #sdy.sharding<@mesh, [{\"a0\"}, {}]>\n"
            "sdy.sharding = #sdy.sharding<@mesh, [{\"a1\"}, {\"a0\"}]>\n"
            "sdy.sharding = #sdy.sharding<@mesh, [{}]>\n"
            "sdy.sharding = #sdy.sharding<@mesh, [{\"a0\", \"a1\"}]>\n");
}

TEST(ShardingWriterTest, DevicesInAnyOrderAreAMesh) {
  const std::string text =
      Declared(ShardingWriter(4, /*shardy=*/true),
               {Sharding::Tiled({2, 1}, {3, 1, 0, 2}), Sharding::Tiled({1, 4}, {3, 0, 1, 2})});
  EXPECT_NE(text.find("device_ids="), std::string::npos);
  EXPECT_EQ(text.find("@mesh1"), std::string::npos);
}

TEST(ShardingWriterTest, PartitionsAreNumberedInTheOrderOfTheMesh) {
  const std::vector<const Sharding*> shardings = {Sharding::Tiled({2, 1}, {3, 1, 0, 2}),
                                                  Sharding::Tiled({2, 2}, {3, 0, 1, 2})};
  for (const bool shardy : {true, false}) {
    std::vector<int> devices;
    const std::string text = Declared(ShardingWriter(4, shardy), shardings, &devices);
    EXPECT_EQ(devices, (std::vector<int>{3, 1, 0, 2}));
    EXPECT_EQ(text.find("device_ids="), std::string::npos);
    if (shardy) continue;
    EXPECT_NE(text.find("{devices=[2,1,2]0,1,2,3 last_tile_dim_replicate}"), std::string::npos);
    EXPECT_NE(text.find("{devices=[2,2]0,2,1,3}"), std::string::npos);
  }
  std::vector<int> devices;
  Declared(ShardingWriter(4, /*shardy=*/true), {Sharding::Tiled({2, 1}, {0, 2, 1, 3})}, &devices);
  EXPECT_TRUE(devices.empty());  // the transposed order of an ascending mesh
}

TEST(ShardingWriterTest, ExchangesFollowTheNumbersOfThePartitions) {
  const ShardingWriter writer(4, /*shardy=*/false);
  std::vector<int> devices;
  const std::string text = writer.Declare(
      "module {\n" + writer.Attribute(*Sharding::Tiled({2}, {3, 1, 0, 2}), 1) +
          "\n%a = stablehlo.partition_id : tensor<ui32>\n"
          "replica_groups = dense<[[3, 1],\n[0, -1]]> source_target_pairs = dense<[[2, 3]]>\n",
      &devices);
  EXPECT_NE(text.find("replica_groups = dense<[[0, 1],\n[2, -1]]>"), std::string::npos);
  EXPECT_NE(text.find("source_target_pairs = dense<[[3, 0]]>"), std::string::npos);
  EXPECT_NE(text.find("%partition_a = stablehlo.partition_id : tensor<ui32>\n"), std::string::npos);
  EXPECT_NE(text.find("dense<[3, 1, 0, 2]> : tensor<4xui32>"), std::string::npos);
  EXPECT_NE(text.find("\n%a = \"stablehlo.reshape\"(%device_a)"), std::string::npos);
}

TEST(ShardingWriterTest, ShardingsWithoutAMeshInCommonHaveTheirOwn) {
  const Sharding *wide = Sharding::Tiled({2, 3}, {0, 1, 2, 3, 4, 5}),
                 *tall = Sharding::Tiled({3, 2}, {0, 1, 2, 3, 4, 5});
  const ShardingWriter writer(6, /*shardy=*/true);
  EXPECT_EQ(Declared(writer, {wide, tall, wide}),
            "module {\n"
            "  sdy.mesh @mesh = <[\"a0\"=2, \"a1\"=3]>\n"
            "  sdy.mesh @mesh1 = <[\"a0\"=3, \"a1\"=2]>\n"
            "sdy.sharding = #sdy.sharding<@mesh, [{\"a0\"}, {\"a1\"}]>\n"
            "sdy.sharding = #sdy.sharding<@mesh1, [{\"a0\"}, {\"a1\"}]>\n"
            "sdy.sharding = #sdy.sharding<@mesh, [{\"a0\"}, {\"a1\"}]>\n");
  // A region has one mesh.
  stablehlo::Builder builder;
  const stablehlo::Type type{stablehlo::ElementType::kF32, {6, 6}};
  const stablehlo::Value x = builder.Parameter(type);
  const stablehlo::Type part = writer.Part(type, *wide);
  const std::string symbol = builder.Function(
      "f", {&part, 1}, [](std::span<const stablehlo::Value> v) { return std::vector{v[0]}; });
  const std::vector<stablehlo::Value> result =
      writer.Call(builder, symbol, {{x}}, {{wide}}, {{part}}, {{tall}});
  EXPECT_THROW(writer.Declare(builder.Finish(result)), c10::ValueError);
}

TEST(ShardingWriterTest, ArraysOfAnotherOrderAreComputedWithInTheOrderOfMost) {
  const Sharding *rows = Sharding::Tiled({2, 1}, {3, 1, 0, 2}),
                 *both = Sharding::Tiled({2, 2}, {3, 1, 0, 2}),
                 *other = Sharding::Tiled({2, 1}, {0, 1, 2, 3});
  const stablehlo::Type type{stablehlo::ElementType::kF32, {4, 4}};
  for (const bool shardy : {true, false}) {
    ShardingWriter writer(4, shardy);
    writer.Note({{other, rows, both}});
    stablehlo::Builder builder;
    const stablehlo::Value x = builder.Parameter(type);
    builder.AddParameterAttributes(0, writer.Attribute(*other, 2));
    std::vector<int> devices;
    const std::string text =
        writer.Declare(builder.Finish({writer.FromEdge(x, type, *other)}), &devices);
    EXPECT_EQ(devices, (std::vector<int>{3, 1, 0, 2}));
    const std::string stored = shardy ? "sdy.sharding = #sdy.sharding<@mesh1, [{\"a0\"}, {}]>"
                                      : "mhlo.sharding = \"{devices=[2,1,2]2,1,3,0",
                      used = shardy ? "{sharding = #sdy.sharding<@mesh, [{\"a0\"}, {}]>}"
                                    : "mhlo.sharding = \"{devices=[2,1,2]0,1,2,3";
    EXPECT_NE(text.find(stored), std::string::npos) << text;
    EXPECT_NE(text.find(used, text.find(stored) + stored.size()), std::string::npos) << text;
    EXPECT_EQ(text.find("device_ids=[2, 1, 3, 0]") != std::string::npos, shardy) << text;
  }
}

TEST(ShardingWriterTest, UnequalPartsAreFilledAtTheEdges) {
  const Sharding* const sharding = Sharding::Tiled({4}, {0, 1, 2, 3});
  const stablehlo::Type type{stablehlo::ElementType::kF32, {10}};
  for (const bool shardy : {true, false}) {
    EXPECT_EQ(ShardingWriter(4, shardy).EdgeType(type, *sharding).dims,
              (stablehlo::Dims{shardy ? 12 : 10}));
  }
}

}  // namespace
}  // namespace torch_xla::distributed
