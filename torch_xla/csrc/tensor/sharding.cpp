#include "tensor/sharding.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>

#include "ir/hash.h"

namespace torch_xla::distributed {
namespace {

std::string Join(const std::vector<int64_t>& values) {
  std::string text;
  for (int64_t value : values) text += (text.empty() ? "" : ",") + std::to_string(value);
  return text;
}

}  // namespace

void Sharding::SetText(std::string text) {
  text_ = std::move(text);
  ir::Hasher hasher;
  hasher.AddText(text_);
  hash_ = hasher.Finish().low;
}

const Sharding* Sharding::Replicated() {
  static const Sharding* const replicated = [] {
    auto* made = new Sharding;
    made->SetText("{replicated}");
    return made;
  }();
  return replicated;
}

const Sharding* Sharding::Tiled(std::vector<int64_t> tiles, std::vector<int64_t> devices) {
  if (devices.empty() && tiles == std::vector<int64_t>{0}) {
    static const Sharding* const local = [] {
      auto* made = new Sharding;
      made->SetText("{manual}");
      made->tiles_ = {0};
      return made;
    }();
    return local;
  }
  TORCH_CHECK_VALUE(std::all_of(tiles.begin(), tiles.end(), [](int64_t n) { return n > 0; }),
                    "sharding: expected at least 1 tile in each dimension, got [", Join(tiles),
                    "]");
  const int64_t count =
      std::accumulate(tiles.begin(), tiles.end(), int64_t{1}, std::multiplies<>());
  const auto num_devices = static_cast<int64_t>(devices.size());
  std::vector<int64_t> sorted = devices;
  std::sort(sorted.begin(), sorted.end());
  for (int64_t i = 0; i < num_devices; ++i) {
    TORCH_CHECK_VALUE(sorted[i] == i, "sharding: expected each device from 0 to ", num_devices - 1,
                      " once, got [", Join(devices), "]");
  }
  TORCH_CHECK_VALUE(num_devices > 0 && num_devices % count == 0, "sharding: [", Join(tiles),
                    "] has ", count, " tiles; expected a divisor of ", num_devices,
                    ", the number of devices");
  if (count == 1) return Replicated();
  static std::mutex mutex;
  static auto& known =
      *new std::map<std::pair<std::vector<int64_t>, std::vector<int64_t>>, const Sharding*>;
  std::lock_guard lock(mutex);
  const Sharding*& sharding = known[{tiles, devices}];
  if (sharding) return sharding;
  auto* made = new Sharding;
  made->copies_ = num_devices / count;
  std::string text = "{devices=[" + Join(tiles);
  if (made->copies_ > 1) text += "," + std::to_string(made->copies_);
  text += "]" + Join(devices);
  if (made->copies_ > 1) text += " last_tile_dim_replicate";
  made->SetText(text + "}");
  made->tiles_ = std::move(tiles);
  made->devices_ = std::move(devices);
  return sharding = made;
}

std::vector<int64_t> Sharding::TileDims(c10::IntArrayRef dims) const {
  std::vector<int64_t> result(dims.begin(), dims.end());
  if (replicated() || devices_.empty()) return result;
  TORCH_INTERNAL_ASSERT(dims.size() == tiles_.size(), text_, " of an array of rank ", dims.size());
  for (size_t i = 0; i < result.size(); ++i) result[i] = (dims[i] + tiles_[i] - 1) / tiles_[i];
  return result;
}

bool Sharding::Tile::empty() const {
  return std::find(sizes.begin(), sizes.end(), 0) != sizes.end();
}

Sharding::Tile Sharding::TileOf(int64_t device, c10::IntArrayRef dims) const {
  Tile tile{std::vector<int64_t>(dims.size(), 0), {dims.begin(), dims.end()}};
  if (replicated()) {
    tile.copy = device;
    return tile;
  }
  TORCH_CHECK(
      !devices_.empty(),
      "a value of a manual region (shard_map) has a part on each device and no whole: return "
      "it from the region with an entry of out_specs to read it");
  const std::vector<int64_t> tile_dims = TileDims(dims);
  const auto found = std::find(devices_.begin(), devices_.end(), device);
  TORCH_INTERNAL_ASSERT(found != devices_.end(), text_, " has no device ", device);
  int64_t place = found - devices_.begin();
  tile.copy = place % copies_;
  place /= copies_;
  for (size_t i = dims.size(); i-- > 0;) {
    const int64_t begin = std::min(place % tiles_[i] * tile_dims[i], dims[i]);
    tile.offsets[i] = begin;
    tile.sizes[i] = std::min(begin + tile_dims[i], dims[i]) - begin;
    place /= tiles_[i];
  }
  return tile;
}

}  // namespace torch_xla::distributed
