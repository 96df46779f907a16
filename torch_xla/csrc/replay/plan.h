// A plan does what a call of a Python function did to tensors again, without the function.
//
// It says which storages a program reads, which ones take its results, which gradients and which
// tensors are new. It is made of a call that was traced in full (replay/recorder.h), and is for
// tensors that are alike in all that tracing can see: Plan::Misfit. Whether the function would do
// the same again depends on its Python objects, too: replay/object_guards.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "exec/cut_log.h"
#include "replay/tensor_guards.h"

namespace torch_xla::replay {

/// " at train.py:12"; nothing for null.
std::string AtLine(const ir::SourceLocation* location);

/// The source of a storage's new value.
struct Source {
  enum Kind { kOutput, kStorage, kFill } kind;
  uint32_t index = 0;  // index of the output, or of the storage that had the value before
  c10::Scalar fill = 0;
  const distributed::Sharding* sharding = nullptr;  // for a fill
  bool operator==(const Source& other) const;
};

/// A tensor that a call makes.
struct NewTensor {
  bool fresh;  // whether the call makes its storage, too
  uint32_t storage;
  tensor::ViewPtr view;
  caffe2::TypeMeta dtype;
  tensor::Ints sizes;
  bool conj, neg, requires_grad;
  bool operator==(const NewTensor& other) const;
};

struct Input {
  std::vector<uint32_t> storages;  // storages that held the same data; empty: a constant
  tensor::DeviceDataPtr constant;
  at::Tensor content;  // of `constant`
  const distributed::Sharding* sharding = nullptr;
  bool donated = false;
};

class Plan {
 public:
  /// Returns null if the tensors are alike those that the plan was made from. Else names the
  /// difference and sets `entry` to the tensor that differs.
  const char* Misfit(const TensorTable& table, size_t* entry) const;
  /// Whether the given tensor at an index has these sizes, as the plan requires.
  bool HasSizes(size_t given, c10::IntArrayRef sizes) const {
    return sizes == c10::IntArrayRef(guards_[given].sizes);
  }

  /// Repeats the effects of the call. Returns false, and does nothing, if something has changed
  /// that the guards cannot see. `floats` are the numbers of the program; `results` gets the new
  /// tensors that the call returns.
  bool Run(const TensorTable& table, std::vector<double> floats,
           std::vector<at::Tensor>& results) const;
  /// The numbers of the recorded call, for Run().
  const std::vector<double>& floats() const { return floats_; }
  /// All numbers that the call used, with their indices in floats().
  const std::vector<exec::RecordedNumber>& numbers() const { return numbers_; }

  /// Names the difference between two recordings; empty if there is none. Without `donation`,
  /// programs may differ in the inputs that they overwrite, as long as their effects are equal.
  /// Numbers in `explained` may differ.
  std::string Difference(const Plan& other, bool donation,
                         const std::unordered_set<size_t>& explained) const;

 private:
  friend class Recorder;
  struct GradUpdate {
    uint32_t entry;
    std::optional<NewTensor> grad;
    // Whether the previous gradient differs only in its content, and nothing else has the storage
    // of the new one.
    bool alike = false;
    bool operator==(const GradUpdate& other) const {
      return entry == other.entry && grad == other.grad;
    }
  };
  struct Write {
    uint32_t storage;
    Source source;
    bool operator==(const Write& other) const {
      return storage == other.storage && source == other.source;
    }
  };
  struct Fresh {
    ir::ShapeRef shape;
    Source source;
    const distributed::Sharding* sharding;  // the sharding it is marked with, or null
    bool operator==(const Fresh& other) const {
      return shape == other.shape && source == other.source && sharding == other.sharding;
    }
  };
  struct Output {
    ir::ShapeRef shape;
    const ir::SourceLocation* location;
  };
  struct Seed {
    uint32_t integer;
    uint64_t draw;
    bool operator==(const Seed&) const = default;
  };

  int device_ = 0;
  std::vector<TensorGuard> guards_;
  std::vector<StorageGuard> storage_guards_;
  struct Bounds {
    uint32_t storage;
    tensor::IntegerBounds bounds;
    bool operator==(const Bounds&) const = default;
  };
  std::vector<Bounds> bounds_;
  std::vector<uint32_t> needed_;                   // storages whose values are read
  exec::ProgramPtr program_;                       // null: nothing is computed
  std::shared_ptr<const sizes::Binding> binding_;  // of the call's arrays to the program's
  ir::Hash128 hash_;
  std::vector<exec::RecordedNumber> numbers_;
  std::vector<double> floats_;
  std::vector<int64_t> integers_;
  std::vector<Seed> seeds_;
  uint64_t draws_ = 0;
  std::vector<Input> inputs_;
  std::vector<Output> outputs_;
  std::vector<Fresh> fresh_;
  std::vector<Write> writes_;
  std::vector<GradUpdate> grads_;
  std::vector<NewTensor> results_;
  std::vector<uint32_t> bumped_;  // entries whose version counters increased
};

using PlanPtr = std::shared_ptr<const Plan>;

}  // namespace torch_xla::replay
