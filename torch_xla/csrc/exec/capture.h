// Captures the graph that a Python function traces, as a StableHLO function or as a program of its
// own. Control flow, torch.compile and exports use it.
//
// While a Capture lives, its thread executes nothing. The function is called with placeholders;
// every value from outside that the function reads becomes one more parameter.
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

namespace torch_xla::exec {

class Capture {
 public:
  /// `what` names the function in error messages, for example "scan".
  Capture(int device, std::string what);
  /// Tensors that still depend on placeholders become failed data: a later read of them throws.
  ~Capture();
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  int device() const { return device_; }

  /// A value with a shape and no content, to be passed to the function as an argument.
  ir::Value Placeholder(ir::ShapeRef shape);

  struct Function {
    std::string text;                 // text for stablehlo::Builder::AddFunctions, in both forms
    std::vector<size_t> inputs;       // which of the given inputs are the first parameters
    std::vector<ir::Value> captured;  // the values of the other parameters
    std::vector<int64_t> seeds;  // per captured value: its index among the seeds drawn since the
                                 // start, or -1
  };
  /// Options of MakeFunction.
  struct FunctionOptions {
    bool portable = false;  // make only the form that calls no library of this process
    /// The numbers that stay parameters, by their places in `captured` when all numbers are kept;
    /// all other numbers become constants. Without a value every number stays a parameter.
    std::optional<std::vector<size_t>> numbers;
  };
  /// Makes the function from `inputs` (any values) to `outputs` and leaves out inputs that it does
  /// not need. Can be called again for another part of the traced graph. A function that was made
  /// before is not lowered again.
  Function MakeFunction(const std::vector<ir::Value>& inputs, const std::vector<ir::Value>& outputs,
                        const std::string& name, const FunctionOptions& options);

  struct Compiled {
    ProgramPtr program;
    std::vector<size_t> inputs;  // which of the given inputs are the first parameters
    std::vector<tensor::DeviceDataPtr> captured;  // the data of the other parameters
    uint64_t draws = 0;  // number of seeds that each run draws: the program's integer parameters
  };
  /// Makes the same function as a program on buffers. Numbers are constants of the program, except
  /// seeds, which each run draws anew.
  Compiled MakeProgram(const std::vector<ir::Value>& inputs, const std::vector<ir::Value>& outputs,
                       const std::string& name);

  /// Replaces each value by the value that it is a view or a multiple of. A value stays as it is if
  /// it is neither, or if its base is much larger.
  static std::vector<ir::Value> BasesOf(std::vector<ir::Value> values);
  /// Whether each of the values is computed from a placeholder.
  std::vector<bool> DependOnPlaceholders(const std::vector<ir::Value>& values) const;
  /// The token of the calls of the host that were traced since the capture began or this was asked
  /// last; none if there were none. A function that has to make them returns it, or a value that
  /// waits for it.
  std::optional<ir::Value> TakeEffects();
  /// Whether the function has written to a tensor that existed before the capture.
  bool ChangedOutside() const;
  /// Takes what tensors hold now for what they held before the capture.
  void ForgetWrites() { writes_.Forget(); }
  /// Gives these tensors their values before the capture again, for a function that failed. Must be
  /// called, as ChangedOutside, on the thread that began the capture.
  void RestoreOutside();

 private:
  struct Walk;
  /// Turns the captured numbers into constants of the function, except those at the places `kept`
  /// of the captured values.
  static void TakeNumbers(Walk& walk, const std::vector<size_t>& kept);
  using Key = std::pair<const ir::Node*, uint32_t>;
  struct KeyHash {
    size_t operator()(const Key& key) const {
      return std::hash<const void*>()(key.first) * 31 + key.second;
    }
  };
  using Positions = std::unordered_map<Key, size_t, KeyHash>;

  Walk Collect(const std::vector<ir::Value>& inputs, const std::vector<ir::Value>& outputs) const;
  static ir::Hash128 HashOf(const Walk& walk, const std::vector<ir::Value>& inputs,
                            const std::vector<ir::Value>& outputs, const std::string& name);
  /// The text of the function for so many devices.
  static std::string TextOf(const Walk& walk, const std::vector<ir::Value>& inputs,
                            const std::vector<ir::Value>& outputs, const std::string& name,
                            int64_t devices, bool portable, const std::string& what);
  /// Keeps what was traced, so that the function can be made for other sizes (sizes/loops.h).
  static void KeepFunction(const std::string& text, const Walk& walk,
                           const std::vector<ir::Value>& inputs,
                           const std::vector<ir::Value>& outputs);
  static std::string Lower(const std::vector<ir::Value>& parameters,
                           const std::vector<ir::Value>& outputs, std::vector<ir::Value>& numbers);
  /// The index, from 0, of this number among the seeds drawn since the start of the capture; -1 if
  /// it is no such seed.
  int64_t DrawOf(const ir::Node& number) const;
  /// The storages that existed before the capture and were written to, with their values before.
  std::vector<std::pair<tensor::StoragePtr, ir::Value>> WrittenOutside() const;
  bool IsOutside(const ir::Node& leaf) const;

  const int device_;
  const std::string what_;
  const uint64_t first_data_;  // data made during the capture has ids above this one
  const uint64_t rng_state_;
  tensor::WritesOfThread writes_;
  std::optional<ir::Value> token_;  // the token of the collectives before the capture
  std::vector<std::pair<tensor::StoragePtr, ir::Value>> before_;  // storages that were pending
                                                                  // before, with their values
  Positions outside_;                                             // the values in `before_`
  std::vector<ir::Value> placeholders_;
};

/// Queues a run of the program and returns the promises of its outputs. `inputs` holds the data of
/// the program's first parameters.
std::vector<ir::Value> Run(const Capture::Compiled& compiled,
                           std::vector<tensor::DeviceDataPtr> inputs,
                           c10::ArrayRef<ir::ShapeRef> outputs, int device);

}  // namespace torch_xla::exec
