// Messages that were sent and perhaps not yet taken: who sends goes on, and the data is kept.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "distributed/peer_mesh.h"

namespace torch_xla::distributed {

/// Once a message was not taken in time, all calls throw ReplicaError, which names the receiver.
class SentMessages {
 public:
  /// `mesh` must outlive it.
  explicit SentMessages(PeerMesh& mesh) : mesh_(mesh) {}
  ~SentMessages();
  SentMessages(const SentMessages&) = delete;
  SentMessages& operator=(const SentMessages&) = delete;

  void ThrowIfFailed();
  /// Keeps `data` until `work`, which sends it to `rank`, is done. Waits while too much is kept.
  void Add(at::Tensor data, c10::intrusive_ptr<c10d::Work> work, int rank);
  /// Waits until all messages are taken, or their receivers are not available for them
  /// (PeerMesh::WhyUnavailable). After Abort it returns at once.
  void Finish();
  /// Gives up what is not taken, and all later messages. From any thread.
  void Abort();

 private:
  using Clock = std::chrono::steady_clock;
  struct Message {
    at::Tensor data;
    c10::intrusive_ptr<c10d::Work> work;
    int rank;
  };

  void Run();
  /// With mutex_ held.
  void ThrowIfFailedLocked() const;

  PeerMesh& mesh_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Message> messages_;  // the thread waits for the first one
  size_t bytes_ = 0;
  std::string failure_;
  std::string unavailable_;  // why the receiver of the first message is, once Finish has asked
  bool aborted_ = false;
  bool stop_ = false;
  std::thread thread_;  // from the first message on
};

}  // namespace torch_xla::distributed
