// Replay: what a Python function did to tensors, as a plan that does it again without the function.
//
// A plan says which storages a program reads, which ones take its results, which gradients and
// which tensors are new. It is made of a call that was traced in full (ReplayRecorder), and is for
// tensors that are alike in all that tracing can see: Plan::Fits. Whether the function would do the
// same again depends on its Python objects, too: replay/object_guards.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "aten/tensor_impl.h"
#include "exec/cut_log.h"

namespace torch_xla::aten {

/// Tensors that a function can reach: those given, then their gradients; and their storages, in the
/// order in which they meet.
struct TensorTable {
  struct Entry {
    XLATensorImpl* impl;
    uint32_t storage;
    int32_t twin;  // an earlier entry that is the same tensor, or -1
    int32_t grad;  // the entry that is its gradient, or -1
  };
  std::vector<Entry> entries;
  std::vector<lazy::Storage*> storages;
  size_t num_given = 0;
  std::string refusal;  // why one of them cannot be replayed; the table ends there

  /// The tensors must outlive it.
  explicit TensorTable(c10::ArrayRef<const at::Tensor*> tensors);

 private:
  /// Numbers pointers in the order in which they come.
  class PointerIndex {
   public:
    void Reserve(size_t count);
    /// The number of one that is new: that given, or how many there were.
    uint32_t Find(const void* pointer, std::optional<uint32_t> number = std::nullopt);

   private:
    std::vector<std::pair<const void*, uint32_t>> slots_;
    uint32_t count_ = 0;
  };
  void Add(const at::Tensor& tensor);

  PointerIndex storage_index_, tensor_index_;
};

/// The token of the device's collectives, which is state that no tensor leads to; undefined where
/// there is none and none shall be made.
at::Tensor CollectiveTokenTensor(int device, bool make = false);

/// Which hooks run when a gradient comes to a tensor; 0: none.
size_t HookStamp(const c10::TensorImpl& impl);
/// Whether it has a tangent of forward-mode autograd.
bool HasTangent(const c10::TensorImpl& impl);

/// What of a tensor, and of a storage, decides what is traced.
struct TensorGuard {
  ir::ShapeRef root;
  lazy::ViewPtr view;
  lazy::Ints sizes;
  caffe2::TypeMeta dtype;
  c10::DispatchKeySet keys;
  int device;
  bool requires_grad;
  uint32_t storage;
  int32_t twin, grad;
  size_t hooks;

  explicit TensorGuard(const TensorTable::Entry& entry);
  /// What differs, in words; null: nothing. Gradients and storages are looked at where `wiring`.
  const char* Difference(const TensorTable::Entry& entry, bool wiring) const;
};

struct StorageGuard {
  bool filled;  // it holds a number that some operations look at
  const distributed::Sharding* sharding;

  explicit StorageGuard(const lazy::Storage& storage);
  bool Holds(const lazy::Storage& storage) const;
};

/// Where a storage's value comes from.
struct ReplaySource {
  enum Kind { kOutput, kStorage, kFill } kind;
  uint32_t index = 0;  // of the output, or of the storage whose value it was before
  c10::Scalar fill = 0;
  const distributed::Sharding* sharding = nullptr;  // of a fill
  bool operator==(const ReplaySource& other) const;
};

/// A tensor that a call makes.
struct ReplayTensor {
  bool fresh;  // its storage is one that the call makes
  uint32_t storage;
  lazy::ViewPtr view;
  caffe2::TypeMeta dtype;
  lazy::Ints sizes;
  bool conj, neg, requires_grad;
  bool operator==(const ReplayTensor& other) const;
};

struct ReplayInput {
  std::vector<uint32_t> storages;  // that held the same data; empty: a constant
  lazy::DeviceDataPtr constant;
  at::Tensor content;  // of that
  const distributed::Sharding* sharding = nullptr;
  bool donated = false;
};

class ReplayPlan {
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
  std::string Difference(const ReplayPlan& other, bool donation,
                         const std::unordered_set<size_t>& explained) const;

 private:
  friend class ReplayRecorder;
  struct GradUpdate {
    uint32_t entry;
    std::optional<ReplayTensor> grad;
    bool alike =
        false;  // the one before looks the same, and nothing else has the new one's storage
    bool operator==(const GradUpdate& other) const {
      return entry == other.entry && grad == other.grad;
    }
  };
  struct Write {
    uint32_t storage;
    ReplaySource source;
    bool operator==(const Write& other) const {
      return storage == other.storage && source == other.source;
    }
  };
  struct Fresh {
    ir::ShapeRef shape;
    ReplaySource source;
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
  std::vector<ReplayInput> inputs_;
  std::vector<Output> outputs_;
  std::vector<Fresh> fresh_;
  std::vector<Write> writes_;
  std::vector<GradUpdate> grads_;
  std::vector<ReplayTensor> results_;
  std::vector<uint32_t> bumped_;  // entries whose version counter moved
};

using ReplayPlanPtr = std::shared_ptr<const ReplayPlan>;

/// Watches one call on this thread. Nothing may be pending when it begins.
class ReplayRecorder {
 public:
  /// `tensors` are those that the function can reach.
  ReplayRecorder(std::vector<at::Tensor> tensors, int device);
  ~ReplayRecorder();
  ReplayRecorder(const ReplayRecorder&) = delete;
  ReplayRecorder& operator=(const ReplayRecorder&) = delete;

  /// Why the tensors cannot be replayed with; empty: they can.
  const std::string& refusal() const { return refusal_; }

  /// The function has returned `results`, new tensors. Returns how many tensors there are that wait
  /// for values and that nothing known leads to.
  size_t End(std::vector<at::Tensor> results);
  /// Behind End(): lets go of what was in gradients that the call has replaced, as a step without a
  /// recorder has, before its program runs: that makes as many, and may overwrite what it reads of
  /// them. `is_held`: whether anybody has a tensor but one reference.
  void ReleaseGradients(bool (*is_held)(const at::Tensor&));
  /// What waited was cut. Returns null where the call cannot be replayed, and why.
  ReplayPlanPtr Finish(std::string* refusal);

 private:
  void LookAtTensors();
  ReplayTensor Describe(const XLATensorImpl& impl);
  bool IsAlike(const ReplayPlan::GradUpdate& update, int32_t before) const;
  std::string FindChanges();
  std::string AddCut(const lazy::RecordedCut& cut);
  std::string AddInputs(const lazy::RecordedCut& cut);
  std::string AddNumbers(const lazy::RecordedCut& cut);
  std::string AddValues(const lazy::RecordedCut* cut);
  void AddBounds();

  const std::vector<at::Tensor> tensors_;
  const int device_;
  const TensorTable before_;
  std::string refusal_;
  std::vector<uint32_t> versions_;
  std::vector<at::Tensor> grads_;           // of before: they live, and their data is not donated
  std::vector<ir::Value> held_;             // that
  std::vector<lazy::StoragePtr> storages_;  // of the table
  std::vector<bool> released_;              // of those, whether the value is gone
  std::vector<uint64_t> ids_;               // of the data that they held
  std::vector<lazy::DeviceDataPtr> fills_;  // among that: parameters rather than numbers
  std::vector<at::Tensor> results_;         // until the end
  std::vector<lazy::StoragePtr> fresh_;
  uint64_t first_data_, rng_before_, rng_after_ = 0;
  std::shared_ptr<ReplayPlan> plan_;
  lazy::Recorder recorder_;
  lazy::Recorder* outer_ = nullptr;
  bool watching_ = true;
};

}  // namespace torch_xla::aten
