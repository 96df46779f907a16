// A PJRT client: one loaded plugin, its devices, and the three things it makes
// (buffers, executables, events). RAII over the C API; every failure is a
// runtime::Error. All methods may be called from any thread, none needs the GIL.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/element_type.h"
#include "runtime/key_value_store.h"
#include "runtime/plugin.h"

namespace torch_xla::runtime {

class Client;
class PluginLibrary;
struct ClientImpl;

/// What went wrong in a plugin. `code` is PJRT's (and absl's) canonical code.
class Error : public std::runtime_error {
 public:
  Error(int code, const std::string& message) : std::runtime_error(message), code_(code) {}
  int code() const { return code_; }
  bool out_of_memory() const;
  /// The plugin does not do such a thing (INVALID_ARGUMENT, UNIMPLEMENTED).
  bool refused() const;

 private:
  int code_;
};

/// Something that becomes ready later. Movable; waiting twice is allowed.
class Event {
 public:
  Event() = default;                                 // already ready
  Event(const PluginLibrary* plugin, void* handle);  // takes a PJRT_Event
  Event(Event&&) noexcept;
  Event& operator=(Event&&) noexcept;
  ~Event();

  /// Blocks until ready; throws Error when the work behind it failed.
  void Await() const;
  /// Calls `done` once, from any thread, with nullptr or the failure. The event
  /// may be destroyed before that.
  void OnReady(std::function<void(const Error* error)> done) const;

 private:
  const PluginLibrary* plugin_ = nullptr;
  void* handle_ = nullptr;
};

/// One array in device memory. Destroying it releases the memory as soon as the
/// work that uses it is done. It may outlive its Client.
class Buffer {
 public:
  /// Takes a PJRT_Buffer that lives on device `device`.
  Buffer(std::shared_ptr<ClientImpl> client, void* handle, size_t bytes, int device,
         bool foreign = false);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  /// Bytes on the host of the (dense, row-major) array.
  size_t bytes() const { return bytes_; }
  void* handle() const { return handle_; }
  /// Its index in Client::devices().
  int device() const { return device_; }
  /// Whether its memory is another owner's (Client::ViewOf), not to be donated.
  bool foreign() const { return foreign_; }

  /// Starts a copy into `dst` (row-major, `bytes()` long), which must live until
  /// the event is ready.
  Event CopyToHost(void* dst) const;
  /// Ready when the buffer's content is.
  Event ReadyEvent() const;
  /// The address of its memory on the device, for others to read. As long as the pointer (not what
  /// it points to) is held the plugin frees and donates nothing; the buffer must live as long.
  /// Throws Error where the array is not row-major or the plugin does not share memory. It does
  /// not wait.
  std::shared_ptr<void> Share() const;

  /// Stops counting the memory, once: when it goes, passes to an output, or was never taken because
  /// the execution that should have made it failed.
  void ReleaseAccounting();

 private:
  friend class Executable;
  std::shared_ptr<ClientImpl> client_;
  void* handle_;
  size_t bytes_;
  std::atomic<size_t> accounted_;
  int device_;
  bool foreign_;
};

struct CompileOptions {
  int num_replicas = 1;
  int num_partitions = 1;
  /// One replica on the device of each process of the job (Client::Create), in the order of their
  /// ranks; num_replicas is theirs then.
  bool across_processes = false;
  bool use_spmd_partitioning = false;
  /// Per output of a partitioned program: whether XLA may choose how it lies on the devices.
  std::vector<bool> propagate_to_outputs;
  /// The device (its index in Client::devices()) of a one-replica program.
  int device = 0;
  /// XLA's own options by name ("xla_cpu_enable_fast_math" -> "true").
  std::vector<std::pair<std::string, std::string>> overrides;
};

/// How an output of a partitioned program lies on the devices: `tiles` parts along each
/// dimension, none if every device has all of it; `devices` by the tile they hold, those with
/// the same one next to each other.
struct OutputSharding {
  std::vector<int64_t> tiles, devices;
};

struct ExecuteResult {
  std::vector<std::unique_ptr<Buffer>> outputs;
  Event done;  // the program has run; outputs and consumed arguments are settled
};

class Executable {
 public:
  /// Takes a PJRT_LoadedExecutable. `may_donate`: the program may consume arguments.
  Executable(std::shared_ptr<ClientImpl> client, void* handle, bool may_donate);
  ~Executable();
  Executable(const Executable&) = delete;
  Executable& operator=(const Executable&) = delete;

  size_t num_outputs() const { return num_outputs_; }
  const std::string& name() const { return name_; }
  /// Indices in Client::devices() of the devices that it runs on from this process.
  const std::vector<int>& devices() const { return devices_; }
  /// Of a program over several devices, where the plugin tells.
  const std::optional<std::vector<OutputSharding>>& output_shardings() const {
    return output_shardings_;
  }

  /// Starts the program on one device, the one it was compiled for. `arguments` in the order of the
  /// program's parameters. Buffers that the program aliases to outputs are consumed: their Buffer
  /// objects stay valid to destroy, nothing else.
  ExecuteResult Execute(std::span<Buffer* const> arguments, int device = 0) const;
  /// The same for a program over any number of devices: arguments[d][i], d as in devices().
  std::vector<ExecuteResult> ExecuteSharded(std::span<const std::vector<Buffer*>> arguments) const;

  /// For Client::Deserialize; throws Error where the plugin cannot.
  std::string Serialize() const;
  /// Bytes of temporaries, arguments, outputs and code on one device where the plugin says; -1
  /// else. `aliased` of the outputs are arguments, too; `peak` is what XLA counts of all, where it
  /// does.
  struct MemoryUse {
    int64_t temporaries = -1, arguments = -1, outputs = -1, code = -1, aliased = -1, peak = -1;
  };
  MemoryUse memory() const;
  /// XLA's estimates by its own names ("flops", "bytes accessed"), of one device; empty where the
  /// plugin makes none.
  std::vector<std::pair<std::string, double>> Costs() const;
  /// What the compiler made of the program, and its format ("hlo": a serialized HloModuleProto);
  /// nothing where the plugin does not show it.
  struct Optimized {
    std::string format, code;
  };
  std::optional<Optimized> OptimizedProgram() const;

 private:
  void CheckArguments(std::span<Buffer* const> arguments, int device) const;
  /// The plugin reports these on one device and crashes on them on several.
  void CheckShardedArguments(std::span<Buffer* const> arguments) const;
  bool IsConsumed(const Buffer& buffer) const;
  void Run(std::span<const std::span<Buffer* const>> arguments,
           std::span<ExecuteResult> results) const;
  void ReleaseConsumed(std::span<Buffer* const> arguments) const;
  void TakeOutputs(std::span<void* const> handles, int device,
                   std::vector<std::unique_ptr<Buffer>>& outputs) const;

  std::shared_ptr<ClientImpl> client_;
  void* handle_;
  bool may_donate_;
  size_t num_outputs_ = 0;
  int64_t num_parameters_ = -1;  // -1: the plugin does not tell
  std::vector<size_t> output_bytes_;
  std::vector<int64_t> parameter_bytes_;  // of programs over several devices; -1: unknown
  std::optional<std::vector<OutputSharding>> output_shardings_;
  std::vector<int> devices_;
  std::string name_;
};

struct DeviceInfo {
  int id = 0;              // PJRT's global id
  int local_ordinal = 0;   // index in Client::devices()
  int hardware_id = 0;     // the number that CUDA, ROCm, … know it by
  std::string kind;        // "cpu", "NVIDIA H100 80GB HBM3"
  std::string debug_name;  // the plugin's own words
  int process = 0;         // PJRT's number of the process, or host, that it belongs to
  /// What else the plugin says: "coords", "core_on_chip", "slice_index" of a TPU.
  std::map<std::string, OptionValue> attributes;
};

/// Memory of one device, in bytes; -1 where unknown. `in_use` and `peak` are the
/// plugin's when it tells, else this client's own accounting of live buffers.
struct MemoryInfo {
  int64_t in_use = 0, peak = 0, limit = -1;
};

class Client {
 public:
  /// Loads the plugin of `platform` ("CPU", "CUDA", "ROCM", "TPU", or a name
  /// registered through AddPlugin) and makes its client. With `place`, that of one of several
  /// processes whose programs may run together; it then has the one device of its local rank.
  static std::unique_ptr<Client> Create(std::string_view platform,
                                        const ProcessPlace* place = nullptr);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  /// Whether this process was forked off one with a client: there is no using any here.
  static bool Forked();

  const std::string& platform() const { return platform_; }  // "CPU", upper case
  /// The plugin's own name of its platform: "cpu", "cuda", "rocm".
  const std::string& platform_name() const { return platform_name_; }
  /// Name and version of the plugin and its compiler.
  const std::string& version() const { return version_; }
  /// All that an executable depends on besides its program, a part on each line: the plugin and the
  /// options that its client was made with, the devices, the options of the compilation, XLA's
  /// flags, and this host's processor where programs run on it. Where two keys are equal, either
  /// side can run the other's executables.
  std::string CompileKey(const CompileOptions& options) const;
  const std::vector<DeviceInfo>& devices() const { return devices_; }
  /// Whether device memory is host memory.
  bool host_memory() const;
  /// Whether programs over several devices tell how their outputs lie on them.
  bool tells_shardings() const;
  /// Whether what Executable::Serialize gives can be taken back.
  bool loads_executables() const;
  /// Or by a client of the devices, if these are not there. Not of those that options describe:
  /// for GPUs the compiler tries kernels out, where it can.
  bool devices_load_executables() const { return devices_load_executables_; }

  /// Copies a row-major host array to a device. With `on_done`, returns at once
  /// and reads `data` until `on_done` is called (from any thread); without it,
  /// `data` may be reused on return. `zero_copy`: the buffer may alias `data` for
  /// its whole life (CPU; the plugin decides, and `on_done` comes at its end).
  std::unique_ptr<Buffer> BufferFromHost(const void* data, ElementType type,
                                         std::span<const int64_t> dims, int device,
                                         std::function<void()> on_done = nullptr,
                                         bool zero_copy = false);

  /// A buffer that is memory which somebody else allocated on a device: a row-major array, aligned
  /// as the plugin wants it. The plugin lets go of `owner` when nothing uses the memory any more,
  /// on any thread. `stream`: of ExternalStream(), ordered after the work that makes the content; 0
  /// when that is done.
  std::unique_ptr<Buffer> ViewOf(void* data, ElementType type, std::span<const int64_t> dims,
                                 int device, std::shared_ptr<const void> owner,
                                 intptr_t stream = 0);
  /// The platform's stream (a cudaStream_t) of a device on which others order their work before a
  /// ViewOf(); nothing where the plugin has none.
  std::optional<intptr_t> ExternalStream(int device) const;

  /// Compiles StableHLO, MLIR text or bytecode.
  std::unique_ptr<Executable> Compile(std::string_view stablehlo, const CompileOptions& options);
  std::unique_ptr<Executable> Deserialize(std::string_view serialized,
                                          const CompileOptions& options);

  MemoryInfo memory(int device) const;
  /// From now on `peak` is that since this call. A plugin that counts it itself cannot be told to:
  /// until its own is exceeded, it is then the most that live buffers took.
  void ResetPeakMemory(int device);

  /// Registers an XLA FFI handler (`XLA_FFI_Handler*`, api_version 4) under `name`
  /// for custom calls; throws where the plugin has no FFI extension.
  void RegisterCustomCall(const std::string& name, void* handler);

  ClientImpl& impl() { return *impl_; }

 private:
  Client() = default;
  std::shared_ptr<ClientImpl> impl_;
  std::string platform_, platform_name_, version_;
  std::string create_options_;  // as text
  bool devices_load_executables_ = false;
  std::vector<DeviceInfo> devices_;
};

}  // namespace torch_xla::runtime
