// Connections to every other replica, for what must be small, prompt and able to fail: which
// collective each is about to run, small payloads, and the news that one has ended. Bulk data
// goes through c10d (communicator.cpp), whose transport aborts the process where two messages
// differ in size and does not tell whose process has ended.
#pragma once

#include <chrono>
#include <deque>
#include <exception>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "distributed/peer_connection.h"

namespace torch_xla::distributed {

/// Replicas that ended, did not come in time or run another collective. The text names them.
class ReplicaError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class PeerMesh {
 public:
  /// `sockets[r]` is connected to rank r's; that of `rank` itself is ignored. Takes the
  /// descriptors over.
  PeerMesh(int rank, std::vector<int> sockets, std::chrono::milliseconds timeout);
  ~PeerMesh();
  PeerMesh(const PeerMesh&) = delete;
  PeerMesh& operator=(const PeerMesh&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(connections_.size()); }
  std::chrono::milliseconds timeout() const { return timeout_; }

  /// Tells the other `members` (ranks, this one among them) what this replica is about to run,
  /// with a payload of a size that follows from it, and takes what they tell. Returns the
  /// payloads in the order of `members`, one after the other. Throws ReplicaError where a
  /// member says another text, has ended, gave up, or says nothing within the timeout. A member
  /// hears from a few of the others alone: who gets an error is to Abort, by which the rest
  /// learn of it. One call at a time.
  std::vector<char> Exchange(std::span<const int64_t> members, std::string_view what,
                             std::span<const char> payload);

  /// Tells all others, as far as they can be told, that this replica cannot go on. From any
  /// thread: an Exchange that is under way throws, and so do all later ones.
  void Abort(const std::string& reason);

  /// Why `rank` will neither send nor take a message: it has ended, gave up, or waits for this
  /// replica in a collective. Empty: there is no reason to think so. From any thread, while no
  /// Exchange runs.
  std::string WhyUnavailable(int rank);

  /// The ranks whose process has ended or closed its connection.
  std::vector<int> Ended() const;

  /// In a forked child, which is no replica: while it has the sockets open, the others do not see
  /// them end with their owner.
  void CloseInChild();

 private:
  struct Call;
  void Send(const Call& call, MessageKind kind, int rank, std::span<const char> payload = {});
  /// The next message of `rank`, `size` bytes of payloads.
  PeerConnection::Message Await(Call& call, int rank, size_t size);
  /// Returns once `done()`. Throws where that can't be any more.
  template <typename Done>
  void Wait(Call& call, Done done);
  /// Moves what can be moved until `end` at the latest; returns after the first news.
  void Progress(std::chrono::steady_clock::time_point end);
  void ThrowIfHopeless(const Call& call) const;
  [[noreturn]] void ThrowDifferent(const Call& call, int rank,
                                   const PeerConnection::Message& message) const;
  /// With sending_ held.
  void ThrowIfAborted() const;

  const int rank_;
  std::deque<PeerConnection> connections_;  // by rank
  const std::chrono::milliseconds timeout_;
  const int wake_;  // an eventfd: readable once aborted
  const int news_;  // an epoll of it and of the sockets
  std::vector<char> scratch_;
  std::mutex sending_;
  std::string aborted_;  // why; empty: not
};

/// What the error says, without PyTorch's backtrace.
std::string ErrorText(const std::exception& error);

/// "rank 2", "ranks 1 and 3"
std::string RankNames(const std::vector<int>& ranks);

}  // namespace torch_xla::distributed
