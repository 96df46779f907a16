#include "cpu/host_calls.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include "cpu/ffi_tensor.h"
#include "cpu/handlers.h"

namespace torch_xla::cpu {
namespace {

struct Queue {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<HostCall> calls;
  int64_t queued = 0;
  bool stopped = false;
};

Queue& GetQueue() {
  static auto& queue = *new Queue;
  return queue;
}

}  // namespace

std::optional<HostCall> NextHostCall() {
  Queue& queue = GetQueue();
  std::unique_lock lock(queue.mutex);
  queue.changed.wait(lock, [&] { return queue.stopped || !queue.calls.empty(); });
  if (queue.calls.empty()) return std::nullopt;
  HostCall call = std::move(queue.calls.front());
  queue.calls.pop_front();
  return call;
}

void StopHostCalls() {
  Queue& queue = GetQueue();
  std::lock_guard lock(queue.mutex);
  queue.stopped = true;
  queue.changed.notify_all();
}

int64_t NumHostCalls() {
  Queue& queue = GetQueue();
  std::lock_guard lock(queue.mutex);
  return queue.queued;
}

/// Operands: the arrays, the number of the function, the token. The token's result is its operand.
void RunHostCall(const runtime::pjrt::XLA_FFI_CallFrame& frame) {
  const DefaultFloatEnvironment environment;
  const int64_t count = frame.args.size - 2;
  HostCall call{*FfiData<const int64_t>(frame.args.args[count]), {}};
  for (int64_t i = 0; i < count; ++i) {
    call.arrays.push_back(FfiTensor(frame.args.args[i]).clone());
  }
  Queue& queue = GetQueue();
  std::lock_guard lock(queue.mutex);
  queue.calls.push_back(std::move(call));
  ++queue.queued;
  queue.changed.notify_one();
}

}  // namespace torch_xla::cpu
