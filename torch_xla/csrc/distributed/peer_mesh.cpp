#include "distributed/peer_mesh.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <sstream>
#include <utility>

namespace torch_xla::distributed {
namespace {

using Clock = std::chrono::steady_clock;

enum Kind : uint32_t { kCollective = 1, kAbort = 2 };

struct Header {
  uint32_t kind;
  uint32_t text_size;
  uint64_t payload_size;
};

// An abort's reason, or the text of a collective, is never longer; a longer one is no message.
constexpr uint32_t kMaxText = 1 << 20;

std::string Seconds(std::chrono::milliseconds time) {
  std::ostringstream text;
  text << static_cast<double>(time.count()) / 1000 << " s";
  return text.str();
}

ReplicaError GaveUp(int rank, std::string_view reason) {
  return ReplicaError("rank " + std::to_string(rank) + " gave up: " + std::string(reason));
}

}  // namespace

std::string RankNames(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  return text;
}

struct PeerMesh::Peer {
  int rank;
  int socket;
  std::array<iovec, 3> out;  // what is left to send
  std::vector<char> in;      // header, text, payload
  size_t received = 0;
  bool sent = false;
  bool watched = true;  // once complete: whether it may still say that it gave up

  /// Who gave up reads no more: then what is left to send is not waited for.
  bool complete() const { return received == in.size() && (sent || header().kind == kAbort); }
  Header header() const {
    Header header;
    std::memcpy(&header, in.data(), sizeof header);
    return header;
  }
  std::string_view text() const { return {in.data() + sizeof(Header), header().text_size}; }

  /// Throws where it gave up after it had sent its message. Takes nothing from the socket: what
  /// comes may belong to the next collective.
  void Watch() {
    Header header;
    const ssize_t count = recv(socket, &header, sizeof header, MSG_PEEK | MSG_DONTWAIT);
    if (count < 0) return;
    watched = false;
    if (count < static_cast<ssize_t>(sizeof header) || header.kind != kAbort) return;
    std::string message(sizeof header + std::min(header.text_size, kMaxText), '\0');
    const ssize_t size = recv(socket, message.data(), message.size(), MSG_PEEK | MSG_DONTWAIT);
    throw GaveUp(rank, message.substr(sizeof header, static_cast<size_t>(size) - sizeof header));
  }
};

PeerMesh::PeerMesh(int rank, std::vector<int> sockets, std::chrono::milliseconds timeout)
    : rank_(rank),
      sockets_(std::move(sockets)),
      timeout_(timeout),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      mid_message_(sockets_.size()) {
  if (wake_ < 0) throw ReplicaError("eventfd() failed: " + std::string(std::strerror(errno)));
  for (int r = 0; r < size(); ++r) {
    if (r != rank_) fcntl(sockets_[r], F_SETFL, fcntl(sockets_[r], F_GETFL) | O_NONBLOCK);
  }
}

PeerMesh::~PeerMesh() {
  CloseInChild();
  close(wake_);
}

void PeerMesh::CloseInChild() {
  for (int r = 0; r < size(); ++r) {
    if (r != rank_ && sockets_[r] >= 0) close(std::exchange(sockets_[r], -1));
  }
}

void PeerMesh::ThrowIfAborted() const {
  if (!aborted_.empty()) throw ReplicaError("this replica gave up: " + aborted_);
}

void PeerMesh::Check(const Peer& peer, std::string_view what, size_t payload_size) const {
  if (peer.header().kind == kAbort) throw GaveUp(peer.rank, peer.text());
  if (peer.text() == what && peer.header().payload_size == payload_size) return;
  std::ostringstream text;
  text << "the replicas run different collectives: rank " << rank_ << " (this one) runs " << what
       << ", rank " << peer.rank << " runs " << peer.text()
       << ". Every replica must run the same collectives, of the same shapes, in the same order";
  throw ReplicaError(text.str());
}

bool PeerMesh::Progress(Peer& peer, std::string_view what) {
  auto ended = [&] {
    throw ReplicaError("rank " + std::to_string(peer.rank) +
                       " has ended or closed its connection while rank " + std::to_string(rank_) +
                       " (this one) runs " + std::string(what));
  };
  std::unique_lock sending(sending_);
  ThrowIfAborted();
  while (!peer.sent) {
    msghdr message{};
    message.msg_iov = peer.out.data();
    message.msg_iovlen = peer.out.size();
    ssize_t count = sendmsg(peer.socket, &message, MSG_NOSIGNAL);
    if (count < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) break;
      if (errno == EINTR) continue;
      // It may have told why before it ended: read that first.
      peer.sent = true;
      break;
    }
    peer.sent = true;
    for (iovec& part : peer.out) {
      size_t done = std::min(static_cast<size_t>(count), part.iov_len);
      part.iov_base = static_cast<char*>(part.iov_base) + done;
      part.iov_len -= done;
      count -= static_cast<ssize_t>(done);
      peer.sent = peer.sent && part.iov_len == 0;
    }
  }
  mid_message_[peer.rank] = !peer.sent && peer.out[0].iov_len < sizeof(Header);
  sending.unlock();
  while (peer.received < peer.in.size()) {
    ssize_t count =
        recv(peer.socket, peer.in.data() + peer.received, peer.in.size() - peer.received, 0);
    if (count == 0) ended();
    if (count < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) break;
      if (errno == EINTR) continue;
      ended();
    }
    const bool had_header = peer.received >= sizeof(Header);
    peer.received += static_cast<size_t>(count);
    if (had_header || peer.received < sizeof(Header)) continue;
    Header header = peer.header();
    if (header.text_size > kMaxText) ended();
    // As long as ours unless it is another collective: then its text is all that matters.
    const size_t size =
        sizeof header + header.text_size + (header.kind == kCollective ? header.payload_size : 0);
    if (size != peer.in.size()) {
      peer.in.resize(sizeof header + header.text_size);
      peer.received = std::min(peer.received, peer.in.size());
    }
  }
  return peer.complete();
}

std::vector<char> PeerMesh::Exchange(std::span<const int64_t> members, std::string_view what,
                                     std::span<const char> payload) {
  Header header{kCollective, static_cast<uint32_t>(what.size()), payload.size()};
  std::vector<Peer> peers;
  peers.reserve(members.size());
  for (int64_t member : members) {
    if (member == rank_) continue;
    Peer peer{static_cast<int>(member), sockets_[member], {}, {}};
    peer.out = {iovec{&header, sizeof header}, iovec{const_cast<char*>(what.data()), what.size()},
                iovec{const_cast<char*>(payload.data()), payload.size()}};
    peer.in.resize(sizeof header + what.size() + payload.size());
    peers.push_back(std::move(peer));
  }
  const Clock::time_point deadline = Clock::now() + timeout_;
  auto progress = [&](Peer& peer) {
    if (Progress(peer, what)) Check(peer, what, payload.size());
  };
  for (Peer& peer : peers) progress(peer);
  std::vector<pollfd> waiting;
  std::vector<Peer*> awaited;  // whose sockets these are
  while (true) {
    waiting.clear();
    awaited.clear();
    std::vector<int> missing;
    for (Peer& peer : peers) {
      const bool complete = peer.complete();
      if (complete && !peer.watched) continue;
      if (!complete) missing.push_back(peer.rank);
      const auto events =
          static_cast<short>((peer.sent || complete ? 0 : POLLOUT) |
                             (peer.received < peer.in.size() || complete ? POLLIN : 0));
      waiting.push_back({peer.socket, events, 0});
      awaited.push_back(&peer);
    }
    if (missing.empty()) break;
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) {
      throw ReplicaError(RankNames(missing) + " did not come within " + Seconds(timeout_) +
                         " to run " + std::string(what) + " with rank " + std::to_string(rank_) +
                         " (this one)");
    }
    waiting.push_back({wake_, POLLIN, 0});
    poll(waiting.data(), waiting.size(), static_cast<int>(std::min<int64_t>(left, 60'000)));
    if (waiting.back().revents != 0) {
      std::lock_guard sending(sending_);
      ThrowIfAborted();
    }
    // Those alone of whom there is news: among many replicas a call for each costs more than all
    // else.
    for (size_t i = 0; i < awaited.size(); ++i) {
      if (waiting[i].revents == 0) continue;
      if (awaited[i]->complete()) {
        awaited[i]->Watch();
      } else {
        progress(*awaited[i]);
      }
    }
  }
  std::vector<char> payloads(payload.size() * members.size());
  auto next = peers.begin();
  for (size_t i = 0; i < members.size(); ++i) {
    const char* content = payload.data();
    if (members[i] != rank_) {
      content = (next++)->in.data() + sizeof(Header) + what.size();
    }
    if (!payload.empty()) {
      std::memcpy(payloads.data() + i * payload.size(), content, payload.size());
    }
  }
  return payloads;
}

void PeerMesh::Abort(const std::string& reason) {
  Header header{kAbort, static_cast<uint32_t>(reason.size()), 0};
  std::string message(reinterpret_cast<const char*>(&header), sizeof header);
  message += reason;
  std::lock_guard sending(sending_);
  if (!aborted_.empty()) return;
  aborted_ = reason.empty() ? "without a reason" : reason;
  for (int r = 0; r < size(); ++r) {
    if (r == rank_) continue;
    if (mid_message_[r]) {
      shutdown(sockets_[r], SHUT_WR);
      continue;
    }
    // Small, to a socket that is hardly ever full: one try.
    [[maybe_unused]] ssize_t sent =
        send(sockets_[r], message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  const uint64_t one = 1;
  [[maybe_unused]] ssize_t written = write(wake_, &one, sizeof one);
}

std::vector<int> PeerMesh::Ended() const {
  std::vector<int> ended;
  for (int r = 0; r < size(); ++r) {
    if (r == rank_) continue;
    char byte;
    const ssize_t count = recv(sockets_[r], &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (count == 0 || (count < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
      ended.push_back(r);
    }
  }
  return ended;
}

}  // namespace torch_xla::distributed
