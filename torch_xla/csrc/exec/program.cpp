#include "exec/program.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <thread>

#include "debug/environment.h"
#include "debug/metrics.h"
#include "exec/compile_progress.h"
#include "exec/settings.h"
#include "exec/stored_programs.h"
#include "runtime/host_memory.h"
#include "runtime/platform.h"
#include "stablehlo/squares.h"
#include "tensor/device.h"
#include "tensor/events.h"

namespace torch_xla::exec {
namespace {

runtime::CompileOptions OptionsOf(const Program& program) {
  runtime::CompileOptions options;
  options.device = program.devices->front();
  // With its default option XLA:CPU's maximum ignores a NaN in its second operand.
  if (runtime::IsHost(tensor::Platform())) {
    options.overrides.emplace_back("xla_cpu_enable_fast_min_max", "false");
    // With its default option XLA:CPU copies each donated buffer that another operation reads, even
    // if it reads before the write. In a step with an optimizer these are all weights.
    options.overrides.emplace_back("xla_cpu_copy_insertion_use_region_analysis", "true");
  }
  if (runtime::SkipsRounding(tensor::Platform())) {
    options.overrides.emplace_back("xla_allow_excess_precision", "false");
  }
  // XLA's search for library fusions crashes at a square of a product that only a reduction reads.
  // Excluding reductions in all programs would make them several times slower.
  if (runtime::IsHost(tensor::Platform()) && stablehlo::SquaresAProduct(program.stablehlo)) {
    options.overrides.emplace_back("xla_cpu_experimental_ynn_fusion_type",
                                   "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT,"
                                   "LIBRARY_FUSION_TYPE_INDIVIDUAL_CONVOLUTION");
  }
  if (program.must_repeat) options.overrides.emplace_back("xla_gpu_deterministic_ops", "true");
  for (const auto& option : program.settings->options) options.overrides.push_back(option);
  options.across_processes = program.across_processes;
  if (program.devices->size() == 1) return options;
  options.num_partitions = static_cast<int>(program.devices->size());
  options.use_spmd_partitioning = true;
  options.partition_devices = program.partition_devices;
  const bool told = tensor::GetClient().tells_shardings();
  for (const auto* sharding : program.shardings) {
    options.propagate_to_outputs.push_back(told && !sharding);
  }
  return options;
}

/// Adds a folder in which XLA stores the results of its autotuning of fusions, since other programs
/// contain the same fusions. The folder is not part of a program's key.
runtime::CompileOptions WithTunings(runtime::CompileOptions options, const DiskCache& cache) {
  constexpr const char* kFolder = "xla_gpu_per_fusion_autotune_cache_dir";
  const char* flags = std::getenv("XLA_FLAGS");
  if (!runtime::IsGpu(tensor::Platform()) || (flags && std::strstr(flags, kFolder))) return options;
  // A name that only torch_xla uses, so that the cache's clear command may remove the folder.
  const std::filesystem::path folder = cache.settings().folder / "tunings.XLAprog1";
  if (cache.settings().read_only) {
    options.overrides.emplace_back("xla_gpu_experimental_autotune_cache_mode",
                                   "AUTOTUNE_CACHE_MODE_READ");
  } else {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
  }
  // XLA refuses to compile if it cannot use the folder.
  const int needed = cache.settings().read_only ? R_OK | X_OK : R_OK | W_OK | X_OK;
  if (access(folder.c_str(), needed) == 0) options.overrides.emplace_back(kFolder, folder.string());
  return options;
}

/// The text of the progress line: "compiling graph 3 (4,812 ops), train.py:12".
std::string DescriptionOf(const Program& program) {
  if (program.explanation == 0) return "compiling";
  std::string nodes = std::to_string(program.nodes);
  for (size_t i = nodes.size(); i > 3;) nodes.insert(i -= 3, ",");
  std::string text =
      "compiling graph " + std::to_string(program.explanation) + " (" + nodes + " ops)";
  if (const ir::SourceLocation* line = program.origin.location) text += ", " + line->ToString();
  return text;
}

ExecutablePtr Compile(const Program& program, const runtime::CompileOptions& options) {
  static auto& compile_time = *new debug::Metric("CompileTime", debug::Unit::kTimeNs);
  ExecutablePtr executable;
  const auto start = std::chrono::steady_clock::now();
  {
    debug::ScopedTimer timer(compile_time);
    const CompileProgress progress(DescriptionOf(program));
    executable = tensor::GetClient().Compile(program.stablehlo, options);
  }
  // After a large program the compiler has freed hundreds of megabytes, which the malloc arenas of
  // its threads still hold.
  constexpr auto kLarge = std::chrono::milliseconds(500);
  if (std::chrono::steady_clock::now() - start > kLarge) runtime::GiveBackFreedMemory();
  return executable;
}

/// The content of the entry on disk that says which program a graph became, without its last line,
/// which only informs people.
std::string RecordOf(const std::string& text_hash, const Signature& signature) {
  return text_hash + "\n" + signature.ToString() + "\n";
}

ExecutablePtr FindOrCompile(const Program& program) {
  static auto& misses = *new debug::Counter("PersistentCacheMiss");
  const runtime::CompileOptions options = OptionsOf(program);
  const std::shared_ptr<DiskCache> cache = UsableCache();
  if (!cache) return Compile(program, options);
  const std::string text_hash = TextHash(program.stablehlo);
  const std::string key = ProgramKey(text_hash, options);
  ExecutablePtr executable = LoadProgram(*cache, key, options);
  DiskCache::Claim claim;
  if (!executable && !program.across_processes) {
    // Of many processes only one compiles. If the compilers communicate across processes, all must
    // compile at once.
    claim = cache->MakeClaim(key, std::chrono::milliseconds(0));
    if (!claim) {
      const CompileProgress progress("waiting for another process that is " +
                                     DescriptionOf(program));
      claim = cache->MakeClaim(key);
    }
    executable = LoadProgram(*cache, key, options);
  }
  if (executable) {
    if (!program.record.empty()) {
      cache->Write(program.record,
                   RecordOf(text_hash, program.signature) + program.origin.ToString());
    }
    return executable;
  }
  misses.Add();
  tensor::Events().MissedOnDisk(program.explanation, key);
  executable = Compile(program, WithTunings(options, *cache));
  StoreProgram({cache, key, options, executable, std::move(claim), program.record,
                RecordOf(text_hash, program.signature) + program.origin.ToString()});
  return executable;
}

/// Appends a program that could not be compiled to the file XLA_SAVE_HLO_FILE, for a bug report.
void SaveFailed(const Program& program) {
  const std::string path = debug::EnvPath("XLA_SAVE_HLO_FILE");
  if (path.empty() || program.stablehlo.empty()) return;
  std::ofstream file(path, std::ios::app);
  file << "// compilation " << program.explanation << " failed\n" << program.stablehlo << "\n";
}

/// Takes over the output shardings that XLA chose.
void TakeShardings(Program& program) {
  const auto& chosen = program.executable->output_shardings();
  const bool whole = chosen && chosen->size() == program.shardings.size();
  for (size_t i = 0; i < program.shardings.size(); ++i) {
    if (program.shardings[i]) continue;
    TORCH_CHECK(whole || !tensor::GetClient().tells_shardings(),
                "SPMD: the compiled program does not tell the sharding of its outputs");
    program.shardings[i] =
        whole && !(*chosen)[i].tiles.empty()
            ? distributed::Sharding::Tiled((*chosen)[i].tiles, (*chosen)[i].devices)
            : distributed::Sharding::Replicated();
  }
}

}  // namespace

std::string Signature::ToString() const {
  auto list = [](const std::vector<ir::ShapeRef>& shapes) {
    std::string text;
    for (ir::ShapeRef shape : shapes) text += (text.empty() ? "" : ", ") + shape->ToString();
    return text;
  };
  return "(" + list(parameters) + (parameters.empty() ? "" : ", ") + std::to_string(floats) +
         " floats, " + std::to_string(integers) + " integers) -> (" + list(results) + ")";
}

ProgramPtr ProgramCache::Find(const ir::Hash128& key) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto it = entries_.find(key);
  if (it == entries_.end()) return nullptr;
  it->second.last_use = ++uses_;
  return it->second.program;
}

ProgramPtr ProgramCache::Insert(const ir::Hash128& key, ProgramPtr program) {
  static const size_t capacity = ProgramCacheCapacity();
  std::lock_guard<std::mutex> lock(mutex_);
  if (runtime::MappingsAreScarce()) DropLeastRecentlyUsed(entries_.size() / 4);
  if (auto it = entries_.find(key); it != entries_.end()) return it->second.program;
  if (entries_.size() >= capacity) DropLeastRecentlyUsed(entries_.size() - capacity + 1);
  return entries_.emplace(key, Entry{std::move(program), ++uses_}).first->second.program;
}

size_t ProgramCache::Size() {
  std::lock_guard<std::mutex> lock(mutex_);
  return entries_.size();
}

void ProgramCache::Clear() {
  decltype(entries_) entries;  // destroyed without the lock
  std::lock_guard<std::mutex> lock(mutex_);
  entries.swap(entries_);
}

std::vector<ProgramPtr> ProgramCache::All() {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Entry> entries;
  for (const auto& [key, entry] : entries_) entries.push_back(entry);
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.last_use < b.last_use; });
  std::vector<ProgramPtr> programs;
  for (Entry& entry : entries) programs.push_back(std::move(entry.program));
  return programs;
}

void ProgramCache::DropLeastRecentlyUsed(size_t count) {
  static auto& evicted = *new debug::Counter("EvictedCompile");
  if (count == 0) return;
  std::vector<decltype(entries_)::const_iterator> oldest;
  for (auto it = entries_.cbegin(); it != entries_.cend(); ++it) oldest.push_back(it);
  std::nth_element(
      oldest.begin(), oldest.begin() + static_cast<std::ptrdiff_t>(count) - 1, oldest.end(),
      [](const auto& a, const auto& b) { return a->second.last_use < b->second.last_use; });
  for (size_t i = 0; i < count; ++i) entries_.erase(oldest[i]);
  evicted.Add(static_cast<int64_t>(count));
}

bool RestoreProgram(Program& program, const ir::Hash128& graph) {
  const std::shared_ptr<DiskCache> cache = UsableCache();
  if (!cache) return false;
  const std::string key = RecordKey(graph);
  if (key.empty()) return false;
  const std::optional<std::string> record = cache->Read(key);
  const std::string text_hash = record ? record->substr(0, record->find('\n')) : std::string();
  if (record && record->starts_with(RecordOf(text_hash, program.signature))) {
    const runtime::CompileOptions options = OptionsOf(program);
    program.executable = LoadProgram(*cache, ProgramKey(text_hash, options), options);
    if (program.executable) {
      program.compiled.store(true, std::memory_order_release);
      return true;
    }
  }
  program.record = key;
  return false;
}

void CompileProgram(Program& program) {
  if (program.compiled.load(std::memory_order_acquire)) return;
  std::lock_guard<std::mutex> lock(program.compiling);
  if (program.compiled.load(std::memory_order_relaxed)) return;
  try {
    program.executable = FindOrCompile(program);
    TakeShardings(program);
  } catch (...) {
    program.failure = std::current_exception();
    SaveFailed(program);
    for (auto& sharding : program.shardings) {
      if (!sharding) sharding = distributed::Sharding::Replicated();
    }
  }
  program.stablehlo = {};
  program.record = {};
  program.compiled.store(true, std::memory_order_release);
}

namespace {

struct Ahead {
  std::mutex mutex;
  std::vector<std::future<void>> compiling;
};

Ahead& GetAhead() {
  static auto& ahead = *new Ahead;
  return ahead;
}

}  // namespace

void CompileAhead(const ProgramPtr& program) noexcept try {
  // A compilation uses several threads for most of its work.
  static const size_t most = std::max(1u, std::thread::hardware_concurrency() / 4);
  Ahead& ahead = GetAhead();
  std::lock_guard lock(ahead.mutex);
  std::erase_if(ahead.compiling, [](const std::future<void>& one) {
    return one.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  });
  if (ahead.compiling.size() >= most) return;
  ahead.compiling.push_back(
      std::async(std::launch::async, [program] { CompileProgram(*program); }));
} catch (const std::exception&) {
  // The system cannot start a thread, so the program is compiled when it runs.
}

void FinishCompilingAhead() {
  Ahead& ahead = GetAhead();
  std::lock_guard lock(ahead.mutex);
  ahead.compiling.clear();  // waits
}

}  // namespace torch_xla::exec
