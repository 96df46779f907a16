// What a thread runs while it records: the programs that it cuts, and the places where it reads
// what it computed. Replay (replay/plan.h) is made of it.
#pragma once

#include <vector>

#include "exec/graph.h"
#include "exec/program.h"
#include "tensor/origin.h"
#include "tensor/storage.h"

namespace torch_xla::lazy {

/// A number of a program: its parameter, or built in.
struct RecordedNumber {
  uint64_t bits;
  bool is_float;
  int32_t packed;  // its place among the floats or integers of the execution; -1: built in
  const ir::SourceLocation* location;
  bool operator==(const RecordedNumber& o) const {
    return bits == o.bits && is_float == o.is_float;
  }
};

struct RecordedCut {
  int device;
  ir::Hash128 hash;
  ProgramPtr program;
  std::vector<DeviceDataPtr> inputs, outputs;
  /// Of inputs that came to the device since CutLog::first_data; not of large ones.
  std::vector<at::Tensor> contents;
  std::vector<double> floats;
  std::vector<int64_t> integers;
  std::vector<RecordedNumber> numbers;
  std::vector<uint64_t> folded;  // ids of data that became numbers
  struct Target {
    const Storage* storage;  // may be gone by now
    const ir::SourceLocation* location;
  };
  std::vector<Target> targets;
};

/// What an operation asked of all the integers of some data, which it would look at if they came
/// from the host.
struct RecordedBounds {
  uint64_t data;  // its id
  IntegerBounds bounds;
};

struct CutLog {
  std::vector<RecordedCut> cuts;
  std::vector<RecordedBounds> bounds;
  uint64_t first_data = UINT64_MAX;
  /// What read a tensor, cut the graph or waited, but for the end of what is recorded.
  std::vector<Origin> reads;
  bool closing = false;
};

/// Of this thread; null: it records nothing. Returns what was before.
CutLog* SetCutLog(CutLog* recorder);
CutLog* CurrentCutLog();

void NoteReadSlow();
/// Something asks for a value here, or for a cut.
inline void NoteRead() {
  if (CurrentCutLog()) [[unlikely]]
    NoteReadSlow();
}

/// Its contents; before the program may overwrite them.
void CollectContents(const CutLog& recorder, RecordedCut& cut);
/// The numbers of a graph whose numbers are packed, as its lowering takes them; and which data
/// became numbers.
void CollectNumbers(const Graph& graph, RecordedCut& cut);

}  // namespace torch_xla::lazy
