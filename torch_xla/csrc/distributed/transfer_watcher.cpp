#include "distributed/transfer_watcher.h"

#include <algorithm>
#include <stdexcept>
#include <vector>

namespace torch_xla::distributed {
namespace {

constexpr std::chrono::milliseconds kInterval{200};

}  // namespace

TransferWatcher::TransferWatcher(PeerMesh& mesh) : mesh_(mesh), thread_([this] { Run(); }) {}

TransferWatcher::~TransferWatcher() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stopping_.notify_one();
  thread_.join();
}

void TransferWatcher::Wait(const c10::intrusive_ptr<c10d::Work>& work, int rank, bool message) {
  auto watch = [&](c10::intrusive_ptr<c10d::Work> watched, int of) {
    std::lock_guard lock(mutex_);
    if (watched && aborted_) throw std::runtime_error("it was aborted");
    work_ = std::move(watched);
    rank_ = of;
    message_ = message;
    since_ = {};
  };
  watch(work, rank);
  bool done = false;
  try {
    done = work->wait(mesh_.timeout());
  } catch (...) {
    watch({}, -1);
    throw;
  }
  watch({}, -1);
  if (!done) throw std::runtime_error("it was aborted");
}

void TransferWatcher::Abort() {
  std::lock_guard lock(mutex_);
  aborted_ = true;
  if (work_) work_->abort();
}

void TransferWatcher::Run() {
  std::unique_lock lock(mutex_);
  while (!stopping_.wait_for(lock, kInterval, [this] { return stop_; })) {
    if (!work_) continue;
    if (message_) {
      if (mesh_.WhyUnavailable(rank_).empty()) continue;
    } else {
      const std::vector<int> ended = mesh_.Ended();
      if (std::find(ended.begin(), ended.end(), rank_) == ended.end()) continue;
    }
    if (since_ == Clock::time_point{}) since_ = Clock::now();
    if (Clock::now() - since_ >= kGrace) work_->abort();
  }
}

}  // namespace torch_xla::distributed
