// A compiled graph, and the cache of them.
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

namespace torch_xla::lazy {

/// Numbers packed as one parameter; their buffers are kept while they do not change.
template <typename T>
struct PackedNumbers {
  std::vector<T> values;
  Buffers buffers;
};

/// What a program takes and gives: data and results by their shapes, and how many numbers.
struct Signature {
  std::vector<ir::ShapeRef> parameters, results;
  size_t floats = 0, integers = 0;

  /// "(f32[2], s64[3], 1 floats, 0 integers) -> (f32[2,3])".
  std::string ToString() const;
};

struct Program {
  /// Whether what is set when it is made is there; before that, with `making` held.
  std::atomic<bool> made{false};
  std::mutex making;
  // Set when made:
  const DeviceSet* devices = nullptr;  // that it runs on
  Signature signature;
  std::string stablehlo;          // dropped once compiled
  std::string record;             // see RestoreProgram
  std::vector<int> aliases;       // per data parameter: the output it is donated to, or -1
  bool across_processes = false;  // has collectives of the devices
  CompileSettingsPtr settings = CurrentSettings();
  bool must_repeat = MustRepeat();
  debug::Counter* runs = nullptr;  // of a program with a name
  Origin origin;                   // of the graph that it was made for first
  size_t nodes = 0;                // of that graph
  int64_t explanation = 0;         // the number of its compilation, see Listener::Compiling
  // How long it ran the last time, in nanoseconds; 0: it has not.
  std::shared_ptr<std::atomic<int64_t>> run_time = std::make_shared<std::atomic<int64_t>>(0);
  // On several devices, of the outputs: where null, XLA's choice once it is compiled.
  std::vector<const distributed::Sharding*> shardings;
  /// Whether the next two are there, one of them; before that, with `compiling` held.
  std::atomic<bool> compiled{false};
  std::mutex compiling;
  ExecutablePtr executable;
  std::exception_ptr failure;  // of compilation: the same for every later run
  // Used by the worker of the device only:
  bool memory_noted = false;
  std::vector<size_t> result_bytes;  // of what each device has of the results
  PackedNumbers<double> floats;
  PackedNumbers<int64_t> integers;
};

using ProgramPtr = std::shared_ptr<Program>;

/// Least recently used beyond XLA_COMPILATION_CACHE_SIZE (default 2048) are dropped, and a quarter
/// of all when the process runs out of memory mappings (runtime/host_memory.h). Counter
/// EvictedCompile.
class ProgramCache {
 public:
  ProgramPtr Find(const ir::Hash128& key);
  /// Returns what has that key from now on: the one that another thread has inserted meanwhile.
  ProgramPtr Insert(const ir::Hash128& key, ProgramPtr program);
  size_t Size();
  /// Those that are queued or held elsewhere live on there.
  void Clear();
  /// Those that were used last come last.
  std::vector<ProgramPtr> All();

 private:
  /// With the mutex held.
  void DropLeastRecentlyUsed(size_t count);

  struct Entry {
    ProgramPtr program;
    uint64_t last_use;
  };
  std::mutex mutex_;
  uint64_t uses_ = 0;
  std::unordered_map<ir::Hash128, Entry, ir::Hash128Hasher> entries_;
};

/// Takes the executable from the cache on disk by the hash of what it is made of, without lowering
/// that, and returns whether it was there: a process of the same build and environment has noted
/// there which program the hash became, and of which signature. Else CompileProgram will. For
/// programs of one device.
bool RestoreProgram(Program& program, const ir::Hash128& hash);

/// Compiles, or takes from the cache on disk (exec/disk_cache.h), where that is not done;
/// then there is an executable or a failure, and all shardings are known. Who asks meanwhile waits.
void CompileProgram(Program& program);

/// The same on a thread of its own, unless many do so already or there can be none: for a program
/// that waits behind others, which may have to be compiled, too.
void CompileAhead(const ProgramPtr& program) noexcept;
/// Waits for those threads.
void FinishCompilingAhead();

}  // namespace torch_xla::lazy
