#include "distributed/sent_messages.h"

#include <utility>

#include "distributed/transfer_watcher.h"

namespace torch_xla::distributed {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 30;
constexpr std::chrono::milliseconds kInterval{200};

}  // namespace

SentMessages::~SentMessages() {
  Abort("it has ended");
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void SentMessages::ThrowIfFailed() {
  std::lock_guard lock(mutex_);
  ThrowIfFailedLocked();
}

void SentMessages::ThrowIfFailedLocked() const {
  if (!failure_.empty()) throw ReplicaError(failure_);
  if (aborted_) throw ReplicaError("this replica gave up: " + *aborted_);
}

void SentMessages::Add(at::Tensor data, c10::intrusive_ptr<c10d::Work> work, int rank) {
  std::unique_lock lock(mutex_);
  ThrowIfFailedLocked();
  if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  bytes_ += data.nbytes();
  messages_.push_back({std::move(data), std::move(work), rank});
  changed_.notify_all();
  changed_.wait(lock, [this] { return bytes_ <= kMaxBytes || !failure_.empty() || aborted_; });
  ThrowIfFailedLocked();
}

void SentMessages::Finish() {
  std::unique_lock lock(mutex_);
  int rank = -1;            // the receiver of the first message
  Clock::time_point since;  // when that receiver was first seen to be unavailable
  while (!changed_.wait_for(lock, kInterval, [this] { return messages_.empty() || aborted_; })) {
    const int first = messages_.front().rank;
    unavailable_ = mesh_.WhyUnavailable(first);
    if (unavailable_.empty() || first != rank) since = Clock::now();
    rank = first;
    if (Clock::now() - since < kGrace) continue;
    for (const Message& message : messages_) {
      if (message.rank == rank) message.work->abort();
    }
  }
  if (!aborted_) ThrowIfFailedLocked();
}

void SentMessages::Abort(const std::string& reason) {
  std::lock_guard lock(mutex_);
  if (!aborted_) aborted_ = reason;
  for (const Message& message : messages_) message.work->abort();
  changed_.notify_all();
}

void SentMessages::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !messages_.empty(); });
    if (messages_.empty()) return;
    const Message first = messages_.front();
    lock.unlock();
    bool taken = false;
    std::string why;
    try {
      taken = first.work->wait(mesh_.timeout());
    } catch (const std::exception& error) {
      why = ErrorText(error);
    }
    lock.lock();
    if (!taken && !aborted_ && failure_.empty()) {
      failure_ = "rank " + std::to_string(first.rank) + " did not take what rank " +
                 std::to_string(mesh_.rank()) +
                 " (this one) sent: " + (unavailable_.empty() ? why : unavailable_);
    }
    bytes_ -= first.data.nbytes();
    messages_.pop_front();
    changed_.notify_all();
  }
}

}  // namespace torch_xla::distributed
