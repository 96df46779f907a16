// Watches one call of a function and makes a plan of it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "replay/plan.h"

namespace torch_xla::replay {

/// Records one call on this thread. Nothing may be pending when it begins.
class Recorder {
 public:
  /// `tensors` are the tensors that the function can reach. Their owner is Python alone, as
  /// without a recorder: torch.utils.swap_tensors() counts owners.
  Recorder(std::vector<const at::Tensor*> tensors, int device);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  /// Why these tensors cannot be replayed; empty if they can.
  const std::string& refusal() const { return refusal_; }

  /// Called when the function has returned `results`, which are new tensors. Returns the number of
  /// pending storages that no known tensor leads to.
  size_t End(std::vector<at::Tensor> results);
  /// Called after End() and before the program runs: releases the values of gradients that the call
  /// has replaced, as a step without a recorder does. The program makes as many new gradients, and
  /// may overwrite the old ones that it reads. `is_held` tells whether a tensor has more owners
  /// than one reference.
  void ReleaseGradients(bool (*is_held)(const at::Tensor&));
  /// Called after the pending storages were cut. Returns the plan, or null and the reason if the
  /// call cannot be replayed.
  PlanPtr Finish(std::string* refusal);

 private:
  void LookAtTensors();
  NewTensor Describe(const aten::XLATensorImpl& impl);
  bool IsAlike(const Plan::GradUpdate& update, int32_t before) const;
  std::string FindChanges();
  std::string AddCut(const exec::RecordedCut& cut);
  std::string AddInputs(const exec::RecordedCut& cut);
  std::string AddNumbers(const exec::RecordedCut& cut);
  std::string AddValues(const exec::RecordedCut* cut);
  void AddBounds();

  const std::vector<const at::Tensor*> tensors_;
  const int device_;
  const TensorTable before_;
  std::string refusal_;
  std::vector<uint32_t> versions_;
  std::vector<at::Tensor> grads_;  // previous gradients; they stay alive, so their data is not
                                   // donated
  std::vector<ir::Value> held_;    // the values of `grads_`
  std::vector<tensor::StoragePtr> storages_;  // of the table
  std::vector<bool> released_;                // per storage: whether its value was released
  std::vector<uint64_t> ids_;                 // per storage: the id of its data before the call
  std::vector<tensor::DeviceDataPtr> fills_;  // the fills among that data, kept as parameters
                                              // instead of numbers
  std::vector<at::Tensor> results_;           // until Finish
  std::vector<tensor::StoragePtr> fresh_;
  uint64_t first_data_, rng_before_, rng_after_ = 0;
  std::shared_ptr<Plan> plan_;
  exec::CutLog log_;
  exec::CutLog* outer_log_ = nullptr;
  bool watching_ = true;
};

}  // namespace torch_xla::replay
