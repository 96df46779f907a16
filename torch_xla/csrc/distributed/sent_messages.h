// What was sent and perhaps not yet taken: who sends goes on, and the data is kept meanwhile.
#pragma once

#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "distributed/peer_mesh.h"

namespace torch_xla::distributed {

class SentMessages {
 public:
  /// `mesh` must outlive it.
  explicit SentMessages(const PeerMesh& mesh) : mesh_(mesh) {}
  ~SentMessages();

  /// Keeps `data` until `work`, which sends it to `rank`, is done. Waits while there is too much.
  void Add(at::Tensor data, c10::intrusive_ptr<c10d::Work> work, int rank);
  /// Waits until all is taken. Throws where something was not, and will not be.
  void Finish();
  void ThrowIfFailed();
  /// Gives up what is not taken, from any thread.
  void Abort();

 private:
  struct Message {
    at::Tensor data;
    c10::intrusive_ptr<c10d::Work> work;
    int rank;
  };
  void Run();
  void ThrowLocked() const;
  void AbortLocked();

  const PeerMesh& mesh_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Message> messages_;  // the first one is waited for
  size_t bytes_ = 0;
  std::string failure_;
  bool stop_ = false;
  std::thread thread_;  // from the first message on
};

}  // namespace torch_xla::distributed
