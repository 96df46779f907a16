#include "distributed/peer_connection.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace torch_xla::distributed {
namespace {

struct Header {
  MessageKind kind;
  uint32_t text_size;
  uint64_t payload_size;
  uint64_t number;
};

// Reasons of aborts and texts of collectives are never longer; anything longer is no valid message.
constexpr uint32_t kMaxText = 1 << 20;
// The payloads of all members together are never larger, since larger payloads go through Gloo. Nor
// is a peer ever more messages ahead.
constexpr uint64_t kMaxPayload = 4 << 20;
constexpr size_t kMaxMessages = 16;

bool WouldBlock() { return errno == EAGAIN || errno == EWOULDBLOCK; }

/// Sends as much of `parts` as the socket accepts. Returns a negative value if the socket is
/// broken.
ssize_t SendSome(int socket, std::span<iovec> parts) {
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  while (true) {
    const ssize_t count = sendmsg(socket, &message, MSG_NOSIGNAL);
    if (count >= 0) return count;
    if (WouldBlock()) return 0;
    if (errno != EINTR) return -1;
  }
}

}  // namespace

PeerConnection::PeerConnection(int socket) : socket_(socket) {
  if (socket_ >= 0) fcntl(socket_, F_SETFL, fcntl(socket_, F_GETFL) | O_NONBLOCK);
}

void PeerConnection::Close() {
  if (socket_ >= 0) close(std::exchange(socket_, -1));
}

void PeerConnection::End() {
  ended_ = true;
  outbox_.clear();
}

void PeerConnection::Send(MessageKind kind, std::string_view text, std::span<const char> payload) {
  if (ended_) return;
  Header header{kind, static_cast<uint32_t>(text.size()), payload.size(), number_};
  std::array<iovec, 3> parts = {iovec{&header, sizeof header},
                                iovec{const_cast<char*>(text.data()), text.size()},
                                iovec{const_cast<char*>(payload.data()), payload.size()}};
  ssize_t sent = outbox_.empty() ? SendSome(socket_, parts) : 0;
  // The peer may have told the reason before it ended; Receive will find it.
  if (sent < 0) return;
  for (const iovec& part : parts) {
    const size_t done = std::min(static_cast<size_t>(sent), part.iov_len);
    outbox_.append(static_cast<const char*>(part.iov_base) + done, part.iov_len - done);
    sent -= static_cast<ssize_t>(done);
  }
}

void PeerConnection::Flush() {
  iovec part{outbox_.data(), outbox_.size()};
  const ssize_t sent = SendSome(socket_, {&part, 1});
  outbox_.erase(0, sent < 0 ? outbox_.size() : static_cast<size_t>(sent));
}

void PeerConnection::SendAbort(const std::string& reason) {
  if (!outbox_.empty()) {
    shutdown(socket_, SHUT_WR);
    return;
  }
  // The message is small and the socket is hardly ever full, so try once.
  Send(MessageKind::kAbort, std::string_view(reason).substr(0, kMaxText));
  outbox_.clear();
}

void PeerConnection::Receive(std::span<char> scratch) {
  while (!ended_) {
    const ssize_t count = recv(socket_, scratch.data(), scratch.size(), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && WouldBlock()) return;
    if (count <= 0) return End();
    inbox_.append(scratch.data(), static_cast<size_t>(count));
    size_t taken = 0;
    while (inbox_.size() - taken >= sizeof(Header)) {
      Header header;
      std::memcpy(&header, inbox_.data() + taken, sizeof header);
      if (header.text_size > kMaxText || header.payload_size > kMaxPayload) return End();
      const size_t size = header.text_size + header.payload_size;
      if (inbox_.size() - taken - sizeof header < size) break;
      const char* body = inbox_.data() + taken + sizeof header;
      Take(header.kind, {header.number, header.text_size, {body, body + size}});
      taken += sizeof header + size;
    }
    inbox_.erase(0, taken);
    if (static_cast<size_t>(count) < scratch.size()) return;
  }
}

PeerConnection::Message PeerConnection::Pop() {
  Message first = std::move(payloads_.front());
  payloads_.erase(payloads_.begin());
  return first;
}

void PeerConnection::Take(MessageKind kind, Message message) {
  switch (kind) {
    case MessageKind::kPayloads:
      heard_ = std::max(heard_, message.number);
      if (payloads_.size() == kMaxMessages) return End();
      payloads_.push_back(std::move(message));
      return;
    case MessageKind::kHere:
      heard_ = std::max(heard_, message.number);
      here_ = std::move(message);
      return;
    case MessageKind::kAbort:
      abort_reason_ = message.text();
      outbox_.clear();  // a peer that gave up reads no more
      return;
  }
  End();
}

bool PeerConnection::HasClosed() const {
  char byte;
  const ssize_t count = recv(socket_, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return count == 0 || (count < 0 && !WouldBlock() && errno != EINTR);
}

}  // namespace torch_xla::distributed
