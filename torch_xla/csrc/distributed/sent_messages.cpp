#include "distributed/sent_messages.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace torch_xla::distributed {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 30;
constexpr std::chrono::milliseconds kInterval{200};

}  // namespace

SentMessages::~SentMessages() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    AbortLocked();
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void SentMessages::Add(at::Tensor data, c10::intrusive_ptr<c10d::Work> work, int rank) {
  std::unique_lock lock(mutex_);
  if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  bytes_ += data.nbytes();
  messages_.push_back({std::move(data), std::move(work), rank});
  changed_.notify_all();
  changed_.wait(lock, [this] { return bytes_ <= kMaxBytes || !failure_.empty(); });
  ThrowLocked();
}

void SentMessages::Finish() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kInterval, [this] { return messages_.empty(); })) {
    // Gloo does not always see that the other side has ended.
    const std::vector<int> ended = mesh_.Ended();
    if (std::ranges::find(ended, messages_.front().rank) != ended.end()) AbortLocked();
  }
  ThrowLocked();
}

void SentMessages::ThrowIfFailed() {
  std::lock_guard lock(mutex_);
  ThrowLocked();
}

void SentMessages::Abort() {
  std::lock_guard lock(mutex_);
  AbortLocked();
}

void SentMessages::ThrowLocked() const {
  if (!failure_.empty()) throw ReplicaError(failure_);
}

void SentMessages::AbortLocked() {
  for (const Message& message : messages_) message.work->abort();
}

void SentMessages::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !messages_.empty(); });
    if (messages_.empty()) return;
    const Message first = messages_.front();
    lock.unlock();
    std::string failure;
    try {
      if (!first.work->wait(mesh_.timeout())) failure = "it was given up";
    } catch (const std::exception& error) {
      failure = error.what();
    }
    lock.lock();
    if (!failure.empty() && failure_.empty()) {
      failure_ = "rank " + std::to_string(first.rank) + " did not take what rank " +
                 std::to_string(mesh_.rank()) + " (this one) sent: " + failure;
    }
    bytes_ -= first.data.nbytes();
    messages_.pop_front();
    changed_.notify_all();
  }
}

}  // namespace torch_xla::distributed
