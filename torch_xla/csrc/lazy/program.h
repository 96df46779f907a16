// A compiled graph, and the cache of them.
#pragma once

#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "debug/metrics.h"
#include "distributed/sharding.h"
#include "ir/hash.h"
#include "lazy/compile_settings.h"
#include "lazy/device_data.h"
#include "runtime/client.h"

namespace torch_xla::lazy {

/// Numbers packed as one parameter; their buffers are kept while they do not change.
template <typename T>
struct PackedNumbers {
  std::vector<T> values;
  Buffers buffers;
};

struct Program {
  // Set when made:
  std::string stablehlo;          // dropped once compiled
  std::vector<int> aliases;       // per data parameter: the output it is donated to, or -1
  bool across_processes = false;  // has collectives of the devices
  CompileSettingsPtr settings = CurrentSettings();
  debug::Counter* runs = nullptr;  // of a program with a name
  // In SPMD mode, of the outputs: where null, XLA's choice once it is compiled.
  std::vector<const distributed::Sharding*> shardings;
  // Set and used by the worker of the device only (but in SPMD mode compiled when made):
  std::unique_ptr<runtime::Executable> executable;
  std::exception_ptr failure;  // of compilation: the same for every later run
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
  void Insert(const ir::Hash128& key, ProgramPtr program);
  size_t Size();

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

/// Compiles, or takes from the cache on disk (XLA_PERSISTENT_CACHE_PATH), where that is not done;
/// then there is an executable or a failure.
void CompileProgram(Program& program, int device);

}  // namespace torch_xla::lazy
