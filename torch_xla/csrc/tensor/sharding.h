// The distribution of an array over the devices of an SPMD program.
//
// Each dimension is split into tiles of equal size (the last ones may be shorter or empty), and
// every device holds one tile. If there are fewer tiles than devices, several devices hold the same
// tile.
#pragma once

#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <string>
#include <vector>

namespace torch_xla::distributed {

/// Immutable and interned: equal shardings are the same object, which is never freed.
class Sharding {
 public:
  /// Every device holds the whole array.
  static const Sharding* Replicated();
  /// `devices` lists all devices by the tile that they hold, in row-major order, those of the same
  /// tile next to each other; `tiles[i]`, at least 1, is how many there are along dimension i. No
  /// devices and tiles {0}: every device has an array of its own (distributed::Local()). Throws
  /// c10::ValueError unless `devices` is a permutation of 0 … n - 1, n a multiple of the tiles.
  static const Sharding* Tiled(std::vector<int64_t> tiles, std::vector<int64_t> devices);

  bool replicated() const { return tiles_.empty(); }
  /// Empty if replicated.
  const std::vector<int64_t>& tiles() const { return tiles_; }
  const std::vector<int64_t>& devices() const { return devices_; }
  /// The number of devices that hold each tile; 0 if replicated (all of them do).
  int64_t copies() const { return copies_; }
  /// XLA's notation: "{devices=[2,1,2]0,1,2,3 last_tile_dim_replicate}", "{replicated}".
  const std::string& text() const { return text_; }

  /// A hash of the text; equal in all processes.
  uint64_t hash() const { return hash_; }

  /// The dimensions of the buffer on each device, which is padded if the array ends within a tile.
  std::vector<int64_t> TileDims(c10::IntArrayRef dims) const;

  /// The part of an array that a device holds: a box, which is empty if the device has only
  /// padding.
  struct Tile {
    std::vector<int64_t> offsets, sizes;
    int64_t copy = 0;  // index among the devices that hold the same tile
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
