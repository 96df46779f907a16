// What a function traces, as a StableHLO function or as a program of its own: how control flow,
// torch.compile and exports see a Python function.
//
// Between its construction and its end nothing is executed on the thread. The function is called
// with placeholders; what it reads of tensors that were there before becomes further parameters.
#pragma once

#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "exec/program.h"
#include "tensor/storage.h"
#include "tensor/writes_of_thread.h"

namespace torch_xla::lowering {
class LoweringContext;
}

namespace torch_xla::lazy {

class Capture {
 public:
  /// `what` names the function in the messages of errors: "scan".
  Capture(int device, std::string what);
  /// Tensors that still depend on placeholders raise from now on when they are read.
  ~Capture();
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  int device() const { return device_; }

  /// An argument: it has a shape and no content.
  ir::Value Placeholder(ir::ShapeRef shape);

  struct Function {
    std::string text;                 // for stablehlo::Builder::AddFunctions, in both its forms
    std::vector<size_t> inputs;       // which of the inputs are its first parameters
    std::vector<ir::Value> captured;  // what its other parameters are
    std::vector<int64_t> seeds;       // of `captured`: the how-manieth draw of a seed, or -1
  };
  /// The function from `inputs` (any values) to `outputs`. Inputs that it does not need are left
  /// out. Can be called again for another part of what was traced. A function that was made before
  /// is not lowered again.
  struct FunctionOptions {
    bool portable = false;  // only the form that calls no library of this process
    /// Which of the numbers stay parameters, by their places in `captured` where all do; the
    /// others are part of the text.
    std::optional<std::vector<size_t>> numbers;
  };
  Function MakeFunction(const std::vector<ir::Value>& inputs, const std::vector<ir::Value>& outputs,
                        const std::string& name, const FunctionOptions& options);

  struct Compiled {
    ProgramPtr program;
    std::vector<size_t> inputs;           // which of the inputs are its first parameters
    std::vector<DeviceDataPtr> captured;  // its other parameters
    uint64_t draws = 0;                   // of seeds in each run: what its integers are
  };
  /// The same as a program that takes and gives buffers. Numbers are part of it but for seeds,
  /// which are drawn for every run.
  Compiled MakeProgram(const std::vector<ir::Value>& inputs, const std::vector<ir::Value>& outputs,
                       const std::string& name);

  /// What the values are views or multiples of; themselves where that is much larger, or they are
  /// none.
  static std::vector<ir::Value> BasesOf(std::vector<ir::Value> values);
  /// Which of the values are computed from placeholders.
  std::vector<bool> DependOnPlaceholders(const std::vector<ir::Value>& values) const;
  /// Whether the function has written to a tensor that was there before.
  bool ChangedOutside() const;

 private:
  struct Walk;
  /// Makes numbers part of the program but for those at the places `kept` of what is captured.
  static void TakeNumbers(Walk& walk, const std::vector<size_t>& kept);
  using Key = std::pair<const ir::Node*, uint32_t>;
  struct KeyHash {
    size_t operator()(const Key& key) const {
      return std::hash<const void*>()(key.first) * 31 + key.second;
    }
  };
  using Positions = std::unordered_map<Key, size_t, KeyHash>;

  Walk Collect(const std::vector<ir::Value>& inputs, const std::vector<ir::Value>& outputs) const;
  ir::Hash128 HashOf(const Walk& walk, const std::vector<ir::Value>& inputs,
                     const std::vector<ir::Value>& outputs, const std::string& name) const;
  /// The how-manieth seed that was drawn since the start this number is, from 0; -1: none.
  int64_t DrawOf(const ir::Node& number) const;
  bool IsOutside(const ir::Node& leaf) const;

  const int device_;
  const std::string what_;
  const uint64_t first_data_;  // ids of data made since then are larger
  const uint64_t rng_state_;
  WritesOfThread writes_;
  std::optional<ir::Value> token_;                        // that of collectives, before
  std::vector<std::pair<StoragePtr, ir::Value>> before_;  // pending ones, and what they held
  Positions outside_;                                     // those values
  std::vector<ir::Value> placeholders_;
};

/// Queues a run of the program; the results are the promises of its outputs. `inputs`: the data
/// of its parameters.
std::vector<ir::Value> Run(const Capture::Compiled& compiled, std::vector<DeviceDataPtr> inputs,
                           c10::ArrayRef<ir::ShapeRef> outputs, int device);

}  // namespace torch_xla::lazy
