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

/// Where a storage's value comes from.
struct Source {
  enum Kind { kOutput, kStorage, kFill } kind;
  uint32_t index = 0;  // of the output, or of the storage whose value it was before
  c10::Scalar fill = 0;
  const distributed::Sharding* sharding = nullptr;  // of a fill
  bool operator==(const Source& other) const;
};

/// A tensor that a call makes.
struct NewTensor {
  bool fresh;  // its storage is one that the call makes
  uint32_t storage;
  lazy::ViewPtr view;
  caffe2::TypeMeta dtype;
  lazy::Ints sizes;
  bool conj, neg, requires_grad;
  bool operator==(const NewTensor& other) const;
};

struct Input {
  std::vector<uint32_t> storages;  // that held the same data; empty: a constant
  lazy::DeviceDataPtr constant;
  at::Tensor content;  // of that
  const distributed::Sharding* sharding = nullptr;
  bool donated = false;
};

class Plan {
 public:
  /// Null where tensors are alike those that it was made with; else what differs, and in which
  /// of them.
  const char* Misfit(const TensorTable& table, size_t* entry) const;
  /// Whether the tensor given at a place has these sizes, as it has to.
  bool HasSizes(size_t given, c10::IntArrayRef sizes) const {
    return sizes == c10::IntArrayRef(guards_[given].sizes);
  }

  /// Does what the call did; nothing, and returns false, where something has become other than the
  /// guards can tell. `results` are the new tensors that it returns, `floats` its numbers.
  bool Run(const TensorTable& table, std::vector<double> floats,
           std::vector<at::Tensor>& results) const;
  /// The numbers of the recorded call, as Run() takes them.
  const std::vector<double>& floats() const { return floats_; }
  /// All that it used, with their places among floats().
  const std::vector<lazy::RecordedNumber>& numbers() const { return numbers_; }

  /// What two recordings differ in; empty: nothing. Where not `donation`, what they do is the same
  /// though their programs be others for what they may overwrite. Numbers that are `explained` may
  /// differ.
  std::string Difference(const Plan& other, bool donation,
                         const std::unordered_set<size_t>& explained) const;

 private:
  friend class Recorder;
  struct GradUpdate {
    uint32_t entry;
    std::optional<NewTensor> grad;
    bool alike =
        false;  // the one before looks the same, and nothing else has the new one's storage
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
    const distributed::Sharding* sharding;  // that it is annotated with, or null
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
    lazy::IntegerBounds bounds;
    bool operator==(const Bounds&) const = default;
  };
  std::vector<Bounds> bounds_;
  std::vector<uint32_t> needed_;  // storages whose values are looked at
  lazy::ProgramPtr program_;      // null: nothing is computed
  ir::Hash128 hash_;
  std::vector<lazy::RecordedNumber> numbers_;
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
  std::vector<uint32_t> bumped_;  // entries whose version counter moved
};

using PlanPtr = std::shared_ptr<const Plan>;

}  // namespace torch_xla::replay
