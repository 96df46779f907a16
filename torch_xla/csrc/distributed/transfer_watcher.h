// Ends a transfer whose other side has ended: Gloo's wait does not always see that.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "distributed/peer_mesh.h"

namespace torch_xla::distributed {

/// What a replica sent before it ended, in good order or not, is in the sockets and comes by then.
inline constexpr std::chrono::seconds kGrace{5};

class TransferWatcher {
 public:
  /// `mesh` must outlive it.
  explicit TransferWatcher(PeerMesh& mesh);
  ~TransferWatcher();

  /// Waits until the transfer with `rank` is done. Throws where it fails, and where `rank` has
  /// ended and what it had sent by then does not complete it. A `message` may never be sent: its
  /// wait also ends where `rank` is not available for it (PeerMesh::WhyUnavailable).
  void Wait(const c10::intrusive_ptr<c10d::Work>& work, int rank, bool message = false);
  /// Ends the wait that is under way, in another thread, and all later ones.
  void Abort();

 private:
  using Clock = std::chrono::steady_clock;

  void Run();

  PeerMesh& mesh_;
  std::mutex mutex_;
  std::condition_variable stopping_;
  bool stop_ = false;
  bool aborted_ = false;
  c10::intrusive_ptr<c10d::Work> work_;  // waited for; null: none
  int rank_ = -1;
  bool message_ = false;
  // When rank_ was first seen to be unavailable, while work_ is waited for.
  Clock::time_point since_{};
  std::thread thread_;
};

}  // namespace torch_xla::distributed
