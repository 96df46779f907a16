#include "cpu/ffi_threads.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <exception>
#include <memory>

#include "cpu/choices.h"

namespace torch_xla::cpu {

using namespace runtime::pjrt;

namespace {

/// Shared with the scheduled tasks, which may start after all work is done.
struct Work {
  explicit Work(int64_t tasks) : count(tasks), left(tasks) {}

  /// Runs tasks until all tasks are taken.
  void Run() {
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) {
      try {
        (*task)(i);
      } catch (...) {
        if (!failed.exchange(true)) failure = std::current_exception();
      }
      if (left.fetch_sub(1, std::memory_order_acq_rel) == 1) left.notify_all();
    }
  }

  const int64_t count;
  /// Owned by the caller, who waits while a task runs.
  const std::function<void(int64_t)>* task = nullptr;
  std::atomic<int64_t> next{0}, left;
  std::atomic<bool> failed{false};
  std::exception_ptr failure;
};

/// Spins until the condition holds, but not for long: sleeping and waking takes as long.
template <typename Condition>
void Spin(Condition condition) {
  using Clock = std::chrono::steady_clock;
  constexpr auto kLongest = std::chrono::microseconds(50);
  for (const auto start = Clock::now(); !condition() && Clock::now() - start < kLongest;) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
}

void Scheduled(void* data) {
  std::unique_ptr<std::shared_ptr<Work>> work(static_cast<std::shared_ptr<Work>*>(data));
  (*work)->Run();
}

/// Whether the plugin's table has the thread pool.
bool HasThreads(const XLA_FFI_Api& api) {
  return api.struct_size >= offsetof(XLA_FFI_Api, XLA_FFI_ThreadPool_NumThreads) +
                                sizeof(api.XLA_FFI_ThreadPool_NumThreads);
}

/// Whether there was no error. Destroys the error if there was one.
bool Succeeded(const XLA_FFI_Api& api, XLA_FFI_Error* error) {
  if (!error) return true;
  XLA_FFI_Error_Destroy_Args args{};
  args.struct_size = kStructSize<XLA_FFI_Error_Destroy_Args>;
  args.error = error;
  api.XLA_FFI_Error_Destroy(&args);
  return false;
}

}  // namespace

int64_t FfiThreads(const XLA_FFI_CallFrame& frame) {
  if (!HasThreads(*frame.api)) return 1;
  int64_t count = 1;
  XLA_FFI_ThreadPool_NumThreads_Args args{};
  args.struct_size = kStructSize<XLA_FFI_ThreadPool_NumThreads_Args>;
  args.ctx = frame.ctx;
  args.num_threads = &count;
  return Succeeded(*frame.api, frame.api->XLA_FFI_ThreadPool_NumThreads(&args)) ? count : 1;
}

int64_t PartsWorthAThread(int64_t cost, int64_t most) {
  return std::max<int64_t>(1, std::min(cost / choices::kThread, most));
}

int64_t FfiParts(const XLA_FFI_CallFrame& frame, int64_t cost, int64_t most) {
  const int64_t wanted = PartsWorthAThread(cost, most);
  return wanted == 1 ? 1 : std::min(wanted, FfiThreads(frame));
}

void RunOnFfiThreads(const XLA_FFI_CallFrame& frame, int64_t count,
                     const std::function<void(int64_t)>& task) {
  auto work = std::make_shared<Work>(count);
  work->task = &task;
  for (int64_t i = 1; i < count; ++i) {
    auto data = std::make_unique<std::shared_ptr<Work>>(work);
    XLA_FFI_ThreadPool_Schedule_Args args{};
    args.struct_size = kStructSize<XLA_FFI_ThreadPool_Schedule_Args>;
    args.ctx = frame.ctx;
    args.task = &Scheduled;
    args.data = data.get();
    if (!Succeeded(*frame.api, frame.api->XLA_FFI_ThreadPool_Schedule(&args))) break;
    data.release();  // NOLINT(bugprone-unused-return-value): Scheduled() takes it
  }
  work->Run();
  if (count > 1) Spin([&] { return work->left.load(std::memory_order_acquire) == 0; });
  for (int64_t left; (left = work->left.load(std::memory_order_acquire)) > 0;) {
    work->left.wait(left, std::memory_order_acquire);
  }
  if (work->failed.load()) std::rethrow_exception(work->failure);
}

}  // namespace torch_xla::cpu
