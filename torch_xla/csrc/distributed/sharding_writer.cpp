#include "distributed/sharding_writer.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "stablehlo/constants.h"
#include "stablehlo/ops.h"
#include "stablehlo/text.h"

namespace torch_xla::distributed {
namespace {

using stablehlo::Cat;
using stablehlo::Type;
using stablehlo::Value;

// Placeholders for a sharding, and for all axes of a mesh, until the meshes are known.
constexpr std::string_view kSharding = "\"torch_xla.sharding ", kAxes = "\"torch_xla.axes\"";

thread_local const ShardingWriter* current = nullptr;

/// A run of devices: `size` of them, `stride` places of the mesh apart.
struct Digit {
  int64_t size, stride;
};

/// Writes the places as a grid of digits, whose last digit varies fastest: place j is the sum of
/// the digits of j times their strides. Returns nothing if the places are no such grid.
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

/// The place of each device in the order `base`.
std::vector<int64_t> PlacesIn(const std::vector<int64_t>& base) {
  std::vector<int64_t> places(base.size());
  for (size_t i = 0; i < base.size(); ++i) places[base[i]] = static_cast<int64_t>(i);
  return places;
}

/// The digits of each dimension of a sharding on the mesh with these devices; nothing if they do
/// not form a grid there.
std::optional<std::vector<std::vector<Digit>>> DimensionsOf(const Sharding& sharding,
                                                            const std::vector<int64_t>& base) {
  const std::vector<int64_t> place_of = PlacesIn(base);
  std::vector<int64_t> places;
  // The order of the copies of a tile does not matter, so sort them.
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

/// Shardings that must lie on one mesh, such as those of a manual region.
using Shardings = std::vector<const Sharding*>;

void Insert(Shardings& shardings, const Shardings& more) {
  for (const Sharding* sharding : more) {
    if (std::ranges::find(shardings, sharding) == shardings.end()) shardings.push_back(sharding);
  }
}

Shardings All(const std::vector<Shardings>& sets) {
  Shardings all;
  for (const Shardings& set : sets) Insert(all, set);
  return all;
}

/// A sharding in the text of a module: `"torch_xla.sharding <rank>;<tiles>;<devices>;<open>"`, with
/// "local" as the tiles of a local one. Dimensions that are open are left to the partitioner.
struct Mark {
  const Sharding* sharding;
  int64_t rank;
  std::vector<int64_t> open;
  size_t begin, end;
};

struct Mesh {
  std::vector<int64_t> base;     // the devices in row-major order of the mesh
  std::vector<int64_t> strides;  // of the axes, from the largest; ends with 1
  Shardings shardings;           // those that lie on it
  std::string name;

  std::string Axis(size_t i) const { return Cat("\"a", i, "\""); }
  std::string Axes() const {
    std::string text;
    for (size_t i = 0; i < strides.size(); ++i) text += Cat(i > 0 ? ", " : "", Axis(i));
    return text;
  }
  /// `places`: those of the devices among the partitions, if they are not the devices' numbers.
  std::string Declaration(const std::vector<int64_t>& places) const;
  std::string Text(const Mark& mark) const;
};

/// The mesh with these devices whose axes are fine enough for all shardings.
std::optional<Mesh> MeshOn(std::vector<int64_t> base, Shardings shardings) {
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
  std::ranges::reverse(strides);
  strides.erase(strides.begin());
  return Mesh{std::move(base), std::move(strides), std::move(shardings), {}};
}

/// A mesh on which all of these shardings lie: with the devices in this order, or in the order that
/// one of the shardings has.
std::optional<Mesh> MeshFor(const Shardings& shardings, const std::vector<int64_t>& order) {
  std::optional<Mesh> mesh = MeshOn(order, shardings);
  for (size_t i = 0; i < shardings.size() && !mesh; ++i) {
    mesh = MeshOn(shardings[i]->devices(), shardings);
  }
  return mesh;
}

/// The order of the devices that most of `first` follow, of `second` if several orders are equal;
/// ascending where it can be.
std::vector<int64_t> OrderFor(const Shardings& first, const Shardings& second, int64_t devices) {
  Shardings all = first;
  Insert(all, second);
  std::vector<int64_t> best(devices);
  std::iota(best.begin(), best.end(), 0);
  auto score = [&](const std::vector<int64_t>& order) {
    auto follow = [&](const Shardings& shardings) {
      return std::ranges::count_if(shardings, [&](const Sharding* sharding) {
        return DimensionsOf(*sharding, order).has_value();
      });
    };
    return std::make_tuple(follow(first), MeshOn(order, all).has_value(), follow(second));
  };
  auto most = score(best);
  for (const Sharding* sharding : all) {
    if (auto found = score(sharding->devices()); found > most) {
      most = found;
      best = sharding->devices();
    }
  }
  return best;
}

/// Few meshes, found greedily, such that each set lies on one of them.
std::vector<Mesh> MeshesFor(const std::vector<Shardings>& sets, const std::vector<int64_t>& order) {
  std::vector<Mesh> meshes;
  if (auto one = MeshOn(order, All(sets))) meshes.push_back(*std::move(one));
  for (const Shardings& set : meshes.empty() ? sets : std::vector<Shardings>()) {
    bool found = false;
    for (Mesh& mesh : meshes) {
      Shardings together = mesh.shardings;
      Insert(together, set);
      if (auto wider = MeshFor(together, order)) {
        mesh = *std::move(wider);
        found = true;
        break;
      }
    }
    if (found) continue;
    auto own = MeshFor(set, order);
    std::string names;
    for (const Sharding* sharding : set) names += (names.empty() ? "" : ", ") + sharding->text();
    TORCH_CHECK_VALUE(own, "shard_map: one region has values that lie by ", names,
                      ", which no mesh has as its axes: a function may use parts that it stored in "
                      "another region only if the axes of both meshes refine each other");
    meshes.push_back(*std::move(own));
  }
  for (size_t i = 0; i < meshes.size(); ++i) meshes[i].name = i > 0 ? Cat("mesh", i) : "mesh";
  return meshes;
}

std::string Mesh::Declaration(const std::vector<int64_t>& places) const {
  std::string axes, ids;
  std::vector<int64_t> partitions;
  for (int64_t device : base) partitions.push_back(places.empty() ? device : places[device]);
  auto whole = static_cast<int64_t>(base.size());
  for (size_t i = 0; i < strides.size(); ++i) {
    axes += Cat(i > 0 ? ", " : "", Axis(i), "=", whole / strides[i]);
    whole = strides[i];
  }
  if (!std::ranges::is_sorted(partitions)) {
    ids = Cat(", device_ids=", stablehlo::List(partitions));
  }
  return Cat("  sdy.mesh @", name, " = <[", axes, "]", ids, ">\n");
}

std::string Mesh::Text(const Mark& mark) const {
  std::vector<std::vector<Digit>> dimensions(mark.rank);
  if (IsLocal(*mark.sharding)) {
    dimensions[0] = {{static_cast<int64_t>(base.size()), 1}};
  } else if (!mark.sharding->replicated()) {
    dimensions = DimensionsOf(*mark.sharding, base).value();
  }
  std::string text = Cat("<@", name, ", [");
  for (int64_t i = 0; i < mark.rank; ++i) {
    std::string axes = std::ranges::find(mark.open, i) != mark.open.end() ? "?" : "";
    for (const Digit& digit : dimensions[i]) {
      for (size_t axis = 0; axis < strides.size(); ++axis) {
        if (strides[axis] < digit.stride || strides[axis] >= digit.stride * digit.size) continue;
        axes += Cat(axes.empty() ? "" : ", ", Axis(axis));
      }
    }
    text += Cat(i > 0 ? ", " : "", "{", axes, "}");
  }
  return text + "]>";
}

std::string Written(const Sharding& sharding, int64_t rank, std::span<const int64_t> open = {}) {
  return Cat(kSharding, rank, ";", IsLocal(sharding) ? "local" : stablehlo::List(sharding.tiles()),
             ";", stablehlo::List(sharding.devices()), ";", stablehlo::List(open), "\"");
}

std::vector<int64_t> Numbers(std::string_view text) {
  std::vector<int64_t> numbers;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] < '0' || text[i] > '9') continue;
    int64_t number = 0;
    for (; i < text.size() && text[i] >= '0' && text[i] <= '9'; ++i) {
      number = 10 * number + (text[i] - '0');
    }
    numbers.push_back(number);
  }
  return numbers;
}

std::optional<Mark> NextMark(std::string_view text, size_t from) {
  const size_t begin = text.find(kSharding, from);
  if (begin == std::string_view::npos) return std::nullopt;
  const size_t rank = begin + kSharding.size(), tiles = text.find(';', rank) + 1,
               devices = text.find(';', tiles) + 1, open = text.find(';', devices) + 1,
               end = text.find('"', open);
  Mark mark{Sharding::Replicated(), Numbers(text.substr(rank, tiles - rank))[0],
            Numbers(text.substr(open, end - open)), begin, end + 1};
  std::vector<int64_t> sizes = Numbers(text.substr(tiles, devices - tiles));
  if (text.substr(tiles).starts_with("local")) {
    mark.sharding = Local();
  } else if (!sizes.empty()) {
    mark.sharding =
        Sharding::Tiled(std::move(sizes), Numbers(text.substr(devices, open - devices)));
  }
  return mark;
}

/// Calls `each` with the marks that must lie on one mesh: all marks of a manual region, which is
/// one line of the text, or a single mark.
template <typename Each>
void ForEachSet(std::string_view text, const Each& each) {
  for (auto mark = NextMark(text, 0); mark;) {
    const size_t line_end = text.find('\n', mark->begin);
    const size_t line_begin = text.rfind('\n', mark->begin) + 1;
    const bool region =
        text.substr(line_begin, line_end - line_begin).find(kAxes) != std::string_view::npos;
    std::vector<Mark> marks;
    for (; mark && mark->begin < line_end; mark = NextMark(text, mark->end)) {
      marks.push_back(*mark);
      if (!region) each(std::exchange(marks, {}), false);
    }
    if (region) each(marks, true);
  }
}

/// The sharding over the partitions in which the devices have these places; the same without
/// places.
const Sharding& Renumbered(const Sharding& sharding, const std::vector<int64_t>& places) {
  if (sharding.replicated() || places.empty()) return sharding;
  std::vector<int64_t> partitions;
  for (int64_t device : sharding.devices()) partitions.push_back(places[device]);
  return *Sharding::Tiled(sharding.tiles(), std::move(partitions));
}

/// Replaces devices by their places in the lists of groups and pairs that exchange arrays.
void RenumberMembers(std::string& text, const std::vector<int64_t>& places) {
  for (const std::string_view list : {"replica_groups = dense<", "source_target_pairs = dense<"}) {
    for (size_t at = text.find(list); at != text.npos; at = text.find(list, at)) {
      at += list.size();
      const size_t end = std::min(text.find('>', at), text.size());
      std::string members;
      for (size_t i = at; i < end;) {
        const size_t digits = std::min(text.find_first_not_of("0123456789", i), end) - i;
        if (digits == 0 || text[i - 1] == '-') {  // -1 fills a short group up
          members += text[i++];
          continue;
        }
        const size_t device = std::stoull(text.substr(i, digits));
        members += std::to_string(device < places.size() ? places[device] : device);
        i += digits;
      }
      text.replace(at, end - at, members);
    }
  }
}

/// Gives the readers of partition_id the numbers of the devices, which `devices` lists by
/// partition.
void ReplacePartitionIds(std::string& text, const std::vector<int64_t>& devices) {
  constexpr std::string_view kOp = "stablehlo.partition_id";
  const std::string table = Cat("tensor<", devices.size(), "xui32>");
  for (size_t at = text.find(kOp); at != text.npos; at = text.find(kOp, at)) {
    const size_t begin = text.find('%', text.rfind('\n', at) + 1), equals = text.find(" = ", begin),
                 end = std::min(text.find('\n', at), text.size());
    if (begin > at || equals > at) {  // in a comment
      at += kOp.size();
      continue;
    }
    const std::string name = text.substr(begin + 1, equals - begin - 1);
    const std::string lines =
        Cat("%partition_", name, text.substr(equals, end - equals), "\n%devices_", name,
            " = \"stablehlo.constant\"() {value = dense<", stablehlo::List(devices), "> : ", table,
            "} : () -> ", table, "\n%device_", name, " = \"stablehlo.dynamic_slice\"(%devices_",
            name, ", %partition_", name, ") {slice_sizes = array<i64: 1>} : (", table,
            ", tensor<ui32>) -> tensor<1xui32>\n%", name, " = \"stablehlo.reshape\"(%device_", name,
            ") : (tensor<1xui32>) -> tensor<ui32>");
    text.replace(begin, end - begin, lines);
    at = begin + lines.size();
  }
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
  static const auto& gspmd = *new ShardingWriter(1, /*shardy=*/false);
  return current ? *current : gspmd;
}

void ShardingWriter::Note(std::span<const Sharding* const> shardings) {
  for (const Sharding* sharding : shardings) {
    if (sharding->replicated()) continue;
    const std::vector<int64_t>& tiles = sharding->tiles();
    splits_maps_ |= tiles.size() > 2 && tiles[0] < devices_;
    splits_otherwise_ |= tiles.size() < 2 || tiles[1] > 1 || sharding->copies() > 1;
    if (!IsLocal(*sharding)) Insert(noted_, {sharding});
  }
  order_ = OrderFor(noted_, {}, devices_);
}

const Sharding* ShardingWriter::InOrder(const Sharding& sharding) const {
  const bool follows = order_.empty() || sharding.replicated() || IsLocal(sharding) ||
                       DimensionsOf(sharding, order_);
  return follows ? nullptr : Sharding::Tiled(sharding.tiles(), order_);
}

bool ShardingWriter::HasShardings(std::string_view text) {
  return text.find(kSharding) != std::string_view::npos ||
         text.find("mhlo.sharding") != std::string_view::npos;
}

bool ShardingWriter::Exchanges(std::string_view text) {
  return std::ranges::any_of(
      std::to_array<std::string_view>({"partition_id", "replica_groups", "source_target_pairs"}),
      [&](std::string_view name) { return text.find(name) != text.npos; });
}

std::string ShardingWriter::Declare(std::string module, std::vector<int>* partition_devices) const {
  if (devices_ == 1) return module;
  auto tiled = [](const std::vector<Mark>& marks) {
    Shardings shardings;
    for (const Mark& mark : marks) {
      if (!mark.sharding->replicated() && !IsLocal(*mark.sharding)) {
        Insert(shardings, {mark.sharding});
      }
    }
    return shardings;
  };
  auto has_local = [](const std::vector<Mark>& marks) {
    return std::ranges::any_of(marks, [](const Mark& mark) { return IsLocal(*mark.sharding); });
  };
  std::vector<Shardings> sets;
  Shardings with_local;  // the first region's with parts that functions stored
  ForEachSet(module, [&](const std::vector<Mark>& marks, bool) {
    Shardings set = tiled(marks);
    if (set.empty()) return;
    if (with_local.empty() && has_local(marks)) with_local = set;
    if (std::ranges::find(sets, set) == sets.end()) sets.push_back(std::move(set));
  });
  const bool mixed =
      std::ranges::any_of(noted_, [&](const Sharding* sharding) { return InOrder(*sharding); });
  const auto order = mixed ? order_ : OrderFor(noted_, All(sets), devices_);
  std::ranges::stable_partition(
      sets, [&](const Shardings& set) { return MeshOn(order, set).has_value(); });
  const auto meshes = shardy_ ? MeshesFor(sets, order) : std::vector<Mesh>();
  std::vector<int64_t> places;  // of the devices among the partitions, if it is not their number
  if (partition_devices && !std::ranges::is_sorted(order)) {
    partition_devices->assign(order.begin(), order.end());
    places = PlacesIn(order);
    RenumberMembers(module, places);
    ReplacePartitionIds(module, order);
  }
  auto mesh_of = [&](const Shardings& set) -> const Mesh& {
    for (const Mesh& mesh : meshes) {
      if (std::ranges::all_of(set, [&](const Sharding* sharding) {
            return std::ranges::find(mesh.shardings, sharding) != mesh.shardings.end();
          })) {
        return mesh;
      }
    }
    return meshes[0];
  };
  std::string result;
  size_t done = 0;
  auto copy_to = [&](size_t end) { result.append(module, done, end - done); };
  ForEachSet(module, [&](const std::vector<Mark>& marks, bool region) {
    const Shardings set = tiled(marks);
    const Mesh* mesh = shardy_ ? &mesh_of(set.empty() ? with_local : set) : nullptr;
    TORCH_CHECK_VALUE(!mesh || !has_local(marks) || mesh->base == mesh_of(with_local).base,
                      "shard_map: a part that a function stored is used in a program whose regions "
                      "have the devices in different orders; sync between them");
    for (const Mark& mark : marks) {
      copy_to(mark.begin);
      result += mesh ? mesh->Text(mark)
                     : stablehlo::Quoted(InGspmd(Renumbered(*mark.sharding, places), mark.rank));
      done = mark.end;
    }
    if (!region) return;
    const size_t axes = module.find(kAxes, done);
    copy_to(axes);
    result += Cat("{", mesh->Axes(), "}");
    done = axes + kAxes.size();
  });
  copy_to(module.size());
  if (!shardy_) return result;
  std::string declarations;
  for (const Mesh& mesh : meshes) declarations += mesh.Declaration(places);
  return result.insert(result.find('\n') + 1, declarations);
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
  return Cat(shardy_ ? "sdy.sharding = #sdy.sharding" : "mhlo.sharding = ",
             Written(sharding, rank));
}

Value ShardingWriter::Constrain(Value x, const Sharding& sharding,
                                std::span<const int64_t> open) const {
  if (const Sharding* in_order = InOrder(sharding)) return Constrain(x, *in_order, open);
  if (shardy_) {
    return x.builder().Op("sdy.sharding_constraint", {x}, x.type(),
                          "sharding = #sdy.sharding" + Written(sharding, x.rank(), open));
  }
  stablehlo::CustomCallOptions options;
  options.api_version = 1;
  options.attributes = Attribute(sharding, x.rank());
  std::string dims;
  for (const int64_t dim : open) dims += Cat(dims.empty() ? "" : ",", dim);
  if (!open.empty()) options.backend_config = Cat("unspecified_dims=[", dims, "]");
  return stablehlo::CustomCall(x.builder(), "Sharding", {x}, {x.type()}, options)[0];
}

Type ShardingWriter::EdgeType(const Type& type, const Sharding& sharding) const {
  if (IsLocal(sharding)) return Whole(type, sharding);
  return shardy_ ? Whole(Part(type, sharding), sharding) : type;
}

Value ShardingWriter::FromEdge(Value x, const Type& type, const Sharding& sharding) const {
  const bool fits = x.type() == type;
  if (IsLocal(sharding) || (fits && !InOrder(sharding))) return x;
  const stablehlo::Dims none(type.dims.size(), 0), ones(type.dims.size(), 1);
  return Constrain(fits ? x : stablehlo::Slice(x, none, type.dims, ones), sharding);
}

Value ShardingWriter::ToEdge(Value x, const Sharding& sharding) const {
  if (IsLocal(sharding)) return x;
  if (InOrder(sharding)) x = Constrain(x, sharding);
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
      text += Cat(i > 0 ? ", " : "", Written(*shardings[i], rank_of(i)));
    }
    return Cat("#sdy.sharding_per_value<[", text, "]>");
  };
  std::string arguments, names, types;
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
                        ", manual_axes = #sdy<manual_axes", kAxes, ">"),
                    {&region, 1});
}

}  // namespace torch_xla::distributed
