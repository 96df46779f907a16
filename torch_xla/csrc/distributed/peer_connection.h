// A socket to another replica that carries whole messages. Nothing here waits: what the socket
// does not take is kept, and what has come is taken.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace torch_xla::distributed {

enum class MessageKind : uint32_t {
  kPayloads = 1,  // of an exchange, with what it is for
  kHere = 2,      // what exchange its sender is in
  kAbort = 3,     // its sender cannot go on; the text says why
};

class PeerConnection {
 public:
  struct Message {
    std::string_view text() const { return {body.data(), text_size}; }
    std::span<const char> payload() const { return std::span(body).subspan(text_size); }

    uint64_t number = 0;
    size_t text_size = 0;
    std::vector<char> body;
  };

  /// Takes the descriptor over, and makes its calls return at once.
  explicit PeerConnection(int socket);
  PeerConnection(const PeerConnection&) = delete;
  PeerConnection& operator=(const PeerConnection&) = delete;
  ~PeerConnection() { Close(); }
  void Close();

  int socket() const { return socket_; }

  /// An exchange that both sides take part in begins.
  void Begin() { ++number_; }

  void Send(MessageKind kind, std::string_view text, std::span<const char> payload = {});
  /// Sends what was kept.
  void Flush();
  /// Whether something is kept.
  bool pending() const { return !outbox_.empty(); }
  /// Tells that this side sends no more; where a message is half sent, by ending the stream.
  void SendAbort(const std::string& reason);

  /// Takes what has come.
  void Receive(std::span<char> scratch);
  /// Whether there is a message of payloads, which Pop returns.
  bool has_payloads() const { return !payloads_.empty(); }
  Message Pop();
  /// Whether the other side has begun the exchange, too.
  bool has_come() const { return heard_ >= number_; }
  /// What it runs in its exchange of the same number, where it said so by kHere; or null.
  const Message* here() const { return here_ && here_->number == number_ ? &*here_ : nullptr; }
  /// What it runs in an exchange that this side has not begun, where it said so; or null.
  const Message* ahead() const { return here_ && here_->number > number_ ? &*here_ : nullptr; }
  /// Why the other side gave up, if it did.
  const std::optional<std::string>& abort_reason() const { return abort_reason_; }
  /// Whether the other side has closed, once all that it sent before is taken.
  bool ended() const { return ended_; }
  /// The same by the socket itself, from any thread. False while there is something to take.
  bool HasClosed() const;

 private:
  void End();
  void Take(MessageKind kind, Message message);

  int socket_;
  std::string outbox_;
  std::string inbox_;  // the beginning of a message
  std::vector<Message> payloads_;
  std::optional<Message> here_;
  std::optional<std::string> abort_reason_;
  uint64_t number_ = 0;  // how many exchanges began
  uint64_t heard_ = 0;   // the latest that the other side told of
  bool ended_ = false;
};

}  // namespace torch_xla::distributed
