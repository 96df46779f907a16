#include "exec/worker.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include "cpu/host_calls.h"
#include "debug/metrics.h"
#include "debug/timeline.h"
#include "lowering/context.h"
#include "runtime/platform.h"
#include "tensor/device.h"
#include "tensor/events.h"
#include "tensor/spin.h"

namespace torch_xla::exec {
namespace {

using Clock = std::chrono::steady_clock;

// Enough unfinished executions for tracing to run ahead, but few enough for memory: each holds its
// inputs.
constexpr int kMaxUnfinished = 8;
// Executions that the plugin has at a time: one runs while the next is prepared.
constexpr int kMaxRunning = 2;
// For a program that runs longer than this the start-up of the worker thread does not matter.
constexpr std::chrono::nanoseconds kLongRun = std::chrono::milliseconds(5);
// For a shorter program a change of threads costs too much: starting the other thread takes as long
// as the program, and its core has none of the data in its cache.
constexpr std::chrono::nanoseconds kShortRun = std::chrono::microseconds(200);
// A shorter program takes no longer than handing it to the plugin, which the worker does in
// parallel.
constexpr std::chrono::nanoseconds kTinyRun = std::chrono::microseconds(20);

std::atomic<int> num_workers{0};

debug::Metric& ExecuteTime() {
  static auto& metric = *new debug::Metric("ExecuteTime", debug::Unit::kTimeNs);
  return metric;
}

/// The duration of the last run; 0: no run yet.
std::chrono::nanoseconds TimeOf(const std::atomic<int64_t>& run_time) {
  return std::chrono::nanoseconds(run_time.load(std::memory_order_relaxed));
}

bool IsShort(std::chrono::nanoseconds run) { return run.count() > 0 && run < kShortRun; }

/// Spins for a while before sleeping, since waking a sleeping thread costs more than a short step.
template <typename Ready>
void SpinFor(std::chrono::nanoseconds time, Ready ready) {
  static const bool is_alone = std::thread::hardware_concurrency() < 2;
  if (is_alone) return;
  auto end = Clock::now() + time;
  while (!ready() && Clock::now() < end) {
    for (int i = 0; i < 8; ++i) tensor::Pause();
  }
}

/// The exception of a failure. If there is no memory to make it, the exception that says so.
std::exception_ptr FailureOf(const runtime::Error& error, const tensor::Failed& failed) noexcept {
  try {
    return tensor::AsTorchError(error, failed);
  } catch (...) {
    return std::current_exception();
  }
}

bool Same(ir::ShapeRef a, ir::ShapeRef b) {
  return a == b || (a->dtype == b->dtype && a->dims == b->dims);
}

/// The last check before a program runs, whichever way it was found: the program accesses memory by
/// the sizes that it was compiled for.
void CheckFits(const Program& program, const Execution& execution) {
  const Signature& signature = program.signature;
  bool fits = execution.inputs.size() == signature.parameters.size() &&
              execution.outputs.size() == signature.results.size() &&
              execution.floats.size() == signature.floats &&
              execution.integers.size() == signature.integers;
  for (size_t i = 0; fits && i < execution.inputs.size(); ++i) {
    fits = Same(execution.inputs[i]->shape(), signature.parameters[i]);
  }
  for (size_t i = 0; fits && i < execution.outputs.size(); ++i) {
    fits = Same(execution.outputs[i]->shape(), signature.results[i]);
  }
  if (fits) [[likely]]
    return;
  Signature given{.floats = execution.floats.size(), .integers = execution.integers.size()};
  for (const tensor::DeviceDataPtr& data : execution.inputs)
    given.parameters.push_back(data->shape());
  for (const tensor::DeviceDataPtr& data : execution.outputs)
    given.results.push_back(data->shape());
  TORCH_CHECK(false, "torch_xla: program ", program.explanation, " was compiled for ",
              signature.ToString(), ", but was called with ", given.ToString(),
              ". It did not run; this is a bug in torch_xla");
}

std::vector<size_t> ResultBytes(const Program& program) {
  std::vector<size_t> bytes;
  for (size_t i = 0; i < program.signature.results.size(); ++i) {
    const ir::Shape& shape = *program.signature.results[i];
    const bool whole = program.shardings.empty() || program.shardings[i]->replicated();
    size_t size = runtime::ByteWidth(lowering::PhysicalType(shape.dtype, tensor::Platform()));
    if (whole) {
      size *= static_cast<size_t>(shape.numel);
    } else {
      for (int64_t dim : program.shardings[i]->TileDims(shape.dims)) size *= dim;
    }
    bytes.push_back(size);
  }
  return bytes;
}

}  // namespace

Worker::Worker(int device) : device_(device), thread_([this] { Run(); }) {
  num_workers.fetch_add(1, std::memory_order_relaxed);
}

Worker::~Worker() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  work_.notify_one();
  thread_.join();
  num_workers.fetch_sub(1, std::memory_order_relaxed);
}

Worker::Place Worker::Reserve() {
  std::lock_guard<std::mutex> lock(mutex_);
  queue_.emplace_back();
  ++unfinished_;
  return {this, taken_ + queue_.size() - 1};
}

void Worker::GiveUp(uint64_t place) noexcept {
  bool wake = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    Put(place, {});
    wake = sleeping_;
  }
  if (wake) work_.notify_one();
}

void Worker::Put(uint64_t place, Execution&& execution) noexcept {
  queue_[place - taken_] = std::move(execution);
  filled_.fetch_add(1, std::memory_order_relaxed);
}

bool Worker::RunsHere(uint64_t place, const Execution& execution) const {
  // With several devices, the program of another device may be what the caller waits for.
  return place == taken_ && running_ == 0 && !launching_ &&
         execution.program->compiled.load(std::memory_order_relaxed) &&
         execution.program->devices->size() == 1 &&
         TimeOf(*execution.program->run_time) < kLongRun &&
         num_workers.load(std::memory_order_relaxed) == 1;
}

void Worker::Fill(Place reserved, Execution execution) {
  const uint64_t place = reserved.number_;
  bool here = waited_.exchange(false, std::memory_order_relaxed);
  std::unique_lock<std::mutex> lock(mutex_, std::defer_lock);
  if (!here && execution.is_whole_step) {
    const std::chrono::nanoseconds time = TimeOf(*execution.program->run_time);
    here = IsShort(time) && time > kTinyRun;
    // The thread that finishes the last execution may still hold the mutex: spin instead of
    // sleeping.
    if (here) SpinFor(kShortRun, [&] { return unfinished_.load() == 1 && lock.try_lock(); });
  }
  if (!lock.owns_lock()) lock.lock();
  reserved.worker_ = nullptr;
  if (here && RunsHere(place, execution)) {
    queue_.pop_front();
    ++taken_;
    ++running_;
    launching_ = true;
    lock.unlock();
    Execute(execution);
    lock.lock();
    launching_ = false;
    if (sleeping_ && !queue_.empty() && queue_.front()) work_.notify_one();
    return;
  }
  // The execution waits behind another one that may have to be compiled first.
  if (!execution.program->compiled.load(std::memory_order_relaxed) &&
      (launching_ || place != taken_)) {
    CompileAhead(execution.program);
  }
  Put(place, std::move(execution));
  const bool wake = sleeping_, full = unfinished_ >= kMaxUnfinished;
  lock.unlock();  // A woken thread takes the mutex.
  if (wake) work_.notify_one();
  // When the queue is full, wait until half of it is done: one change of threads for several steps.
  if (full) {
    const cpu::WaitsForPrograms waiting;
    debug::HostTimer timer(debug::HostPart::kWait);
    lock.lock();
    done_.wait(lock, [&] { return unfinished_ <= kMaxUnfinished / 2; });
    lock.unlock();
  }
}

void Worker::Drain() {
  NoteWait();
  if (IsShort(TimeOf(last_run_))) {
    SpinFor(kShortRun, [&] { return unfinished_.load() == 0; });
    if (unfinished_.load() == 0) return;
  }
  const cpu::WaitsForPrograms waiting;
  std::unique_lock<std::mutex> lock(mutex_);
  done_.wait(lock, [&] { return unfinished_ == 0; });
}

void Worker::ThrowFailure() {
  std::exception_ptr error;
  {
    const cpu::WaitsForPrograms waiting;
    std::unique_lock<std::mutex> lock(mutex_);
    if (failures_.empty()) return;
    // Wait for all executions: the plugin may report the cause of a failure later.
    done_.wait(lock, [&] { return unfinished_ == 0; });
    error = failures_.TakeAll();
  }
  if (error) tensor::ThrowToUser(error);
}

std::exception_ptr Worker::TakeFailure(uint64_t producer) {
  const cpu::WaitsForPrograms waiting;
  std::unique_lock<std::mutex> lock(mutex_);
  done_.wait(lock, [&] { return unfinished_ == 0; });
  return failures_.Take(producer);
}

bool Worker::Finished() {
  --running_;
  --unfinished_;
  if (sleeping_ && !queue_.empty() && queue_.front()) work_.notify_one();
  return unfinished_ == 0 || unfinished_ == kMaxUnfinished / 2;
}

void Worker::Run() {
  while (true) {
    SpinFor(std::chrono::microseconds(50),
            [&] { return filled_.load(std::memory_order_relaxed) != 0; });
    std::unique_lock<std::mutex> lock(mutex_);
    auto ready = [&] {
      return stop_ || (!queue_.empty() && queue_.front() && running_ < kMaxRunning && !launching_);
    };
    sleeping_ = !ready();
    work_.wait(lock, ready);
    sleeping_ = false;
    if (queue_.empty() || !queue_.front()) return;
    Execution execution = *std::move(queue_.front());
    queue_.pop_front();
    ++taken_;
    filled_.fetch_sub(1, std::memory_order_relaxed);
    ++running_;
    if (!execution.program) {
      if (Finished()) done_.notify_all();
      continue;
    }
    launching_ = true;
    lock.unlock();
    Execute(execution);
    lock.lock();
    launching_ = false;
  }
}

const tensor::Buffers& Worker::Numbers(Program& program, const Execution& execution, bool floats) {
  auto upload = [&](auto& packed, const auto& values, runtime::ElementType type,
                    const void* bytes) -> const tensor::Buffers& {
    if (packed.buffers.empty() || packed.values != values) {
      packed.values = values;
      packed.buffers.clear();
      int64_t size = static_cast<int64_t>(values.size());
      for (int device : *program.devices) {
        packed.buffers.push_back(
            tensor::GetClient().BufferFromHost(bytes, type, {&size, 1}, device));
      }
    }
    return packed.buffers;
  };
  if (!floats) {
    return upload(program.integers, execution.integers, runtime::ElementType::kS64,
                  execution.integers.data());
  }
  runtime::ElementType type = lowering::PhysicalType(c10::ScalarType::Double, tensor::Platform());
  if (type == runtime::ElementType::kF64) {
    return upload(program.floats, execution.floats, type, execution.floats.data());
  }
  // The device has no f64: round here as the device would.
  std::vector<float> rounded(execution.floats.begin(), execution.floats.end());
  if (type == runtime::ElementType::kF32) {
    return upload(program.floats, execution.floats, type, rounded.data());
  }
  std::vector<c10::BFloat16> halves(rounded.begin(), rounded.end());
  return upload(program.floats, execution.floats, type, halves.data());
}

void Worker::Finish(const Running& running, const runtime::Error* error) noexcept {
  // The text may contain a report of all memory, so make it before taking the lock.
  const std::exception_ptr failure = error ? FailureOf(*error, FailedBy(running)) : nullptr;
  std::unique_lock<std::mutex> lock(mutex_);
  // Read the clock with the lock held: otherwise a later end of another execution might be noted
  // first.
  const Clock::time_point now = Clock::now();
  // The time that it waited for the previous execution does not count.
  const auto time = now - std::max(running.start, std::exchange(last_done_, now));
  const int64_t nanoseconds = std::chrono::nanoseconds(time).count();
  running.run_time->store(nanoseconds, std::memory_order_relaxed);
  last_run_.store(nanoseconds, std::memory_order_relaxed);
  const std::chrono::nanoseconds end = std::chrono::system_clock::now().time_since_epoch();
  try {
    ExecuteTime().AddSample(static_cast<double>(nanoseconds));
    debug::NoteRan({running.program, device_, (end - time).count(), end.count()});
  } catch (const std::bad_alloc&) {
    // This measurement is lost.
  }
  if (failure) {
    failures_.Note(running.execution, running.sources, failure);
    tensor::DeviceData::Discount(device_, running.execution);
  }
  const bool notify = Finished();
  lock.unlock();  // A woken thread takes the mutex.
  if (notify) done_.notify_all();
}

tensor::Failed Worker::FailedBy(const Running& running) const {
  return {running.origin, running.program, device_, running.execution};
}

void Worker::Launch(Execution& execution, std::span<const tensor::Buffers* const> arguments,
                    uint64_t number, std::vector<runtime::Event>& done) {
  const runtime::Executable& executable = *execution.program->executable;
  std::vector<std::vector<runtime::Buffer*>> lists(execution.program->devices->size());
  for (size_t d = 0; d < lists.size(); ++d) {
    lists[d].reserve(arguments.size());
    for (const tensor::Buffers* argument : arguments) lists[d].push_back((*argument)[d].get());
  }
  std::vector<runtime::ExecuteResult> results = executable.ExecuteSharded(lists);
  for (const runtime::ExecuteResult& result : results) {
    for (size_t i = 0; i < execution.outputs.size(); ++i) {
      TORCH_CHECK(result.outputs.at(i)->bytes() == execution.program->result_bytes[i],
                  "torch_xla: program ", execution.program->explanation, " gave ",
                  result.outputs[i]->bytes(), " bytes for result ", i, " of ",
                  execution.program->signature.ToString(), ". This is a bug in torch_xla");
    }
  }
  // Whoever sees a result must also see that the buffers donated to it are gone.
  const std::vector<int>& aliases = execution.program->aliases;
  for (size_t i = 0; i < aliases.size(); ++i) {
    if (aliases[i] < 0) continue;
    execution.inputs[i]->Drop();
    execution.outputs[static_cast<size_t>(aliases[i])]->set_in_place();
  }
  for (size_t i = 0; i < execution.outputs.size(); ++i) {
    tensor::Buffers buffers;
    for (runtime::ExecuteResult& result : results) buffers.push_back(std::move(result.outputs[i]));
    execution.outputs[i]->Fulfil(std::move(buffers), number);
  }
  for (runtime::ExecuteResult& result : results) done.push_back(std::move(result.done));
}

void Worker::Finish(tensor::HostCalls& after, const Running& running) {
  try {
    after.Run(running.execution);
  } catch (...) {
    const std::exception_ptr error =
        tensor::AsTorchError(std::current_exception(), FailedBy(running));
    after.Fail(error, running.execution);
    std::lock_guard<std::mutex> lock(mutex_);
    failures_.Note(running.execution, running.sources, error);
  }
}

void Worker::Execute(Execution& execution) {
  auto running = std::make_shared<Running>();
  running->execution = ++executions_;
  running->origin = execution.origin;
  running->program = execution.program->explanation;
  running->run_time = execution.program->run_time;
  // Before a short program, freeing memory matters less than an early start, except where results
  // at the addresses of the previous step's results make the program faster.
  static const bool records_addresses = runtime::RecordsAddresses(tensor::Platform());
  if (records_addresses || !IsShort(TimeOf(*running->run_time))) execution.dead.clear();
  try {
    Program& program = *execution.program;
    CompileProgram(program);
    if (program.failure) std::rethrow_exception(program.failure);
    if (!program.memory_noted) {
      program.result_bytes = ResultBytes(program);
      tensor::Events().Compiled(program.explanation, program.executable->memory());
      program.memory_noted = true;
    }
    CheckFits(program, execution);
    c10::SmallVector<const tensor::Buffers*, 64> arguments;
    Executions& sources = running->sources;
    if (execution.host) {
      for (const tensor::HostCalls* calls : {&execution.host->before, &execution.host->after}) {
        for (uint64_t producer : calls->Producers()) sources.push_back(producer);
      }
      execution.host->before.Run(running->execution);
    }
    for (const tensor::DeviceDataPtr& input : execution.inputs) {
      const uint64_t producer = input->producer();
      // Inputs from one earlier step are neighbours, so this leaves few duplicates.
      if (producer != 0 && (sources.empty() || sources.back() != producer)) {
        sources.push_back(producer);
      }
      arguments.push_back(&input->On(program.devices));
    }
    if (!execution.floats.empty()) arguments.push_back(&Numbers(program, execution, true));
    if (!execution.integers.empty()) arguments.push_back(&Numbers(program, execution, false));
    running->start = Clock::now();
    std::vector<runtime::Event> done;
    Launch(execution, {arguments.data(), arguments.size()}, running->execution, done);
    const std::unique_ptr<tensor::HostEdges> host = std::move(execution.host);
    // Nodes that only this graph held are destroyed before the next step is taken.
    execution = {};
    if (host) Finish(host->after, *running);
    if (done.size() == 1) {
      done[0].OnReady([this, running](const runtime::Error* error) { Finish(*running, error); });
      return;
    }
    // The execution has finished when it has finished on all devices. Only the first error is
    // reported.
    struct Rest {
      std::mutex mutex;
      size_t count;
      std::optional<runtime::Error> error;
    };
    auto rest = std::make_shared<Rest>();
    rest->count = done.size();
    for (const runtime::Event& event : done) {
      event.OnReady([this, running, rest](const runtime::Error* error) {
        std::lock_guard<std::mutex> lock(rest->mutex);
        if (error && !rest->error) rest->error = *error;
        if (--rest->count == 0) Finish(*running, rest->error ? &*rest->error : nullptr);
      });
    }
  } catch (...) {
    std::exception_ptr error = tensor::AsTorchError(std::current_exception(), FailedBy(*running));
    for (const tensor::DeviceDataPtr& output : execution.outputs) {
      if (output->pending()) output->Fail(error, running->execution);
    }
    if (execution.host) {
      execution.host->before.Fail(error, running->execution);
      execution.host->after.Fail(error, running->execution);
    }
    execution = {};
    std::lock_guard<std::mutex> lock(mutex_);
    failures_.Note(running->execution, running->sources, error);
    if (Finished()) done_.notify_all();
  }
}

namespace {
std::mutex workers_mutex;
std::map<int, std::unique_ptr<Worker>>& Workers() {
  static auto& workers = *new std::map<int, std::unique_ptr<Worker>>;
  return workers;
}
}  // namespace

Worker& GetWorker(int device) {
  tensor::GetClient();  // throws if the worker's thread could not run
  thread_local std::array<Worker*, 8> seen{};
  if (static_cast<size_t>(device) < seen.size() && seen[device]) return *seen[device];
  std::lock_guard<std::mutex> lock(workers_mutex);
  auto& worker = Workers()[device];
  if (!worker) worker = std::make_unique<Worker>(device);
  if (static_cast<size_t>(device) < seen.size()) seen[device] = worker.get();
  return *worker;
}

void StopWorkers() {
  if (runtime::Client::Forked()) return;
  std::lock_guard<std::mutex> lock(workers_mutex);
  for (auto& [device, worker] : Workers()) worker->Drain();
  FinishCompilingAhead();
  FinishStoring();
  // The workers are not destroyed: another thread may still trace while the interpreter exits.
}

}  // namespace torch_xla::exec
