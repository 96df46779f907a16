#include "distributed/sharding_writer.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "stablehlo/constants.h"
#include "stablehlo/ops.h"
#include "stablehlo/text.h"

namespace torch_xla::distributed {
namespace {

using stablehlo::Cat;
using stablehlo::Type;
using stablehlo::Value;

constexpr const char* kMesh = "mesh";

thread_local const ShardingWriter* current = nullptr;

/// A run of devices: `size` of them, `stride` places of the mesh apart.
struct Digit {
  int64_t size, stride;
};

/// The row-major places as digits, the last one varying fastest: place j of the result is the
/// sum of its digits times their strides. Nothing if the places are no such grid.
std::optional<std::vector<Digit>> DigitsOf(const std::vector<int64_t>& places) {
  const auto count = static_cast<int64_t>(places.size());
  std::vector<Digit> digits;
  for (int64_t done = 1; done < count;) {
    const int64_t stride = places[done] - places[0];
    if (stride <= 0) return std::nullopt;
    int64_t size = 1;
    while (size * done < count && places[size * done] - places[0] == size * stride) ++size;
    while (count / done % size != 0) --size;
    if (size == 1) return std::nullopt;
    digits.insert(digits.begin(), {size, stride});
    done *= size;
  }
  for (int64_t j = 0; j < count; ++j) {
    int64_t rest = j, place = 0;
    for (size_t i = digits.size(); i-- > 0; rest /= digits[i].size) {
      place += rest % digits[i].size * digits[i].stride;
    }
    if (place != places[j]) return std::nullopt;
  }
  return digits;
}

/// The digits of each dimension of a sharding on the mesh with these devices; nothing if it has
/// none.
std::optional<std::vector<std::vector<Digit>>> DimensionsOf(const Sharding& sharding,
                                                            const std::vector<int64_t>& base) {
  std::vector<int64_t> place_of(base.size());
  for (size_t i = 0; i < base.size(); ++i) place_of[base[i]] = static_cast<int64_t>(i);
  std::vector<int64_t> places;
  // Of the copies of a tile the first stands for all, whose order does not matter.
  for (int64_t device : sharding.devices()) places.push_back(place_of[device]);
  const auto copies = static_cast<size_t>(sharding.copies());
  for (size_t i = 0; i < places.size(); i += copies) {
    const auto begin = places.begin() + static_cast<std::ptrdiff_t>(i);
    std::sort(begin, begin + static_cast<std::ptrdiff_t>(copies));
  }
  const auto digits = DigitsOf(places);
  if (!digits) return std::nullopt;
  std::vector<int64_t> tiles = sharding.tiles();
  tiles.push_back(sharding.copies());
  std::vector<std::vector<Digit>> dimensions(tiles.size());
  size_t next = digits->size();
  Digit left{1, 0};  // what is left of the digit that is being used up
  for (size_t i = tiles.size(); i-- > 0;) {
    for (int64_t wanted = tiles[i]; wanted > 1;) {
      if (left.size == 1) left = (*digits)[--next];
      const int64_t size = std::gcd(wanted, left.size);
      if (size == 1 || (size != wanted && size != left.size)) return std::nullopt;
      dimensions[i].insert(dimensions[i].begin(), {size, left.stride});
      left = {left.size / size, left.stride * size};
      wanted /= size;
    }
  }
  return dimensions;
}

/// The mesh with these devices whose axes are fine enough for all shardings, as the strides of its
/// axes.
std::optional<std::vector<int64_t>> StridesFor(std::span<const Sharding* const> shardings,
                                               const std::vector<int64_t>& base) {
  std::set<int64_t> cuts{1, static_cast<int64_t>(base.size())};
  for (const Sharding* sharding : shardings) {
    const auto dimensions = DimensionsOf(*sharding, base);
    if (!dimensions) return std::nullopt;
    for (const auto& dimension : *dimensions) {
      for (const Digit& digit : dimension) {
        cuts.insert(digit.stride);
        cuts.insert(digit.stride * digit.size);
      }
    }
  }
  std::vector<int64_t> strides(cuts.begin(), cuts.end());
  for (size_t i = 1; i < strides.size(); ++i) {
    if (strides[i] % strides[i - 1] != 0) return std::nullopt;
  }
  std::reverse(strides.begin(), strides.end());
  strides.erase(strides.begin());
  return strides;
}

std::string ShapesAndReturn(std::span<const Type> types) {
  return types.size() == 1 ? types[0].ToString() : Cat("(", stablehlo::TypeNames(types), ")");
}

}  // namespace

bool IsLocal(const Sharding& sharding) {
  return !sharding.replicated() && sharding.devices().empty();
}

const Sharding* Local() { return Sharding::Tiled({0}, {}); }

ShardingWriter::Use::Use(const ShardingWriter& writer) { current = &writer; }
ShardingWriter::Use::~Use() { current = nullptr; }

const ShardingWriter& ShardingWriter::Current() {
  static const auto& gspmd = *new ShardingWriter(1);
  return current ? *current : gspmd;
}

std::optional<ShardingWriter> ShardingWriter::Shardy(std::span<const Sharding* const> shardings,
                                                     int64_t devices) {
  std::vector<const Sharding*> tiled;
  for (const Sharding* sharding : shardings) {
    if (!sharding->replicated() && !IsLocal(*sharding) &&
        std::find(tiled.begin(), tiled.end(), sharding) == tiled.end()) {
      tiled.push_back(sharding);
    }
  }
  // The order of the devices that the shardings are grids of: their own order, or that of one of
  // the shardings.
  ShardingWriter writer(devices);
  writer.shardy_ = true;
  writer.base_.resize(devices);
  std::iota(writer.base_.begin(), writer.base_.end(), 0);
  auto strides = StridesFor(tiled, writer.base_);
  for (size_t i = 0; i < tiled.size() && !strides; ++i) {
    writer.base_ = tiled[i]->devices();
    strides = StridesFor(tiled, writer.base_);
  }
  if (!strides) return std::nullopt;
  writer.strides_ = *std::move(strides);
  std::string axes;
  int64_t whole = devices;
  for (size_t i = 0; i < writer.strides_.size(); ++i) {
    axes += Cat(i > 0 ? ", " : "", "\"a", i, "\"=", whole / writer.strides_[i]);
    whole = writer.strides_[i];
  }
  std::string ids;
  if (!std::is_sorted(writer.base_.begin(), writer.base_.end())) {
    ids = Cat(", device_ids=", stablehlo::List(writer.base_));
  }
  writer.declaration_ = Cat("  sdy.mesh @", kMesh, " = <[", axes, "]", ids, ">\n");
  return writer;
}

std::string ShardingWriter::Declare(std::string module) const {
  if (shardy_) module.insert(module.find('\n') + 1, declaration_);
  return module;
}

std::string ShardingWriter::InShardy(const Sharding& sharding, int64_t rank) const {
  std::vector<std::vector<Digit>> dimensions(rank);
  if (IsLocal(sharding)) {
    dimensions[0] = {{devices_, 1}};
  } else if (!sharding.replicated()) {
    auto found = DimensionsOf(sharding, base_);
    TORCH_INTERNAL_ASSERT(found, sharding.text(), " is not on the program's mesh");
    dimensions = *std::move(found);
  }
  std::string text = Cat("<@", kMesh, ", [");
  for (int64_t i = 0; i < rank; ++i) {
    std::string axes;
    for (const Digit& digit : dimensions[i]) {
      for (size_t axis = 0; axis < strides_.size(); ++axis) {
        if (strides_[axis] < digit.stride || strides_[axis] >= digit.stride * digit.size) continue;
        axes += Cat(axes.empty() ? "" : ", ", "\"a", axis, "\"");
      }
    }
    text += Cat(i > 0 ? ", " : "", "{", axes, "}");
  }
  return text + "]>";
}

std::string ShardingWriter::InGspmd(const Sharding& sharding, int64_t rank) const {
  if (!IsLocal(sharding)) return sharding.text();
  std::vector<int64_t> tiles(rank, 1), devices(devices_);
  tiles[0] = devices_;
  std::iota(devices.begin(), devices.end(), 0);
  return Sharding::Tiled(std::move(tiles), std::move(devices))->text();
}

std::string ShardingWriter::Attribute(const Sharding& sharding, int64_t rank) const {
  if (IsLocal(sharding)) rank = std::max<int64_t>(rank, 1);
  return shardy_ ? "sdy.sharding = #sdy.sharding" + InShardy(sharding, rank)
                 : "mhlo.sharding = " + stablehlo::Quoted(InGspmd(sharding, rank));
}

Value ShardingWriter::Constrain(Value x, const Sharding& sharding) const {
  if (shardy_) {
    return x.builder().Op("sdy.sharding_constraint", {x}, x.type(),
                          "sharding = #sdy.sharding" + InShardy(sharding, x.rank()));
  }
  stablehlo::CustomCallOptions options;
  options.api_version = 1;
  options.attributes = Attribute(sharding, x.rank());
  return stablehlo::CustomCall(x.builder(), "Sharding", {x}, {x.type()}, options)[0];
}

Type ShardingWriter::EdgeType(const Type& type, const Sharding& sharding) const {
  if (IsLocal(sharding)) return Whole(type, sharding);
  return shardy_ ? Whole(Part(type, sharding), sharding) : type;
}

Value ShardingWriter::FromEdge(Value x, const Type& type, const Sharding& sharding) const {
  if (x.type() == type || IsLocal(sharding)) return x;
  const stablehlo::Dims none(type.dims.size(), 0), ones(type.dims.size(), 1);
  return Constrain(stablehlo::Slice(x, none, type.dims, ones), sharding);
}

Value ShardingWriter::ToEdge(Value x, const Sharding& sharding) const {
  if (IsLocal(sharding)) return x;
  const Type type = EdgeType(x.type(), sharding);
  if (x.type() == type) return x;
  const stablehlo::Dims none(type.dims.size(), 0);
  stablehlo::Dims missing = type.dims;
  for (size_t i = 0; i < missing.size(); ++i) missing[i] -= x.dims()[i];
  return stablehlo::Pad(x, stablehlo::ScalarLike(x, 0), none, missing, none);
}

Type ShardingWriter::Part(const Type& whole, const Sharding& sharding) const {
  if (sharding.replicated()) return whole;
  Type part = whole;
  if (IsLocal(sharding)) {
    part.dims[0] /= devices_;
  } else {
    part.dims = sharding.TileDims(whole.dims);
  }
  return part;
}

Type ShardingWriter::Whole(const Type& part, const Sharding& sharding) const {
  if (sharding.replicated()) return part;
  Type whole = part;
  if (IsLocal(sharding)) {
    if (whole.dims.empty()) whole.dims.push_back(1);
    whole.dims[0] *= devices_;
  } else {
    for (size_t i = 0; i < whole.dims.size(); ++i) whole.dims[i] *= sharding.tiles()[i];
  }
  return whole;
}

std::vector<Value> ShardingWriter::Call(stablehlo::Builder& builder, std::string_view function,
                                        std::span<const Value> operands,
                                        std::span<const Sharding* const> in,
                                        std::span<const Type> results,
                                        std::span<const Sharding* const> out) const {
  std::vector<Type> wholes;
  for (size_t i = 0; i < results.size(); ++i) wholes.push_back(Whole(results[i], *out[i]));
  if (!shardy_) {
    auto convert = [&](std::string_view target, Value x, const Type& type, std::string sharding) {
      stablehlo::CustomCallOptions options;
      options.api_version = 1;
      options.attributes = std::move(sharding);
      return stablehlo::CustomCall(builder, target, {x}, {type}, options)[0];
    };
    const std::string manual = "mhlo.sharding = \"{manual}\"";
    std::vector<Value> parts;
    for (size_t i = 0; i < operands.size(); ++i) {
      const Value x = operands[i];
      const std::string attribute = Attribute(*in[i], x.rank());
      parts.push_back(convert("SPMDFullToShardShape", convert("Sharding", x, x.type(), attribute),
                              Part(x.type(), *in[i]), manual));
    }
    std::vector<Value> made = builder.Call(function, parts);
    for (size_t i = 0; i < made.size(); ++i) {
      made[i] = convert("SPMDShardToFullShape", convert("Sharding", made[i], results[i], manual),
                        wholes[i], Attribute(*out[i], wholes[i].rank()));
    }
    return made;
  }
  auto list = [&](std::span<const Sharding* const> shardings, auto rank_of) {
    std::string text;
    for (size_t i = 0; i < shardings.size(); ++i) {
      text += Cat(i > 0 ? ", " : "", InShardy(*shardings[i], rank_of(i)));
    }
    return Cat("#sdy.sharding_per_value<[", text, "]>");
  };
  std::string axes, arguments, names, types;
  for (size_t i = 0; i < strides_.size(); ++i) axes += Cat(i > 0 ? ", " : "", "\"a", i, "\"");
  for (size_t i = 0; i < operands.size(); ++i) {
    const std::string type = Part(operands[i].type(), *in[i]).ToString();
    const std::string separator = i > 0 ? ", " : "";
    arguments += Cat(separator, "%part", i, ": ", type);
    names += Cat(separator, "%part", i);
    types += separator + type;
  }
  std::string returned;
  for (size_t i = 0; i < results.size(); ++i) {
    returned += Cat(i > 0 ? ", " : "", "%made", results.size() > 1 ? Cat("#", i) : "");
  }
  stablehlo::Region region;
  region.text = Cat("    ^bb0(", arguments, "):\n      %made",
                    results.size() > 1 ? Cat(":", results.size()) : "", " = func.call @", function,
                    "(", names, ") : (", types, ") -> ", ShapesAndReturn(results),
                    "\n      sdy.return ", returned, " : ", stablehlo::TypeNames(results), "\n");
  return builder.Op("sdy.manual_computation", operands, wholes,
                    Cat("in_shardings = ", list(in, [&](size_t i) { return operands[i].rank(); }),
                        ", out_shardings = ", list(out, [&](size_t i) { return wholes[i].rank(); }),
                        ", manual_axes = #sdy<manual_axes{", axes, "}>"),
                    {&region, 1});
}

}  // namespace torch_xla::distributed
