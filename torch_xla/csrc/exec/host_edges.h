// Bookkeeping at the edges of a program, done on the host: which tokens there are so far, which
// positions they have, whether all sequences have ended. These are a few integers whose shapes
// change from round to round of a loop (a `cat` of one more token), where all that is expensive
// keeps its shapes. As one program each round is another one. Split from its edges, the bulk is one
// program for all rounds, and PyTorch's CPU kernels, which nothing is compiled for, do the rest.
#pragma once

#include <exception>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "tensor/device_data.h"

namespace torch_xla::lazy {

/// What is computed on the host of a graph. Keeps nothing of the graph alive.
class HostCalls {
 public:
  /// Waits for the data that it reads, computes and keeps the promises, as execution `producer`:
  /// for the thread that runs it.
  void Run(uint64_t producer);
  /// Breaks the promises that are not kept yet, likewise.
  void Fail(const std::exception_ptr& error, uint64_t producer) const;

  /// Executions that made what it reads, where they are done.
  std::vector<uint64_t> Producers() const;

  /// Part of the graph: before Run, in the order of the graph. Operands that are not part of it
  /// must be data or numbers.
  void Add(const ir::Node& node);
  /// From now on another node's result is this data.
  void Bind(const ir::Value& value, DeviceDataPtr data);
  /// Asks for a value: of a node that is part of it, or data or a number as it is.
  void Promise(const ir::Value& value, DeviceDataPtr data);

 private:
  struct Call {
    const ir::OpSpec* op;
    ir::Words attributes;
    std::vector<uint32_t> operands;  // places in slots_
    ir::ShapeRef shape;
    uint32_t result;
  };
  struct Slot {
    ir::ShapeRef shape;
    DeviceDataPtr data;                 // it is read from, or
    std::optional<c10::Scalar> number;  // it is, or a call's result
    at::Tensor value;

    const at::Tensor& Value();
  };
  friend struct SlotOperands;
  uint32_t SlotOf(const ir::Value& value);
  at::Tensor Compute(const Call& call);

  std::vector<Slot> slots_;
  std::vector<Call> calls_;
  std::vector<std::pair<uint32_t, DeviceDataPtr>> promises_;
  std::map<std::pair<const ir::Node*, uint32_t>, uint32_t> places_;  // of values; until Run
};

/// What the host does for an execution.
struct HostEdges {
  HostCalls before;  // what the program is given
  HostCalls after;   // what is made of its results
};

/// Whether a node is data or a number.
bool IsLeaf(const ir::Node& node);
/// Whether a node is one that the host may compute, as exactly as a device: an operation on a few
/// integers.
bool IsBookkeeping(const ir::Node& node);

/// All that a value is made of, where that is a little bookkeeping of what came from the host:
/// nobody need compile a program for it, nor wait for those that run. Else nothing.
std::optional<HostCalls> HostAlone(const ir::Value& value);

}  // namespace torch_xla::lazy
