// The worker thread of a device, which compiles and runs traced programs in order.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "exec/failures.h"
#include "exec/program.h"
#include "tensor/device_data.h"
#include "tensor/errors.h"
#include "tensor/host_edges.h"
#include "tensor/origin.h"

namespace torch_xla::exec {

struct Execution : tensor::Arguments {
  ProgramPtr program;
  tensor::Origin origin;
  bool is_whole_step = false;  // the caller's next step is likely to need the results
  // Only kept to be freed on the worker instead of the tracing thread: the graph that was cut, and
  // dead data, whose memory the program may reuse.
  std::vector<ir::Value> graph, dead;
};

class Worker {
 public:
  explicit Worker(int device);
  ~Worker();

  /// A reserved place in the queue, for an execution that Fill provides later. Places run in the
  /// order of their reservation. A place that is given up runs nothing.
  class Place {
   public:
    Place() = default;
    Place(Place&& other) noexcept
        : worker_(std::exchange(other.worker_, nullptr)), number_(other.number_) {}
    Place& operator=(Place&& other) noexcept {
      std::swap(worker_, other.worker_);
      std::swap(number_, other.number_);
      return *this;
    }
    ~Place() {
      if (worker_) worker_->GiveUp(number_);
    }

   private:
    friend class Worker;
    Place(Worker* worker, uint64_t number) : worker_(worker), number_(number) {}

    Worker* worker_ = nullptr;
    uint64_t number_ = 0;
  };
  Place Reserve();
  /// Puts an execution into its place. Blocks while too many executions are queued or running. The
  /// caller's thread hands the execution to the plugin itself, because waking the worker would cost
  /// more:
  /// - if the caller has waited for everything that it pushed before, and the program is short;
  /// - if the execution is a whole step and very short, after a brief wait for the executions
  ///   before it.
  void Fill(Place place, Execution execution);
  void Push(Execution execution) { Fill(Reserve(), std::move(execution)); }
  /// Blocks until all pushed executions have finished.
  void Drain();
  /// Notes that the caller waits for pushed executions, and will probably do so again after the
  /// next push.
  void NoteWait() { waited_.store(true, std::memory_order_relaxed); }
  /// Throws a failure since the last call, once.
  void ThrowFailure();
  /// Waits until all pushed executions have finished, then calls Failures::Take.
  std::exception_ptr TakeFailure(uint64_t producer);

 private:
  /// An execution that was handed to the plugin and has not finished.
  struct Running {
    std::chrono::steady_clock::time_point start;
    uint64_t execution;
    Executions sources;  // the executions whose results it needed
    tensor::Origin origin;
    int64_t program;  // its number, see explain/explain.h
    std::shared_ptr<std::atomic<int64_t>> run_time;
  };
  tensor::Failed FailedBy(const Running& running) const;
  void Run();
  void GiveUp(uint64_t place) noexcept;
  /// Fills a place; an execution without a program runs nothing. The caller holds the mutex.
  void Put(uint64_t place, Execution&& execution) noexcept;
  /// Whether the caller of Fill may run the execution on its own thread. The caller holds the
  /// mutex.
  bool RunsHere(uint64_t place, const Execution& execution) const;
  void Execute(Execution& execution);
  const tensor::Buffers& Numbers(Program& program, const Execution& execution, bool floats);
  /// Hands an execution to the plugin and fulfils the promises of its outputs. `done` gets one
  /// event per device.
  void Launch(Execution& execution, std::span<const tensor::Buffers* const> arguments,
              uint64_t number, std::vector<runtime::Event>& done);
  /// Called on a thread of the plugin.
  void Finish(const Running& running, const runtime::Error* error) noexcept;
  void Finish(tensor::HostCalls& after, const Running& running);
  /// Notes the end of one execution. Returns whether to notify done_. The caller holds the mutex.
  bool Finished();

  const int device_;

  std::mutex mutex_;
  std::condition_variable work_;                // wakes the worker: there is work, or it shall stop
  std::condition_variable done_;                // wakes callers that push or drain
  std::deque<std::optional<Execution>> queue_;  // reserved places have no execution yet
  uint64_t taken_ = 0;                          // number of places that have left the queue
  std::atomic<int> filled_{0};       // number of executions in the queue; Run spins on it
  std::atomic<int> unfinished_{0};   // number of places that have not finished on the device
  int running_ = 0;                  // number handed to the plugin and not finished
  bool launching_ = false;           // whether a thread is within Execute
  std::atomic<bool> waited_{false};  // whether the caller has waited since the last push; see Fill
  bool sleeping_ = false;            // whether the worker waits for work_
  bool stop_ = false;
  std::chrono::steady_clock::time_point last_done_;  // when the last execution finished
  std::atomic<int64_t> last_run_{0};                 // its duration in nanoseconds
  Failures failures_;                                // not reported yet
  uint64_t executions_ = 0;                          // used only within Execute
  std::thread thread_;
};

/// The worker of a device, started at the first call.
Worker& GetWorker(int device);
void StopWorkers();

}  // namespace torch_xla::exec
