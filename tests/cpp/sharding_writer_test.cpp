// The spelling of shardings in Shardy's dialect: one mesh for all shardings of a program.
#include "distributed/sharding_writer.h"

#include <gtest/gtest.h>

#include <vector>

namespace torch_xla::distributed {
namespace {

std::string Mesh(const ShardingWriter& writer) { return writer.Declare("module {\n"); }

TEST(ShardingWriterTest, AMeshIsFineEnoughForAllShardings) {
  const Sharding* const rows = Sharding::Tiled({4, 1}, {0, 1, 2, 3, 4, 5, 6, 7});
  const Sharding* const both = Sharding::Tiled({2, 4}, {0, 2, 4, 6, 1, 3, 5, 7});
  const Sharding* const shardings[] = {rows, both, Sharding::Replicated()};
  const auto writer = ShardingWriter::Shardy(shardings, 8);
  ASSERT_TRUE(writer);
  EXPECT_EQ(Mesh(*writer), "module {\n  sdy.mesh @mesh = <[\"a0\"=4, \"a1\"=2]>\n");
  EXPECT_EQ(writer->Attribute(*rows, 2), "sdy.sharding = #sdy.sharding<@mesh, [{\"a0\"}, {}]>");
  EXPECT_EQ(writer->Attribute(*both, 2),
            "sdy.sharding = #sdy.sharding<@mesh, [{\"a1\"}, {\"a0\"}]>");
  EXPECT_EQ(writer->Attribute(*Sharding::Replicated(), 1),
            "sdy.sharding = #sdy.sharding<@mesh, [{}]>");
  EXPECT_EQ(writer->Attribute(*Local(), 0),
            "sdy.sharding = #sdy.sharding<@mesh, [{\"a0\", \"a1\"}]>");
}

TEST(ShardingWriterTest, DevicesInAnyOrderAreAMesh) {
  const Sharding* const shardings[] = {Sharding::Tiled({2, 1}, {3, 1, 0, 2}),
                                       Sharding::Tiled({1, 4}, {3, 0, 1, 2})};
  const auto writer = ShardingWriter::Shardy(shardings, 4);
  ASSERT_TRUE(writer);
  EXPECT_NE(Mesh(*writer).find("device_ids="), std::string::npos);
}

TEST(ShardingWriterTest, ShardingsWithoutAMeshInCommonHaveNone) {
  const Sharding* const shardings[] = {Sharding::Tiled({2, 3}, {0, 1, 2, 3, 4, 5}),
                                       Sharding::Tiled({3, 2}, {0, 1, 2, 3, 4, 5})};
  EXPECT_FALSE(ShardingWriter::Shardy(shardings, 6));
}

TEST(ShardingWriterTest, UnequalPartsAreFilledAtTheEdges) {
  const Sharding* const sharding = Sharding::Tiled({4}, {0, 1, 2, 3});
  const auto writer = ShardingWriter::Shardy({&sharding, 1}, 4);
  ASSERT_TRUE(writer);
  const stablehlo::Type type{stablehlo::ElementType::kF32, {10}};
  EXPECT_EQ(writer->EdgeType(type, *sharding).dims, (stablehlo::Dims{12}));
  EXPECT_EQ(ShardingWriter::Gspmd(4).EdgeType(type, *sharding).dims, (stablehlo::Dims{10}));
}

}  // namespace
}  // namespace torch_xla::distributed
