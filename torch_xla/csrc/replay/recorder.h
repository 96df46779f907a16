// Watches one call of a function and makes a plan of it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "replay/plan.h"

namespace torch_xla::replay {

/// Watches one call on this thread. Nothing may be pending when it begins.
class Recorder {
 public:
  /// `tensors` are those that the function can reach.
  Recorder(std::vector<at::Tensor> tensors, int device);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

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
  PlanPtr Finish(std::string* refusal);

 private:
  void LookAtTensors();
  NewTensor Describe(const aten::XLATensorImpl& impl);
  bool IsAlike(const Plan::GradUpdate& update, int32_t before) const;
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
  std::shared_ptr<Plan> plan_;
  lazy::Recorder recorder_;
  lazy::Recorder* outer_ = nullptr;
  bool watching_ = true;
};

}  // namespace torch_xla::replay
