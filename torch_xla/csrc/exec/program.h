// A compiled graph, and the cache of compiled graphs.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "debug/metrics.h"
#include "exec/compile_settings.h"
#include "exec/stored_programs.h"
#include "ir/hash.h"
#include "tensor/device_data.h"
#include "tensor/origin.h"
#include "tensor/sharding.h"

namespace torch_xla::exec {

/// Numbers packed as one parameter, with their buffers, which are reused while the values do not
/// change.
template <typename T>
struct PackedNumbers {
  std::vector<T> values;
  tensor::Buffers buffers;
};

/// The inputs and outputs of a program: the shapes of data and results, and the counts of numbers.
struct Signature {
  std::vector<ir::ShapeRef> parameters, results;
  size_t floats = 0, integers = 0;

  /// For example "(f32[2], s64[3], 1 floats, 0 integers) -> (f32[2,3])".
  std::string ToString() const;
};

struct Program {
  /// Whether the fields of the next group are set. Hold `making` to set them.
  std::atomic<bool> made{false};
  std::mutex making;
  // Set before `made`:
  const tensor::DeviceSet* devices = nullptr;  // the devices it runs on
  std::vector<int> partition_devices;          // see runtime::CompileOptions
  Signature signature;
  std::string stablehlo;          // cleared after compilation
  std::string record;             // the key of its entry on disk, see RestoreProgram
  std::vector<int> aliases;       // per data parameter: the output it is donated to, or -1
  bool across_processes = false;  // whether it contains collectives that run on the devices
  CompileSettingsPtr settings = CurrentSettings();
  bool must_repeat = MustRepeat();
  debug::Counter* runs = nullptr;  // counts its runs if the program has a name
  tensor::Origin origin;           // the origin of the first graph that it was made for
  size_t nodes = 0;                // number of nodes of that graph
  int64_t explanation = 0;         // the number of its compilation, see Listener::Compiling
  // Duration of the last run in nanoseconds; 0: it has not run yet.
  std::shared_ptr<std::atomic<int64_t>> run_time = std::make_shared<std::atomic<int64_t>>(0);
  // On several devices, the shardings of the outputs; null until XLA has chosen, which it does in
  // the compilation.
  std::vector<const distributed::Sharding*> shardings;
  /// Whether `executable` or `failure` is set. Hold `compiling` to set them.
  std::atomic<bool> compiled{false};
  std::mutex compiling;
  ExecutablePtr executable;
  std::exception_ptr failure;  // of the compilation; thrown by every later run
  // Used only by the device's worker:
  bool memory_noted = false;
  std::vector<size_t> result_bytes;  // per result: its size on each device
  PackedNumbers<double> floats;
  PackedNumbers<int64_t> integers;
};

using ProgramPtr = std::shared_ptr<Program>;

/// Drops the least recently used programs above XLA_COMPILATION_CACHE_SIZE, and a quarter of all
/// programs when the process runs out of memory mappings (runtime/host_memory.h). Counter
/// EvictedCompile. Thread-safe.
class ProgramCache {
 public:
  ProgramPtr Find(const ir::Hash128& key);
  /// Inserts the program and returns it, or returns the program that another thread has inserted
  /// under the key meanwhile.
  ProgramPtr Insert(const ir::Hash128& key, ProgramPtr program);
  size_t Size();
  /// Removes all programs. Programs that are queued or held elsewhere live on.
  void Clear();
  /// All programs, most recently used last.
  std::vector<ProgramPtr> All();

 private:
  /// The caller holds the mutex.
  void DropLeastRecentlyUsed(size_t count);

  struct Entry {
    ProgramPtr program;
    uint64_t last_use;
  };
  std::mutex mutex_;
  uint64_t uses_ = 0;
  std::unordered_map<ir::Hash128, Entry, ir::Hash128Hasher> entries_;
};

/// Takes the executable from the cache on disk by the hash of the graph, without lowering the
/// graph. Returns whether it was found. This needs an entry in which a process of the same build
/// and environment noted which program the graph became, and its signature. Else use
/// CompileProgram. For programs of a single device.
bool RestoreProgram(Program& program, const ir::Hash128& hash);

/// Compiles the program, or loads it from the cache on disk (exec/disk_cache.h), unless this is
/// done already. Afterwards there is an executable or a failure, and all shardings are known.
/// Concurrent callers wait.
void CompileProgram(Program& program);

/// Does the same on a new thread, unless many such threads run already or none can be started. For
/// a program whose predecessors in the queue may have to be compiled as well.
void CompileAhead(const ProgramPtr& program) noexcept;
/// Waits for the threads of CompileAhead.
void FinishCompilingAhead();

}  // namespace torch_xla::exec
