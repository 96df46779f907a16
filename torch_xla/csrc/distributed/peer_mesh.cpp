#include "distributed/peer_mesh.h"

#include <c10/util/Exception.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <sstream>
#include <utility>

namespace torch_xla::distributed {
namespace {

using Clock = std::chrono::steady_clock;

// A replica that has waited this long tells all members that it is here. An error shall name the
// members that did not come, but the few members that a replica hears from may be waiting for
// others themselves.
constexpr std::chrono::milliseconds kPatience{1000};

constexpr size_t kScratchBytes = 64 << 10;

std::string Seconds(std::chrono::milliseconds time) {
  std::ostringstream text;
  text << static_cast<double>(time.count()) / 1000 << " s";
  return text.str();
}

int Checked(const char* call, int result) {
  if (result >= 0) return result;
  throw ReplicaError(std::string(call) + "() failed: " + std::strerror(errno));
}

void Watch(int news, int operation, int socket, int rank, uint32_t events) {
  epoll_event event{events, {.u32 = static_cast<uint32_t>(rank)}};
  Checked("epoll_ctl", epoll_ctl(news, operation, socket, &event));
}

/// A range of consecutive members. The first one speaks for all.
struct Branch {
  size_t count() const { return end - begin; }
  size_t begin, end;
};

/// Splits `all` into a few branches of about equal size.
std::vector<Branch> Split(Branch all) {
  constexpr size_t kMaxBranches = 4;
  std::vector<Branch> branches;
  const size_t step = (all.count() + kMaxBranches - 1) / kMaxBranches;
  for (size_t begin = all.begin; begin < all.end; begin += step) {
    branches.push_back({begin, std::min(begin + step, all.end)});
  }
  return branches;
}

/// The members that a member sends to and receives from. Up to four members are roots, which
/// exchange with each other, and each root speaks for a tree. So few members need a single hop, and
/// among many members each hears from at most seven.
struct Place {
  Branch own;                       // the member and all members that it speaks for
  std::optional<size_t> parent;     // the member that speaks for it; empty for a root
  std::vector<Branch> other_roots;  // for a root only
  std::vector<Branch> children;
};

Place PlaceOf(size_t member, size_t count) {
  Place place{{0, count}, {}, {}, {}};
  std::vector<Branch> branches = Split(place.own);
  while (true) {
    place.own = *std::find_if(branches.begin(), branches.end(),
                              [&](Branch branch) { return member < branch.end; });
    std::vector<Branch> children = Split({place.own.begin + 1, place.own.end});
    if (place.own.begin == member) {
      place.children = std::move(children);
      break;
    }
    place.parent = place.own.begin;
    branches = std::move(children);
  }
  if (!place.parent) {
    std::erase_if(branches, [&](Branch branch) { return branch.begin == member; });
    place.other_roots = std::move(branches);
  }
  return place;
}

}  // namespace

std::string ErrorText(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  return torch_error ? torch_error->what_without_backtrace() : error.what();
}

std::string RankNames(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  return text;
}

struct PeerMesh::Call {
  std::span<const int64_t> members;
  std::string_view what;
  Clock::time_point announcement, deadline;
  bool announced = false;
};

PeerMesh::PeerMesh(int rank, std::vector<int> sockets, std::chrono::milliseconds timeout)
    : rank_(rank),
      timeout_(timeout),
      wake_(Checked("eventfd", eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))),
      news_(Checked("epoll_create1", epoll_create1(EPOLL_CLOEXEC))),
      scratch_(kScratchBytes) {
  for (int r = 0; r < static_cast<int>(sockets.size()); ++r) {
    connections_.emplace_back(r == rank_ ? -1 : sockets[r]);
    const int news = r == rank_ ? wake_ : sockets[r];
    if (news >= 0) Watch(news_, EPOLL_CTL_ADD, news, r, EPOLLIN);
  }
}

PeerMesh::~PeerMesh() {
  close(news_);
  close(wake_);
}

void PeerMesh::CloseInChild() {
  for (PeerConnection& connection : connections_) connection.Close();
}

void PeerMesh::ThrowIfAborted() const {
  if (!aborted_.empty()) throw ReplicaError("this replica gave up: " + aborted_);
}

void PeerMesh::ThrowDifferent(const Call& call, int rank,
                              const PeerConnection::Message& message) const {
  std::ostringstream error;
  error << "the replicas run different collectives: rank " << rank_ << " (this one) runs "
        << call.what << ", rank " << rank << " runs " << message.text()
        << ". Every replica must run the same collectives, of the same shapes, in the same order";
  throw ReplicaError(error.str());
}

void PeerMesh::ThrowIfHopeless(const Call& call) const {
  for (int64_t member : call.members) {
    const PeerConnection& connection = connections_[member];
    const int rank = static_cast<int>(member);
    if (const auto& reason = connection.abort_reason()) {
      throw ReplicaError("rank " + std::to_string(rank) + " gave up: " + *reason);
    }
    const PeerConnection::Message* here = connection.here();
    if (here != nullptr && here->text() != call.what) ThrowDifferent(call, rank, *here);
  }
}

void PeerMesh::Send(const Call& call, MessageKind kind, int rank, std::span<const char> payload) {
  std::lock_guard sending(sending_);
  ThrowIfAborted();
  PeerConnection& connection = connections_[rank];
  connection.Send(kind, call.what, payload);
  if (connection.pending()) {
    Watch(news_, EPOLL_CTL_MOD, connection.socket(), rank, EPOLLIN | EPOLLOUT);
  }
}

void PeerMesh::Progress(Clock::time_point end) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
  std::array<epoll_event, 16> events;
  const int count = epoll_wait(news_, events.data(), static_cast<int>(events.size()),
                               static_cast<int>(std::clamp<int64_t>(left, 0, 60'000)));
  std::lock_guard sending(sending_);
  ThrowIfAborted();
  for (int i = 0; i < count; ++i) {
    const int rank = static_cast<int>(events[i].data.u32);
    PeerConnection& connection = connections_[rank];
    if ((events[i].events & EPOLLOUT) != 0) connection.Flush();
    if ((events[i].events & ~EPOLLOUT) != 0) connection.Receive(scratch_);
    if (connection.ended()) {
      Watch(news_, EPOLL_CTL_DEL, connection.socket(), rank, 0);
    } else if ((events[i].events & EPOLLOUT) != 0 && !connection.pending()) {
      Watch(news_, EPOLL_CTL_MOD, connection.socket(), rank, EPOLLIN);
    }
  }
}

template <typename Done>
void PeerMesh::Wait(Call& call, Done done) {
  while (!done()) {
    ThrowIfHopeless(call);
    const Clock::time_point now = Clock::now();
    if (now >= call.deadline) {
      std::vector<int> missing;
      for (int64_t member : call.members) {
        if (member != rank_ && !connections_[member].has_come()) {
          missing.push_back(static_cast<int>(member));
        }
      }
      throw ReplicaError((missing.empty() ? "the messages of all ranks" : RankNames(missing)) +
                         " did not come within " + Seconds(timeout_) + " to run " +
                         std::string(call.what) + " with rank " + std::to_string(rank_) +
                         " (this one)");
    }
    if (!call.announced && now >= call.announcement) {
      call.announced = true;
      for (int64_t member : call.members) {
        if (member != rank_) Send(call, MessageKind::kHere, static_cast<int>(member));
      }
    }
    Progress(call.announced ? call.deadline : call.announcement);
  }
}

PeerConnection::Message PeerMesh::Await(Call& call, int rank, size_t size) {
  PeerConnection& connection = connections_[rank];
  Wait(call, [&] {
    if (connection.has_payloads()) return true;
    if (!connection.ended() || connection.abort_reason()) return false;
    throw ReplicaError("rank " + std::to_string(rank) +
                       " has ended or closed its connection while rank " + std::to_string(rank_) +
                       " (this one) runs " + std::string(call.what));
  });
  PeerConnection::Message message = connection.Pop();
  if (message.text() != call.what || message.payload().size() != size) {
    ThrowDifferent(call, rank, message);
  }
  return message;
}

std::vector<char> PeerMesh::Exchange(std::span<const int64_t> members, std::string_view what,
                                     std::span<const char> payload) {
  const Clock::time_point now = Clock::now();
  Call call{members, what, now + std::min(kPatience, timeout_ / 4), now + timeout_};
  {
    std::lock_guard sending(sending_);
    for (int64_t member : members) connections_[member].Begin();
  }
  const size_t size = payload.size();
  const size_t me = std::find(members.begin(), members.end(), rank_) - members.begin();
  const Place place = PlaceOf(me, members.size());
  std::vector<char> payloads(members.size() * size);
  auto take = [&](Branch of, std::span<const char> bytes) {
    std::ranges::copy(bytes, payloads.begin() + static_cast<ptrdiff_t>(of.begin * size));
  };
  take({me, me + 1}, payload);
  auto send = [&](size_t to, Branch of) {
    Send(call, MessageKind::kPayloads, static_cast<int>(members[to]),
         {payloads.data() + of.begin * size, of.count() * size});
  };
  auto receive = [&](size_t from, Branch of) {
    take(of, Await(call, static_cast<int>(members[from]), of.count() * size).payload());
  };
  const Branch all{0, members.size()};
  for (Branch child : place.children) receive(child.begin, child);
  for (Branch root : place.other_roots) send(root.begin, place.own);
  for (Branch root : place.other_roots) receive(root.begin, root);
  if (place.parent) {
    send(*place.parent, place.own);
    receive(*place.parent, all);
  }
  for (Branch child : place.children) send(child.begin, all);
  Wait(call, [&] {
    std::lock_guard sending(sending_);
    return std::none_of(members.begin(), members.end(),
                        [&](int64_t member) { return connections_[member].pending(); });
  });
  return payloads;
}

void PeerMesh::Abort(const std::string& reason) {
  std::lock_guard sending(sending_);
  if (!aborted_.empty()) return;
  aborted_ = reason.empty() ? "without a reason" : reason;
  for (int r = 0; r < size(); ++r) {
    if (r != rank_) connections_[r].SendAbort(reason);
  }
  const uint64_t one = 1;
  [[maybe_unused]] ssize_t written = write(wake_, &one, sizeof one);
}

std::string PeerMesh::WhyUnavailable(int rank) {
  try {
    Progress(Clock::now());
  } catch (const ReplicaError& error) {
    return error.what();
  }
  std::lock_guard sending(sending_);
  const PeerConnection& connection = connections_[rank];
  const std::string name = "rank " + std::to_string(rank);
  if (const auto& reason = connection.abort_reason()) return name + " gave up: " + *reason;
  if (connection.ended()) return name + " has ended or closed its connection";
  const PeerConnection::Message* there = connection.ahead();
  return there == nullptr ? "" : name + " runs " + std::string(there->text());
}

std::vector<int> PeerMesh::Ended() const {
  std::vector<int> ended;
  for (int r = 0; r < size(); ++r) {
    if (r != rank_ && connections_[r].HasClosed()) ended.push_back(r);
  }
  return ended;
}

}  // namespace torch_xla::distributed
