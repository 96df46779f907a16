// Bookkeeping at the edges of a program that the host computes: which tokens exist, which positions
// they have, whether all sequences have ended. It consists of operations on a few integers whose
// shapes change in each round of a generation loop (a `cat` with one more token), while all
// expensive operations keep their shapes. As one program, each round would need a compilation.
// Split from its edges, the bulk is the same program in all rounds, and PyTorch's CPU kernels,
// which need no compilation, compute the edges.
#pragma once

#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tensor/device_data.h"

namespace torch_xla::tensor {

/// The operations of a graph that the host computes. Keeps no node of the graph alive.
class HostCalls {
 public:
  /// Waits for the data that it reads, computes, and fulfils the promises as execution `producer`.
  /// Called on the thread that runs the execution.
  void Run(uint64_t producer);
  /// Fails the promises that are not fulfilled yet; called on the same thread.
  void Fail(const std::exception_ptr& error, uint64_t producer) const;

  /// The executions that produced the data it reads, if they have finished.
  std::vector<uint64_t> Producers() const;

  /// Adds a node. Nodes must be added before Run, in the order of the graph. Operands that were not
  /// added must be data or numbers.
  void Add(const ir::Node& node);
  /// From now on this data stands for the result of a node that was not added.
  void Bind(const ir::Value& value, DeviceDataPtr data);
  /// Promises a value through `data`: the result of an added node, or data or a number unchanged.
  void Promise(const ir::Value& value, DeviceDataPtr data);

 private:
  struct Call {
    const ir::OpSpec* op;
    ir::Words attributes;
    std::vector<uint32_t> operands;  // indices into slots_
    ir::ShapeRef shape;
    uint32_t result;
  };
  struct Slot {
    ir::ShapeRef shape;
    DeviceDataPtr data;                 // the data it is read from, or
    std::optional<c10::Scalar> number;  // the number it is; else the result of a call
    at::Tensor value;

    const at::Tensor& Value();
  };
  friend struct SlotOperands;
  uint32_t SlotOf(const ir::Value& value);
  at::Tensor Compute(const Call& call);

  std::vector<Slot> slots_;
  std::vector<Call> calls_;
  std::vector<std::pair<uint32_t, DeviceDataPtr>> promises_;
  // slots of values; used until Run
  std::map<std::pair<const ir::Node*, uint32_t>, uint32_t> places_;
};

/// The host's work for an execution.
struct HostEdges {
  HostCalls before;  // computes inputs of the program
  HostCalls after;   // computes values from its results
};

/// What a program is executed with.
struct Arguments {
  std::vector<DeviceDataPtr> inputs;
  std::vector<double> floats;
  std::vector<int64_t> integers;
  std::vector<DeviceDataPtr> outputs;
  std::unique_ptr<HostEdges> host;  // null if the program computes everything; for a single device
                                    // only
};

/// Whether a node is device data or a number.
bool IsLeaf(const ir::Node& node);
/// Whether the host may compute the node exactly as a device would: it is an operation on a few
/// integers.
bool IsBookkeeping(const ir::Node& node);
/// Whether the node puts a small batch together from data and views of data, as a loop does that
/// keeps its samples on the device. Which samples are the same array differs from batch to batch.
bool JoinsSamples(const ir::Node& node);

/// The operations that a value is computed from, if they are a little bookkeeping on data from the
/// host, so that no program must be compiled and no running program waited for. Else nothing.
std::optional<HostCalls> HostAlone(const ir::Value& value);

}  // namespace torch_xla::tensor
