// What a thread runs while it records: the programs that it cuts, and the places where it reads
// what it computed. Replay (replay/plan.h) is made of it.
#pragma once

#include <memory>
#include <vector>

#include "exec/program.h"
#include "tensor/graph.h"
#include "tensor/origin.h"
#include "tensor/storage.h"

namespace torch_xla::sizes {
class Binding;
}  // namespace torch_xla::sizes

namespace torch_xla::exec {

/// A number of a program: a parameter, or a constant.
struct RecordedNumber {
  uint64_t bits;
  bool is_float;
  int32_t packed;  // index among the execution's floats or integers; -1: a constant
  const ir::SourceLocation* location;
  bool operator==(const RecordedNumber& o) const {
    return bits == o.bits && is_float == o.is_float;
  }
};

struct RecordedCut {
  int device;
  ir::Hash128 hash;
  ProgramPtr program;
  std::shared_ptr<const sizes::Binding> binding;  // of the other fields to the program, see Cut
  std::vector<tensor::DeviceDataPtr> inputs, outputs;
  /// Of inputs that came to the device since CutLog::first_data; not of large ones.
  std::vector<at::Tensor> contents;
  std::vector<double> floats;
  std::vector<int64_t> integers;
  std::vector<RecordedNumber> numbers;
  std::vector<uint64_t> folded;  // ids of fills that became numbers of the program
  struct Target {
    const tensor::Storage* storage;  // may be destroyed by now
    const ir::SourceLocation* location;
  };
  std::vector<Target> targets;
};

/// What an operation required of all integers of some data, if they came from the host.
struct RecordedBounds {
  uint64_t data;  // its id
  tensor::IntegerBounds bounds;
};

struct CutLog {
  std::vector<RecordedCut> cuts;
  std::vector<RecordedBounds> bounds;
  uint64_t first_data = UINT64_MAX;
  /// The origins of reads, cuts and waits, except the cut at the end of the recording.
  std::vector<tensor::Origin> reads;
  bool closing = false;
};

/// Sets the log of this thread; null: nothing is logged. Returns the previous one.
CutLog* SetCutLog(CutLog* log);
CutLog* CurrentCutLog();

void NoteReadSlow();
/// Notes that the caller asks for a value or a cut here.
inline void NoteRead() {
  if (CurrentCutLog()) [[unlikely]]
    NoteReadSlow();
}

/// Fills in the contents of the inputs. Must be called before the program may overwrite them.
void CollectContents(const CutLog& recorder, RecordedCut& cut);
/// Fills in the numbers of a graph after they were packed, in the order of its lowering, and the
/// fills that became numbers.
void CollectNumbers(const tensor::Graph& graph, RecordedCut& cut);

}  // namespace torch_xla::exec
