// Connections to all other replicas for messages that are small and urgent and may fail: which
// collective each replica is about to run, small payloads, and the news that a replica has ended.
// Bulk data goes through c10d (communicator.cpp). Its transport aborts the process if two messages
// differ in size, and does not tell which process has ended.
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

/// Thrown if replicas ended, did not come in time or run another collective. The text names them.
class ReplicaError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class PeerMesh {
 public:
  /// `sockets[r]` is connected to rank r, or -1 in a plan for replicas that are not there; the
  /// entry of `rank` itself is ignored. Takes over the descriptors.
  PeerMesh(int rank, std::vector<int> sockets, std::chrono::milliseconds timeout);
  ~PeerMesh();
  PeerMesh(const PeerMesh&) = delete;
  PeerMesh& operator=(const PeerMesh&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(connections_.size()); }
  std::chrono::milliseconds timeout() const { return timeout_; }

  /// Tells the other `members` (ranks, including this one) what this replica is about to run,
  /// together with a payload, and receives the same from them. The payload's size must follow from
  /// `what`. Returns the payloads in the order of `members`. Throws ReplicaError if a member sends
  /// another text, has ended, gave up, or sends nothing within the timeout. Each member hears only
  /// from a few others, so after an error the caller must call Abort, which informs the rest. Only
  /// one call at a time.
  std::vector<char> Exchange(std::span<const int64_t> members, std::string_view what,
                             std::span<const char> payload);

  /// Tells all others, as far as possible, that this replica cannot go on. May be called from any
  /// thread: the running Exchange and all later ones throw.
  void Abort(const std::string& reason);

  /// The reason why `rank` will neither send nor receive a message: it has ended, gave up, or waits
  /// for this replica in a collective. Empty if no reason is known. May be called from any thread
  /// while no Exchange runs.
  std::string WhyUnavailable(int rank);

  /// The ranks whose process has ended or closed its connection.
  std::vector<int> Ended() const;

  /// For a forked child, which is no replica: closes its copies of the sockets, so that the others
  /// see them end together with the parent.
  void CloseInChild();

 private:
  struct Call;
  void Send(const Call& call, MessageKind kind, int rank, std::span<const char> payload = {});
  /// Waits for the next message of `rank` with `size` bytes of payloads.
  PeerConnection::Message Await(Call& call, int rank, size_t size);
  /// Returns when `done()` is true. Throws if that has become impossible.
  template <typename Done>
  void Wait(Call& call, Done done);
  /// Sends and receives whatever is possible. Returns after the first events, or at `end`.
  void Progress(std::chrono::steady_clock::time_point end);
  void ThrowIfHopeless(const Call& call) const;
  [[noreturn]] void ThrowDifferent(const Call& call, int rank,
                                   const PeerConnection::Message& message) const;
  /// The caller holds sending_.
  void ThrowIfAborted() const;

  const int rank_;
  std::deque<PeerConnection> connections_;  // by rank
  const std::chrono::milliseconds timeout_;
  const int wake_;  // an eventfd that is readable once aborted
  const int news_;  // an epoll on `wake_` and all sockets
  std::vector<char> scratch_;
  std::mutex sending_;
  std::string aborted_;  // the reason; empty: not aborted
};

/// The text of an error without PyTorch's backtrace.
std::string ErrorText(const std::exception& error);

/// For example "rank 2" or "ranks 1 and 3".
std::string RankNames(const std::vector<int>& ranks);

}  // namespace torch_xla::distributed
