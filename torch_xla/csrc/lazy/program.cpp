#include "lazy/program.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "debug/environment.h"
#include "debug/metrics.h"
#include "lazy/device.h"
#include "lazy/settings.h"
#include "runtime/host_memory.h"

namespace torch_xla::lazy {
namespace {

/// Where the program is kept on disk; empty without a cache folder. The name stands for
/// all that the machine code depends on: the program, the compiler, its flags, the device.
std::filesystem::path DiskPath(const Program& program, int device) {
  const std::string& stablehlo = program.stablehlo;
  const char* folder = std::getenv("XLA_PERSISTENT_CACHE_PATH");
  if (!folder || !*folder) return {};
  runtime::Client& client = GetClient();
  const char* flags = std::getenv("XLA_FLAGS");
  ir::Hasher hasher;
  hasher.Add(program.settings->Hash());
  for (const std::string& part :
       {stablehlo, client.platform(), client.version(), client.devices()[device].kind,
        std::to_string(device), std::string(flags ? flags : "")}) {
    hasher.Add(part.size());
    for (size_t i = 0; i < part.size(); i += 8) {
      uint64_t word = 0;
      std::memcpy(&word, part.data() + i, std::min<size_t>(8, part.size() - i));
      hasher.Add(word);
    }
  }
  ir::Hash128 hash = hasher.Finish();
  char name[48];
  std::snprintf(name, sizeof name, "%016lx%016lx.xla", hash.high, hash.low);
  return std::filesystem::path(folder) / name;
}

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream content;
  content << in.rdbuf();
  return content.str();
}

/// Whole or not at all: other processes may be reading or writing the same entry. A cache
/// that cannot be written is no error.
void WriteFile(const std::filesystem::path& path, const std::string& content) {
  std::error_code ignored;
  std::filesystem::create_directories(path.parent_path(), ignored);
  std::filesystem::path temporary = path;
  temporary += "." + std::to_string(std::random_device{}());
  {
    std::ofstream out(temporary, std::ios::binary);
    out << content;
    if (!out) {
      out.close();
      std::filesystem::remove(temporary, ignored);
      return;
    }
  }
  std::filesystem::rename(temporary, path, ignored);
}

runtime::CompileOptions OptionsOf(const Program& program, int device) {
  runtime::CompileOptions options;
  options.device = device;
  // By default XLA:CPU's maximum drops a NaN in its second operand.
  if (Platform() == "CPU") options.overrides.emplace_back("xla_cpu_enable_fast_min_max", "false");
  for (const auto& option : program.settings->options) options.overrides.push_back(option);
  options.across_processes = program.across_processes;
  if (SpmdDevices() <= 1) return options;
  options.num_partitions = SpmdDevices();
  options.use_spmd_partitioning = true;
  const bool told = GetClient().tells_shardings();
  for (const auto* sharding : program.shardings) {
    options.propagate_to_outputs.push_back(told && !sharding);
  }
  return options;
}

std::unique_ptr<runtime::Executable> FindOrCompile(const Program& program, int device) {
  static auto& compile_time = *new debug::Metric("CompileTime", debug::Unit::kTimeNs);
  static auto& disk_hits = *new debug::Counter("PersistentCacheHit");
  static auto& disk_misses = *new debug::Counter("PersistentCacheMiss");
  const runtime::CompileOptions options = OptionsOf(program, device);
  std::filesystem::path path = DiskPath(program, device);
  if (!path.empty()) {
    std::string serialized = ReadFile(path);
    if (!serialized.empty()) {
      try {
        auto executable = GetClient().Deserialize(serialized, options);
        disk_hits.Add();
        return executable;
      } catch (const runtime::Error&) {
        // Damaged, or of a plugin that names its versions badly: compile anew.
      }
    }
    disk_misses.Add();
  }
  debug::ScopedTimer timer(compile_time);
  auto executable = GetClient().Compile(program.stablehlo, options);
  if (!path.empty() && !debug::EnvFlag("XLA_PERSISTENT_CACHE_READ_ONLY")) {
    try {
      WriteFile(path, executable->Serialize());
    } catch (const runtime::Error&) {
      // A plugin that cannot serialize has no disk cache.
    }
  }
  return executable;
}

/// Notes what XLA chose.
void TakeShardings(Program& program) {
  const auto& chosen = program.executable->output_shardings();
  const bool whole = chosen && chosen->size() == program.shardings.size();
  for (size_t i = 0; i < program.shardings.size(); ++i) {
    if (program.shardings[i]) continue;
    TORCH_CHECK(whole || !GetClient().tells_shardings(),
                "SPMD: the compiled program does not tell how its outputs lie on the devices");
    program.shardings[i] =
        whole && !(*chosen)[i].tiles.empty()
            ? distributed::Sharding::Tiled((*chosen)[i].tiles, (*chosen)[i].devices)
            : distributed::Sharding::Replicated();
  }
}

}  // namespace

ProgramPtr ProgramCache::Find(const ir::Hash128& key) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto it = entries_.find(key);
  if (it == entries_.end()) return nullptr;
  it->second.last_use = ++uses_;
  return it->second.program;
}

void ProgramCache::Insert(const ir::Hash128& key, ProgramPtr program) {
  static const size_t capacity = ProgramCacheCapacity();
  std::lock_guard<std::mutex> lock(mutex_);
  if (entries_.size() >= capacity) DropLeastRecentlyUsed(entries_.size() - capacity + 1);
  if (runtime::MappingsAreScarce()) DropLeastRecentlyUsed(entries_.size() / 4);
  entries_[key] = {std::move(program), ++uses_};
}

size_t ProgramCache::Size() {
  std::lock_guard<std::mutex> lock(mutex_);
  return entries_.size();
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

void CompileProgram(Program& program, int device) {
  if (program.executable || program.failure) return;
  try {
    program.executable = FindOrCompile(program, device);
    TakeShardings(program);
  } catch (...) {
    program.failure = std::current_exception();
  }
  program.stablehlo = {};
}

}  // namespace torch_xla::lazy
