#include "exec/stored_programs.h"

#include <c10/core/DefaultDtype.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <sys/resource.h>
#include <sys/syscall.h>
#endif

#include "debug/metrics.h"
#include "ir/dump.h"
#include "lowering/context.h"
#include "runtime/element_type.h"
#include "runtime/host_memory.h"
#include "runtime/loaded_library.h"
#include "tensor/device.h"

namespace torch_xla::exec {
namespace {

/// The build id of this library, whose code turns a graph into a program.
const std::string& BuildId() {
  static const auto& id =
      *new std::string(runtime::BuildIdOf(reinterpret_cast<const void*>(&RecordKey)));
  return id;
}

/// Set when the plugin has refused an entry that it had made itself.
std::atomic<bool> rejected{false};

void Reject(DiskCache& cache, const std::string& key, const runtime::Error& error) {
  static auto& rejections = *new debug::Counter("CacheRejected");
  rejections.Add();
  cache.Remove(key);
  if (rejected.exchange(true)) return;
  TORCH_WARN("the plugin refuses to load a program that it has compiled itself: ", error.what(),
             ". The cache of compiled programs in ", cache.settings().folder.string(),
             " is not used by this process any more; see the counter CacheRejected.");
}

/// The thread that stores programs one after the other. It ends when the queue is empty.
class Storing {
 public:
  void Add(ProgramToStore program) {
    std::lock_guard lock(mutex_);
    queue_.push_back(std::move(program));
    if (running_) return;
    try {
      std::thread([this] { Run(); }).detach();
      running_ = true;
    } catch (const std::system_error&) {
      queue_.clear();  // Without a thread nothing is stored; other processes compile it again.
    }
  }

  void Finish() {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return !running_; });
  }

 private:
  void Run() {
#if defined(__linux__)
    // Runs at a lower priority than the step that runs meanwhile. (On Linux each thread has its own
    // priority.)
    setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), 10);
#endif
    std::unique_lock lock(mutex_);
    while (!queue_.empty()) {
      {
        const ProgramToStore program = std::move(queue_.front());
        queue_.pop_front();
        lock.unlock();
        try {
          Store(program);
        } catch (const std::exception&) {
          // Other processes compile the program again; an error such as exhausted memory must not
          // end this one.
        }
      }
      lock.lock();
    }
    running_ = false;
    done_.notify_all();
  }

  void Store(const ProgramToStore& program) {
    static auto& writes = *new debug::Counter("PersistentCacheWrite");
    DiskCache& cache = *program.cache;
    if (cache.settings().read_only || rejected.load()) return;
    std::string content;
    try {
      content = program.executable->Serialize();
    } catch (const runtime::Error&) {
      return;  // A plugin that cannot serialize programs has no disk cache.
    }
    if (!cache.Write(program.key, content)) return;
    writes.Add();
    if (!std::exchange(probed_, true)) Probe(program, content);
    if (!program.record_key.empty() && !rejected.load()) {
      cache.Write(program.record_key, program.record);
    }
  }

  /// Some plugins refuse programs that they have serialized themselves. This is tried once, and the
  /// answer is stored in the cache.
  void Probe(const ProgramToStore& program, const std::string& content) {
    runtime::Client& client = tensor::GetClient();
    if (!client.loads_executables()) return;
    const std::string known = "loads: " + client.CompileKey({});
    if (program.cache->Read(known)) return;
    try {
      client.Deserialize(content, program.options);
      program.cache->Write(known, "yes");
    } catch (const runtime::Error& error) {
      Reject(*program.cache, program.key, error);
    }
  }

  std::mutex mutex_;
  std::condition_variable done_;
  std::deque<ProgramToStore> queue_;
  bool running_ = false;
  bool probed_ = false;  // used only by the thread
};

Storing& GetStoring() {
  static auto& storing = *new Storing;
  return storing;
}

}  // namespace

std::shared_ptr<DiskCache> UsableCache() {
  return rejected.load() || !tensor::GetClient().devices_load_executables() ? nullptr
                                                                            : GetDiskCache();
}

std::string TextHash(std::string_view stablehlo) {
  ir::Hasher hasher;
  hasher.AddText(stablehlo);
  return ir::ToHex(hasher.Finish());
}

std::string ProgramKey(const std::string& text_hash, const runtime::CompileOptions& options) {
  return "program: " + text_hash + "\n" + tensor::GetClient().CompileKey(options);
}

std::string RecordKey(const ir::Hash128& graph) {
  if (BuildId().empty()) return {};
  std::vector<std::string_view> variables;
  for (char** variable = environ; *variable; ++variable) {
    const std::string_view text = *variable;
    if (text.starts_with("XLA_PERSISTENT_CACHE") || text.starts_with("XLA_TOPOLOGY=")) continue;
    if (text.starts_with("XLA_") || text.starts_with("PT_XLA_")) variables.push_back(text);
  }
  std::sort(variables.begin(), variables.end());
  std::string key = "record: " + ir::ToHex(graph) + "\nbuild: " + BuildId() +
                    "\ntorch: " TORCH_VERSION "\nplatform: " + tensor::Platform() +
                    "\ndefault dtype: " + c10::toString(c10::get_default_dtype_as_scalartype());
  // The environment may have changed since floats got their types, so the key has these types.
  for (const c10::ScalarType dtype : {c10::ScalarType::Float, c10::ScalarType::Double}) {
    key.append("\n").append(c10::toString(dtype)).append(" as: ");
    key.append(runtime::MlirName(lowering::PhysicalType(dtype, tensor::Platform())));
  }
  for (std::string_view variable : variables) key.append("\n").append(variable);
  return key;
}

ExecutablePtr LoadProgram(DiskCache& cache, const std::string& key,
                          const runtime::CompileOptions& options) {
  static auto& hits = *new debug::Counter("PersistentCacheHit");
  if (!tensor::GetClient().loads_executables()) return nullptr;
  std::optional<std::string> content = cache.Read(key);
  if (!content) return nullptr;
  const bool is_large = content->size() > 1 << 15;
  ExecutablePtr executable;
  try {
    executable = tensor::GetClient().Deserialize(*content, options);
    hits.Add();
  } catch (const runtime::Error& error) {
    Reject(cache, key, error);
  }
  // The serialized program and temporary data of about the same size are freed here.
  content.reset();
  if (is_large) runtime::GiveBackFreedMemory();
  return executable;
}

void StoreProgram(ProgramToStore program) { GetStoring().Add(std::move(program)); }

void FinishStoring() {
  // A forked process does not have the thread.
  if (!runtime::Client::Forked()) GetStoring().Finish();
}

}  // namespace torch_xla::exec
