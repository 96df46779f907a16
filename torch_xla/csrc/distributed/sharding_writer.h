// How a program says where its values lie: in Shardy's dialect (sdy), or by GSPMD's attributes.
//
// Inside there is one representation, tensor/sharding.h. For Shardy it is written as it is first,
// since functions of loops and branches are written before the program that they are part of; when
// the module is complete, it gets a mesh whose axes are fine enough for all of its shardings, or
// several where no such mesh exists. The axes have names of their own.
//
// XLA's partitioner computes some programs wrong if the partitions of a tile are not in ascending
// order. So partitions are numbered in the order in which the meshes have the devices. An array
// whose mesh has another order is stored as it is marked, and computed with in the program's order.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "stablehlo/builder.h"
#include "tensor/sharding.h"

namespace torch_xla::distributed {

/// Whether each device holds an array of its own: the values of manual regions
/// (distributed/manual_ops.h) lie so. They have no whole, so only a region can read them.
bool IsLocal(const Sharding& sharding);
const Sharding* Local();

class ShardingWriter {
 public:
  /// While it lives, Current() is `writer` in this thread.
  class Use {
   public:
    explicit Use(const ShardingWriter& writer);
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    ~Use();
  };
  /// The writer of the program that this thread lowers; GSPMD's where none is set.
  static const ShardingWriter& Current();

  ShardingWriter(int64_t devices, bool shardy) : devices_(devices), shardy_(shardy) {}
  bool shardy() const { return shardy_; }
  /// Whether images that convolutions read may be split by their height or width: where all marks
  /// of such arrays are over all devices, by the batch and the sides. Elsewhere XLA's partitioner
  /// adds copies up, and computes other results wrong.
  bool splits_maps() const { return splits_maps_ && !splits_otherwise_; }
  /// Tells of the shardings of parameters, results and marks, before the program is lowered.
  void Note(std::span<const Sharding* const> shardings);

  /// The module with its meshes, and with its shardings. Throws if one manual region has shardings
  /// that no mesh has. With `partition_devices` the module may number the partitions otherwise than
  /// the devices, which are listed there then.
  std::string Declare(std::string module, std::vector<int>* partition_devices = nullptr) const;
  /// Whether a text, of functions or a module before Declare(), has shardings of either writer.
  static bool HasShardings(std::string_view text);
  /// Whether in a text the devices of a manual region exchange arrays by the devices' numbers.
  static bool Exchanges(std::string_view text);
  /// The attribute of a parameter or a result with `rank` dimensions. Of a local sharding it is the
  /// attribute of the devices' arrays one after the other along the first dimension.
  std::string Attribute(const Sharding& sharding, int64_t rank) const;
  /// The type of a parameter or a result of the program. Shardy wants equal parts there, so that
  /// what has shorter ones is as long as the devices' buffers.
  stablehlo::Type EdgeType(const stablehlo::Type& type, const Sharding& sharding) const;
  /// The value of a parameter of that type, and the result of that type for a value.
  stablehlo::Value FromEdge(stablehlo::Value x, const stablehlo::Type& type,
                            const Sharding& sharding) const;
  stablehlo::Value ToEdge(stablehlo::Value x, const Sharding& sharding) const;
  /// `x`, to lie on the devices like this, but for the dimensions that are `open`.
  stablehlo::Value Constrain(stablehlo::Value x, const Sharding& sharding,
                             std::span<const int64_t> open = {}) const;
  /// Calls a function on each device with its parts of `operands`; `results` are the types of its
  /// parts of the results, which lie by `out`.
  std::vector<stablehlo::Value> Call(stablehlo::Builder& builder, std::string_view function,
                                     std::span<const stablehlo::Value> operands,
                                     std::span<const Sharding* const> in,
                                     std::span<const stablehlo::Type> results,
                                     std::span<const Sharding* const> out) const;
  /// The type of a device's part, and the type of the whole for a part.
  stablehlo::Type Part(const stablehlo::Type& whole, const Sharding& sharding) const;
  stablehlo::Type Whole(const stablehlo::Type& part, const Sharding& sharding) const;

 private:
  std::string InGspmd(const Sharding& sharding, int64_t rank) const;
  /// For a sharding that does not follow the program's order of devices, one that does, with the
  /// same tiles; null for others.
  const Sharding* InOrder(const Sharding& sharding) const;

  int64_t devices_;
  std::vector<const Sharding*> noted_;  // those with tiles, each once
  std::vector<int64_t> order_;          // of the devices, for what is noted
  bool shardy_, splits_maps_ = false, splits_otherwise_ = false;
};

}  // namespace torch_xla::distributed
