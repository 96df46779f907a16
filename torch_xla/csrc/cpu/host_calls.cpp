#include "cpu/host_calls.h"

#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <limits>
#include <mutex>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "cpu/choices.h"
#include "cpu/ffi_tensor.h"
#include "cpu/ffi_threads.h"
#include "cpu/float_vectors.h"
#include "cpu/handlers.h"
#include "cpu/instruction_sets.h"

namespace torch_xla::cpu {
namespace {

using namespace runtime::pjrt;

struct Queue {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<HostCall> calls;
  int64_t queued = 0;
  std::unordered_map<int64_t, int64_t> searches;  // searches for NaN: how often each has run
  bool stopped = false;
};

Queue& GetQueue() {
  static auto& queue = *new Queue;
  return queue;
}

void Put(HostCall call) {
  Queue& queue = GetQueue();
  std::lock_guard lock(queue.mutex);
  queue.calls.push_back(std::move(call));
  ++queue.queued;
  queue.changed.notify_one();
}

/// Whether one of the words, without its sign, is greater than infinity's bits, so that it is NaN.
template <int kBytes, typename Word>
C10_ALWAYS_INLINE bool AnyBeyond(const Word* words, int64_t begin, int64_t end, Word infinity) {
  constexpr int kLanes = kBytes / sizeof(Word);
  constexpr Word kNoSign = std::numeric_limits<Word>::max();
  for (; begin + 8 * kLanes <= end; begin += 8 * kLanes) {
    Vector<Word, kLanes> beyond{};
    for (int i = 0; i < 8; ++i) {
      Vector<Word, kLanes> x;
      std::memcpy(&x, words + begin + i * kLanes, sizeof(x));
      beyond |= (x & kNoSign) > infinity;
    }
    Word any = 0;
    for (int i = 0; i < kLanes; ++i) any |= beyond[i];
    if (any != 0) return true;
  }
  for (; begin < end; ++begin) {
    if ((words[begin] & kNoSign) > infinity) return true;
  }
  return false;
}

template <typename Word>
bool HasNan(const void* data, int64_t begin, int64_t end, Word infinity) {
  return ForThisProcessor<&AnyBeyond<16, Word>, &AnyBeyond<32, Word>, &AnyBeyond<64, Word>>()(
      static_cast<const Word*>(data), begin, end, infinity);
}

bool HasNan(const XLA_FFI_Buffer& buffer, int64_t begin, int64_t end) {
  switch (buffer.dtype) {
    case XLA_FFI_DataType_F16:
      return HasNan<int16_t>(buffer.data, begin, end, 0x7C00);
    case XLA_FFI_DataType_BF16:
      return HasNan<int16_t>(buffer.data, begin, end, 0x7F80);
    case XLA_FFI_DataType_F32:
      return HasNan<int32_t>(buffer.data, begin, end, 0x7F800000);
    case XLA_FFI_DataType_C64:
      return HasNan<int32_t>(buffer.data, 2 * begin, 2 * end, 0x7F800000);
    case XLA_FFI_DataType_F64:
      return HasNan<int64_t>(buffer.data, begin, end, 0x7FF0000000000000);
    case XLA_FFI_DataType_C128:
      return HasNan<int64_t>(buffer.data, 2 * begin, 2 * end, 0x7FF0000000000000);
    default:
      throw std::runtime_error("a search for NaN in an array of a dtype without any");
  }
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
void RunHostCall(const XLA_FFI_CallFrame& frame) {
  const DefaultFloatEnvironment environment;
  const int64_t count = frame.args.size - 2;
  HostCall call{*FfiData<const int64_t>(frame.args.args[count]), {}};
  for (int64_t i = 0; i < count; ++i) {
    call.arrays.push_back(FfiTensor(frame.args.args[i]).clone());
  }
  Put(std::move(call));
}

namespace {
HostOperator host_operator = nullptr;
void (*take_interpreter)(void*) = nullptr;
std::atomic<void* (*)()> release_interpreter{nullptr};
}  // namespace

void SetHostOperator(HostOperator function, void* (*release)(), void (*take)(void* state)) {
  host_operator = function;
  take_interpreter = take;
  release_interpreter.store(release, std::memory_order_release);
}

WaitsForPrograms::WaitsForPrograms() {
  const auto release = release_interpreter.load(std::memory_order_acquire);
  state_ = release ? release() : nullptr;
}

WaitsForPrograms::~WaitsForPrograms() {
  if (state_) take_interpreter(state_);
}

void RunHostOperator(const XLA_FFI_CallFrame& frame) {
  const DefaultFloatEnvironment environment;
  const int64_t count = frame.args.size - 1;
  std::vector<at::Tensor> operands, results;
  // Copies, since the operator may keep them, and the program may write its buffers.
  for (int64_t i = 0; i < count; ++i) operands.push_back(FfiTensor(frame.args.args[i]).clone());
  for (int64_t i = 0; i < frame.rets.size; ++i) {
    results.push_back(FfiTensor(frame.rets.rets[i]));
  }
  host_operator(*FfiData<const int64_t>(frame.args.args[count]), operands, results);
}

void RunHasNan(const XLA_FFI_CallFrame& frame) {
  const auto& array = *static_cast<XLA_FFI_Buffer*>(frame.args.args[0]);
  int64_t first = *FfiData<const int64_t>(frame.args.args[1]);
  const auto number = CallOf<HasNanCall>(frame).number;
  if (number < first) {
    int64_t count = 1;
    for (int64_t dim = 0; dim < array.rank; ++dim) count *= array.dims[dim];
    std::atomic<bool> found{false};
    const int64_t parts = FfiParts(frame, count * choices::kFloat);
    RunOnFfiThreads(frame, parts, [&](int64_t part) {
      if (HasNan(array, count * part / parts, count * (part + 1) / parts)) found = true;
    });
    if (found) first = number;
  }
  *FfiData<int64_t>(frame.rets.rets[0]) = first;
}

void RunNanReport(const XLA_FFI_CallFrame& frame) {
  const auto position = *FfiData<const int64_t>(frame.args.args[0]);
  const auto search = *FfiData<const int64_t>(frame.args.args[1]);
  *FfiData<int64_t>(frame.rets.rets[0]) = position;
  Queue& queue = GetQueue();
  const int64_t run = [&] {
    std::lock_guard lock(queue.mutex);
    return ++queue.searches[search];
  }();
  if (position == std::numeric_limits<int64_t>::max()) return;
  Put({search, {at::scalar_tensor(position, at::kLong), at::scalar_tensor(run, at::kLong)}});
}

}  // namespace torch_xla::cpu
