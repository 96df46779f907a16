// Which part of an array each device holds.
#include "tensor/sharding.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <vector>

namespace torch_xla::distributed {
namespace {

using Dims = std::vector<int64_t>;

TEST(ShardingTest, IsSpelledAsXlaDoes) {
  EXPECT_EQ(Sharding::Replicated()->text(), "{replicated}");
  EXPECT_EQ(Sharding::Tiled({2, 2}, {0, 2, 1, 3})->text(), "{devices=[2,2]0,2,1,3}");
  EXPECT_EQ(Sharding::Tiled({2, 1}, {0, 1, 2, 3})->text(),
            "{devices=[2,1,2]0,1,2,3 last_tile_dim_replicate}");
}

TEST(ShardingTest, EqualOnesAreOneObject) {
  EXPECT_EQ(Sharding::Tiled({2}, {0, 1}), Sharding::Tiled({2}, {0, 1}));
  EXPECT_NE(Sharding::Tiled({2}, {0, 1}), Sharding::Tiled({2}, {1, 0}));
  // One tile is the whole array.
  EXPECT_EQ(Sharding::Tiled({1, 1}, {0, 1}), Sharding::Replicated());
  EXPECT_EQ(Sharding::Tiled({}, {0}), Sharding::Replicated());
}

TEST(ShardingTest, EveryDeviceHasItsBox) {
  const Sharding* sharding = Sharding::Tiled({2, 2}, {3, 2, 1, 0});
  EXPECT_EQ(sharding->TileDims({4, 6}), (Dims{2, 3}));
  const Dims offsets[] = {{2, 3}, {2, 0}, {0, 3}, {0, 0}};
  for (int64_t device = 0; device < 4; ++device) {
    const Sharding::Tile tile = sharding->TileOf(device, {4, 6});
    EXPECT_EQ(tile.offsets, offsets[device]);
    EXPECT_EQ(tile.sizes, (Dims{2, 3}));
    EXPECT_EQ(tile.copy, 0);
  }
}

TEST(ShardingTest, UnevenEndsAreShorterOrEmpty) {
  const Sharding* sharding = Sharding::Tiled({4}, {0, 1, 2, 3});
  EXPECT_EQ(sharding->TileDims({5}), (Dims{2}));
  const int64_t sizes[] = {2, 2, 1, 0};
  for (int64_t device = 0; device < 4; ++device) {
    const Sharding::Tile tile = sharding->TileOf(device, {5});
    EXPECT_EQ(tile.sizes, Dims{sizes[device]}) << device;
    EXPECT_EQ(tile.empty(), sizes[device] == 0);
  }
  EXPECT_EQ(sharding->TileDims({0}), (Dims{0}));
  EXPECT_TRUE(sharding->TileOf(0, {0}).empty());
}

TEST(ShardingTest, CopiesAreNumbered) {
  const Sharding* sharding = Sharding::Tiled({1, 2}, {0, 2, 1, 3});
  const int64_t copies[] = {0, 0, 1, 1}, columns[] = {0, 3, 0, 3};
  for (int64_t device = 0; device < 4; ++device) {
    const Sharding::Tile tile = sharding->TileOf(device, {2, 6});
    EXPECT_EQ(tile.copy, copies[device]);
    EXPECT_EQ(tile.offsets, (Dims{0, columns[device]}));
  }
  EXPECT_EQ(Sharding::Replicated()->TileOf(3, {2, 6}).copy, 3);
  EXPECT_EQ(Sharding::Replicated()->TileOf(3, {2, 6}).sizes, (Dims{2, 6}));
}

TEST(ShardingTest, WhatIsNoShardingIsRefused) {
  EXPECT_THROW(Sharding::Tiled({3}, {0, 1, 2, 3}), c10::ValueError);
  EXPECT_THROW(Sharding::Tiled({0}, {0, 1}), c10::ValueError);
  EXPECT_THROW(Sharding::Tiled({2}, {0, 0}), c10::ValueError);
  EXPECT_THROW(Sharding::Tiled({2}, {1, 2}), c10::ValueError);
  EXPECT_THROW(Sharding::Tiled({1}, {}), c10::ValueError);
}

}  // namespace
}  // namespace torch_xla::distributed
