// A socket to another replica that carries whole messages. No call blocks: data that the socket
// does not accept is kept, and data that has arrived is taken.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace torch_xla::distributed {

enum class MessageKind : uint32_t {
  kPayloads = 1,  // the payloads of an exchange, and its description
  kHere = 2,      // the exchange that the sender is in
  kAbort = 3,     // the sender cannot go on; the text tells the reason
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

  /// Takes over the descriptor and makes it non-blocking.
  explicit PeerConnection(int socket);
  PeerConnection(const PeerConnection&) = delete;
  PeerConnection& operator=(const PeerConnection&) = delete;
  ~PeerConnection() { Close(); }
  void Close();

  int socket() const { return socket_; }

  /// Begins an exchange in which both sides take part.
  void Begin() { ++number_; }

  void Send(MessageKind kind, std::string_view text, std::span<const char> payload = {});
  /// Sends kept data.
  void Flush();
  /// Whether data is kept for sending.
  bool pending() const { return !outbox_.empty(); }
  /// Tells the peer that this side sends no more. If a message is half sent, ends the stream
  /// instead.
  void SendAbort(const std::string& reason);

  /// Takes the data that has arrived.
  void Receive(std::span<char> scratch);
  /// Whether there is a message of payloads for Pop.
  bool has_payloads() const { return !payloads_.empty(); }
  Message Pop();
  /// Whether the peer has begun this exchange, too.
  bool has_come() const { return heard_ >= number_; }
  /// The peer's message about its exchange of the same number (kHere), or null.
  const Message* here() const { return here_ && here_->number == number_ ? &*here_ : nullptr; }
  /// The peer's message about an exchange that this side has not begun yet, or null.
  const Message* ahead() const { return here_ && here_->number > number_ ? &*here_ : nullptr; }
  /// The reason why the peer gave up, if it did.
  const std::optional<std::string>& abort_reason() const { return abort_reason_; }
  /// Whether the peer has closed the connection and everything that it sent before is taken.
  bool ended() const { return ended_; }
  /// Checks the socket itself, from any thread. False as long as there is data to take.
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
  uint64_t number_ = 0;  // number of exchanges begun
  uint64_t heard_ = 0;   // number of the peer's latest known exchange
  bool ended_ = false;
};

}  // namespace torch_xla::distributed
