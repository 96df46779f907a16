// How an array lies on the devices of an SPMD program.
//
// Each dimension is cut into tiles of one size (the last ones shorter, or empty); every device
// holds one tile. Where there are fewer tiles than devices, each is held by several of them.
#pragma once

#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <string>
#include <vector>

namespace torch_xla::distributed {

/// Immutable and interned: equal shardings are one object, which is never freed.
class Sharding {
 public:
  /// Every device holds the whole array.
  static const Sharding* Replicated();
  /// `tiles[i]` parts along dimension i, at least 1 each; `devices` are all the devices by the tile
  /// that they hold, in row-major order, those with the same tile next to each other. Throws
  /// c10::ValueError unless they are a permutation of 0 … n - 1 with n a multiple of the tiles.
  static const Sharding* Tiled(std::vector<int64_t> tiles, std::vector<int64_t> devices);

  bool replicated() const { return tiles_.empty(); }
  /// Empty if replicated.
  const std::vector<int64_t>& tiles() const { return tiles_; }
  const std::vector<int64_t>& devices() const { return devices_; }
  /// How many devices hold each tile; 0 (all of them) if replicated.
  int64_t copies() const { return copies_; }
  /// As XLA spells it: "{devices=[2,1,2]0,1,2,3 last_tile_dim_replicate}", "{replicated}".
  const std::string& text() const { return text_; }

  /// Of the text; the same in each process.
  uint64_t hash() const { return hash_; }

  /// The dimensions of what each device holds, which is filled up where the array ends in a tile.
  std::vector<int64_t> TileDims(c10::IntArrayRef dims) const;

  /// What a device holds of an array: a box of it, empty where it has only filling.
  struct Tile {
    std::vector<int64_t> offsets, sizes;
    int64_t copy = 0;  // its number among the devices that hold the same
    bool empty() const;
  };
  Tile TileOf(int64_t device, c10::IntArrayRef dims) const;

 private:
  Sharding() = default;
  void SetText(std::string text);

  std::vector<int64_t> tiles_, devices_;
  int64_t copies_ = 0;
  std::string text_;
  uint64_t hash_ = 0;
};

}  // namespace torch_xla::distributed
