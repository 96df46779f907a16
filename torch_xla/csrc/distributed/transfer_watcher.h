// Ends a transfer whose peer has ended, since Gloo's wait does not always notice that.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "distributed/peer_mesh.h"

namespace torch_xla::distributed {

/// Within this time all data arrives that a replica sent before it ended.
inline constexpr std::chrono::seconds kGrace{5};

class TransferWatcher {
 public:
  /// `mesh` must outlive it.
  explicit TransferWatcher(PeerMesh& mesh);
  ~TransferWatcher();

  /// Waits until the transfer with `rank` is done. Throws if it fails, or if `rank` has ended
  /// without having sent enough to complete it. A `message` may never be sent, so its wait also
  /// ends if `rank` is unavailable for it (PeerMesh::WhyUnavailable).
  void Wait(const c10::intrusive_ptr<c10d::Work>& work, int rank, bool message = false);
  /// Ends a wait in progress on another thread, and all later waits.
  void Abort();

 private:
  using Clock = std::chrono::steady_clock;

  void Run();

  PeerMesh& mesh_;
  std::mutex mutex_;
  std::condition_variable stopping_;
  bool stop_ = false;
  bool aborted_ = false;
  c10::intrusive_ptr<c10d::Work> work_;  // the transfer that is waited for, or null
  int rank_ = -1;
  bool message_ = false;
  // When rank_ was first seen to be unavailable during this wait.
  Clock::time_point since_{};
  std::thread thread_;
};

}  // namespace torch_xla::distributed
