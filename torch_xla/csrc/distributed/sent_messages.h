// Keeps the data of messages that may not have been received yet, so that the sender can go on.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "distributed/peer_mesh.h"

namespace torch_xla::distributed {

/// If a message is not received in time, all calls throw a ReplicaError that names the receiver.
class SentMessages {
 public:
  /// `mesh` must outlive it.
  explicit SentMessages(PeerMesh& mesh) : mesh_(mesh) {}
  ~SentMessages();
  SentMessages(const SentMessages&) = delete;
  SentMessages& operator=(const SentMessages&) = delete;

  void ThrowIfFailed();
  /// Keeps `data` until `work`, which sends it to `rank`, is done. Waits while too much data is
  /// kept.
  void Add(at::Tensor data, c10::intrusive_ptr<c10d::Work> work, int rank);
  /// Waits until all messages are received, or their receivers are unavailable
  /// (PeerMesh::WhyUnavailable). Returns at once after Abort.
  void Finish();
  /// Drops all pending messages and all later ones, which throw a ReplicaError with the reason. May
  /// be called from any thread; the first reason is the one that counts.
  void Abort(const std::string& reason);

 private:
  using Clock = std::chrono::steady_clock;
  struct Message {
    at::Tensor data;
    c10::intrusive_ptr<c10d::Work> work;
    int rank;
  };

  void Run();
  /// The caller holds mutex_.
  void ThrowIfFailedLocked() const;

  PeerMesh& mesh_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Message> messages_;  // the thread waits for the first message
  size_t bytes_ = 0;
  std::string failure_;
  std::string unavailable_;  // why the first message's receiver is unavailable; set by Finish
  std::optional<std::string> aborted_;  // the reason
  bool stop_ = false;
  std::thread thread_;  // started with the first message
};

}  // namespace torch_xla::distributed
