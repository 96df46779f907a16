// A PJRT client: one loaded plugin, its devices, and the objects that it makes (buffers,
// executables, events). RAII over the C API; every failure is a runtime::Error. All methods may be
// called from any thread, and none needs the GIL.
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

/// A failure of a plugin. `code` is the canonical code of PJRT (and absl).
class Error : public std::runtime_error {
 public:
  Error(int code, const std::string& message) : std::runtime_error(message), code_(code) {}
  int code() const { return code_; }
  bool out_of_memory() const;
  /// Whether the plugin does not support the request (INVALID_ARGUMENT, UNIMPLEMENTED).
  bool refused() const;

 private:
  int code_;
};

/// A future without a value. Movable; waiting twice is allowed.
class Event {
 public:
  Event() = default;                                 // is ready
  Event(const PluginLibrary* plugin, void* handle);  // takes over a PJRT_Event
  Event(Event&&) noexcept;
  Event& operator=(Event&&) noexcept;
  ~Event();

  /// Blocks until ready; throws Error if the work behind it failed.
  void Await() const;
  /// Calls `done` once, from any thread, with nullptr or the failure. The event may be destroyed
  /// before that.
  void OnReady(std::function<void(const Error* error)> done) const;

 private:
  const PluginLibrary* plugin_ = nullptr;
  void* handle_ = nullptr;
};

/// One array in device memory. Its destruction releases the memory as soon as the work that uses it
/// has finished. It may outlive its Client.
class Buffer {
 public:
  /// Takes over a PJRT_Buffer on device `device`.
  Buffer(std::shared_ptr<ClientImpl> client, void* handle, size_t bytes, int device,
         bool foreign = false);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  /// The size of the dense, row-major array on the host, in bytes.
  size_t bytes() const { return bytes_; }
  void* handle() const { return handle_; }
  /// Its index in Client::devices().
  int device() const { return device_; }
  /// Whether another owner allocated the memory (Client::ViewOf), so that it must not be donated.
  bool foreign() const { return foreign_; }

  /// Starts a copy into `dst` (row-major, `bytes()` long), which must live until the event is
  /// ready.
  Event CopyToHost(void* dst) const;
  /// An event that is ready when the content of the buffer is.
  Event ReadyEvent() const;
  /// The address of the array's device memory, for other libraries to read. While the returned
  /// pointer is held the plugin neither frees nor donates the memory; the buffer must live as long.
  /// Throws Error if the array is not row-major or the plugin does not share memory. Does not wait
  /// for the content.
  std::shared_ptr<void> Share() const;

  /// Stops counting the memory; later calls do nothing. Called when the memory is freed, when it
  /// becomes an output's memory, or when the execution that should have made it failed.
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
  /// Runs one replica on the device of each process of the job (Client::Create), in the order of
  /// their ranks; num_replicas is then the number of processes.
  bool across_processes = false;
  bool use_spmd_partitioning = false;
  /// The device of each partition, as an index in Client::devices(); empty: ascending.
  std::vector<int> partition_devices;
  /// Per output of a partitioned program: whether XLA may choose its sharding.
  std::vector<bool> propagate_to_outputs;
  /// The device (its index in Client::devices()) of a program with a single replica.
  int device = 0;
  /// XLA's own options by name ("xla_cpu_enable_fast_math" -> "true").
  std::vector<std::pair<std::string, std::string>> overrides;
};

/// The sharding of an output of a partitioned program: `tiles` is the number of parts along each
/// dimension, empty if every device has the whole output. `devices` lists the devices by tile, with
/// devices of the same tile next to each other.
struct OutputSharding {
  std::vector<int64_t> tiles, devices;
};

struct ExecuteResult {
  std::vector<std::unique_ptr<Buffer>> outputs;
  Event done;  // ready when the program has run, and outputs and consumed arguments are settled
};

class Executable {
 public:
  /// Takes over a PJRT_LoadedExecutable. `may_donate` says that the program may consume arguments.
  Executable(std::shared_ptr<ClientImpl> client, void* handle, bool may_donate);
  ~Executable();
  Executable(const Executable&) = delete;
  Executable& operator=(const Executable&) = delete;

  size_t num_outputs() const { return num_outputs_; }
  const std::string& name() const { return name_; }
  /// The devices of this process that it runs on, as ascending indices in Client::devices().
  const std::vector<int>& devices() const { return devices_; }
  /// Set for a program over several devices, if the plugin tells the shardings.
  const std::optional<std::vector<OutputSharding>>& output_shardings() const {
    return output_shardings_;
  }

  /// Starts the program on the single device that it was compiled for. `arguments` are in the order
  /// of the program's parameters. Buffers that the program aliases to outputs are consumed:
  /// afterwards their Buffer objects may only be destroyed.
  ExecuteResult Execute(std::span<Buffer* const> arguments, int device = 0) const;
  /// The same for a program over any number of devices: arguments[d][i] is for devices()[d].
  std::vector<ExecuteResult> ExecuteSharded(std::span<const std::vector<Buffer*>> arguments) const;

  /// The serialized program, for Client::Deserialize. Throws Error if the plugin cannot serialize.
  std::string Serialize() const;
  /// The memory that the program needs on one device, in bytes; -1 where the plugin does not tell.
  /// `aliased` bytes of the outputs are arguments as well. `peak` is XLA's count of all memory.
  struct MemoryUse {
    int64_t temporaries = -1, arguments = -1, outputs = -1, code = -1, aliased = -1, peak = -1;
  };
  MemoryUse memory() const;
  /// XLA's estimates for one device by XLA's names ("flops", "bytes accessed"); empty if the plugin
  /// makes none.
  std::vector<std::pair<std::string, double>> Costs() const;
  /// The optimized program and its format ("hlo": a serialized HloModuleProto); nothing if the
  /// plugin does not show it.
  struct Optimized {
    std::string format, code;
  };
  std::optional<Optimized> OptimizedProgram() const;

 private:
  void CheckArguments(std::span<Buffer* const> arguments, int device) const;
  /// Checks errors that the plugin reports on a single device, but crashes on with several devices.
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
  std::vector<size_t> places_;  // for the plugin's n-th device: its place in `devices_`
  std::string name_;
};

struct DeviceInfo {
  int id = 0;              // PJRT's global id
  int local_ordinal = 0;   // index in Client::devices()
  int hardware_id = 0;     // the number that CUDA, ROCm, … use for it
  std::string kind;        // "cpu", "NVIDIA H100 80GB HBM3"
  std::string debug_name;  // the plugin's description
  int process = 0;         // PJRT's number of the process or host that it belongs to
  /// Other attributes from the plugin, such as "coords", "core_on_chip" and "slice_index" of a TPU.
  std::map<std::string, OptionValue> attributes;
};

/// Memory of one device, in bytes; -1 where unknown. `in_use` and `peak` come from the plugin if it
/// tells them, else from this client's count of live buffers.
struct MemoryInfo {
  int64_t in_use = 0, peak = 0, limit = -1;
};

class Client {
 public:
  /// Loads the plugin of `platform` ("CPU", "CUDA", "ROCM", "TPU", or a name registered through
  /// AddPlugin) and makes its client. `place` is given if this process is one of several whose
  /// programs may run together; the client then only has the device of its local rank.
  static std::unique_ptr<Client> Create(std::string_view platform,
                                        const ProcessPlace* place = nullptr);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  /// Whether this process was forked from a process with a client: then no client can be used here.
  static bool Forked();

  const std::string& platform() const { return platform_; }  // "CPU", upper case
  /// The plugin's name of its platform: "cpu", "cuda", "rocm".
  const std::string& platform_name() const { return platform_name_; }
  /// Name and version of the plugin and of its compiler.
  const std::string& version() const { return version_; }
  /// Everything that an executable depends on besides its program, one part per line: the plugin
  /// and the options of its client, the devices, the options of the compilation, XLA's flags, and
  /// this host's processor if programs run on it. Clients with equal keys can run each other's
  /// executables.
  std::string CompileKey(const CompileOptions& options) const;
  const std::vector<DeviceInfo>& devices() const { return devices_; }
  /// Whether device memory is host memory.
  bool host_memory() const;
  /// Whether programs over several devices tell the shardings of their outputs.
  bool tells_shardings() const;
  /// Whether this client can load what Executable::Serialize returns.
  bool loads_executables() const;
  /// Whether a client of the real devices can load it; this client's own devices may be virtual.
  /// False for a topology that options describe: with real GPUs the compiler tries kernels out, so
  /// its programs differ.
  bool devices_load_executables() const { return devices_load_executables_; }

  /// Copies a row-major host array to a device. With `on_done`, returns at once and reads `data`
  /// until `on_done` is called (from any thread); without it, `data` may be reused on return. With
  /// `zero_copy` the buffer may alias `data` for its whole life (on the CPU, if the plugin chooses
  /// so), and `on_done` is called at the end of that life.
  std::unique_ptr<Buffer> BufferFromHost(const void* data, ElementType type,
                                         std::span<const int64_t> dims, int device,
                                         std::function<void()> on_done = nullptr,
                                         bool zero_copy = false);

  /// A buffer on memory that another library allocated on a device: a row-major array with the
  /// alignment that the plugin requires. The plugin releases `owner`, on any thread, when nothing
  /// uses the memory any more. `stream` is the stream of ExternalStream() if the content is still
  /// being made by work on it, else 0.
  std::unique_ptr<Buffer> ViewOf(void* data, ElementType type, std::span<const int64_t> dims,
                                 int device, std::shared_ptr<const void> owner,
                                 intptr_t stream = 0);
  /// The platform's stream (a cudaStream_t) of a device, on which other libraries order their work
  /// before a ViewOf(); nothing if the plugin has none.
  std::optional<intptr_t> ExternalStream(int device) const;

  /// Compiles StableHLO as MLIR text or bytecode.
  std::unique_ptr<Executable> Compile(std::string_view stablehlo, const CompileOptions& options);
  std::unique_ptr<Executable> Deserialize(std::string_view serialized,
                                          const CompileOptions& options);

  MemoryInfo memory(int device) const;
  /// From now on `peak` counts from this call. The peak of a plugin cannot be reset: until the
  /// plugin's peak rises again, `peak` is this client's own count of live buffers.
  void ResetPeakMemory(int device);

  /// Registers an XLA FFI handler (`XLA_FFI_Handler*`, api_version 4) under `name` for custom
  /// calls. Throws if the plugin has no FFI extension.
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
