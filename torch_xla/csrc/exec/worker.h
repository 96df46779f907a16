// The thread of a device that compiles and runs what was traced, in order.
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
#include "exec/host_edges.h"
#include "exec/program.h"
#include "tensor/device_data.h"
#include "tensor/errors.h"
#include "tensor/origin.h"

namespace torch_xla::lazy {

struct Execution {
  ProgramPtr program;
  std::vector<DeviceDataPtr> inputs;
  std::vector<double> floats;
  std::vector<int64_t> integers;
  std::vector<DeviceDataPtr> outputs;
  std::unique_ptr<HostEdges> host;  // null where the program does it all; one device
  Origin origin;
  bool is_whole_step = false;  // the caller's next one is likely to need what it computes
  // Kept only to be freed here rather than on the tracing thread: the graph that was cut, and what
  // nobody needs any more, whose memory the program may take.
  std::vector<ir::Value> graph, dead;
};

class Worker {
 public:
  explicit Worker(int device);
  ~Worker();

  /// A place in the queue, for an execution that Fill gives later: what is reserved first runs
  /// first, and waits there. Nothing runs in a place that is given up.
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
  /// Blocks while too many are queued or running. Where the caller has waited for all that it gave
  /// before and the program is short, the caller's thread hands it to the plugin itself: waking the
  /// worker would cost more than that takes. Where it is a whole step and very short it waits here
  /// for those before, a moment, and does the same.
  void Fill(Place place, Execution execution);
  void Push(Execution execution) { Fill(Reserve(), std::move(execution)); }
  /// Blocks until all that was pushed is done.
  void Drain();
  /// Somebody waits for what was pushed, and may do so again after the next push.
  void NoteWait() { waited_.store(true, std::memory_order_relaxed); }
  /// Throws, once, what failed since the last call.
  void ThrowFailure();
  /// Failures::Take, when all that was pushed is done.
  std::exception_ptr TakeFailure(uint64_t producer);

 private:
  /// What is in flight.
  struct Running {
    std::chrono::steady_clock::time_point start;
    uint64_t execution;
    Executions sources;  // whose results it needed
    Origin origin;
    int64_t program;  // its number, see explain/explain.h
    std::shared_ptr<std::atomic<int64_t>> run_time;
  };
  Failed FailedBy(const Running& running) const;
  void Run();
  void GiveUp(uint64_t place) noexcept;
  /// Of a place, with the mutex held; an execution without a program runs nothing.
  void Put(uint64_t place, Execution&& execution) noexcept;
  /// With the mutex held: whether the caller of Fill may run what it gives.
  bool RunsHere(uint64_t place, const Execution& execution) const;
  void Execute(Execution& execution);
  const Buffers& Numbers(Program& program, const Execution& execution, bool floats);
  /// Hands an execution to the plugin and keeps the promises of its outputs. `done`: an event for
  /// each device.
  void Launch(Execution& execution, std::span<const Buffers* const> arguments, uint64_t number,
              std::vector<runtime::Event>& done);
  /// On a thread of the plugin's.
  void Finish(const Running& running, const runtime::Error* error) noexcept;
  void Finish(HostCalls& after, const Running& running);
  /// One execution is done; with the mutex held. Returns whether to notify done_.
  bool Finished();

  const int device_;

  std::mutex mutex_;
  std::condition_variable work_;                // for the worker: something to do, or to stop
  std::condition_variable done_;                // for those who push and drain
  std::deque<std::optional<Execution>> queue_;  // those without one are reserved
  uint64_t taken_ = 0;                          // places that have left the queue
  std::atomic<int> filled_{0};                  // executions in the queue: what Run spins on
  std::atomic<int> unfinished_{0};              // places, until they are done on the device
  int running_ = 0;                             // handed to the plugin and not done
  bool launching_ = false;                      // somebody is within Execute
  std::atomic<bool> waited_{false};             // since the last push; see Fill
  bool sleeping_ = false;                       // the worker waits for work_
  bool stop_ = false;
  std::chrono::steady_clock::time_point last_done_;  // when an execution last ended
  std::atomic<int64_t> last_run_{0};                 // how long it took, in nanoseconds
  Failures failures_;                                // not told yet
  uint64_t executions_ = 0;                          // for who is within Execute
  std::thread thread_;
};

/// The worker of a device, started when first needed.
Worker& GetWorker(int device);
void StopWorkers();

}  // namespace torch_xla::lazy
