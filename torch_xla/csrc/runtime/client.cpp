#include "runtime/client.h"

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>

#include "runtime/client_impl.h"
#include "runtime/compile_only.h"
#include "runtime/compile_options.h"
#include "runtime/cpu_devices.h"
#include "runtime/errors.h"
#include "runtime/host_memory.h"
#include "runtime/host_processor.h"
#include "runtime/loaded_library.h"
#include "runtime/platform.h"
#include "runtime/plugin.h"

namespace torch_xla::runtime {

using namespace pjrt;

namespace {

/// An address in the code of the library.
const void* CodeOf(const PluginLibrary& plugin) {
  return reinterpret_cast<const void*>(plugin.api().PJRT_Client_Create);
}

// The result points into `name` and `option`, which must live as long as the result.
PJRT_NamedValue ToNamedValue(const std::string& name, const OptionValue& option) {
  PJRT_NamedValue value{};
  value.struct_size = kStructSize<PJRT_NamedValue>;
  value.name = name.data();
  value.name_size = name.size();
  value.value_size = 1;
  if (auto* text = std::get_if<std::string>(&option)) {
    value.type = PJRT_NamedValue_kString;
    value.value.string_value = text->data();
    value.value_size = text->size();
  } else if (auto* integer = std::get_if<int64_t>(&option)) {
    value.type = PJRT_NamedValue_kInt64;
    value.value.int64_value = *integer;
  } else if (auto* flag = std::get_if<bool>(&option)) {
    value.type = PJRT_NamedValue_kBool;
    value.value.bool_value = *flag;
  } else if (auto* real = std::get_if<float>(&option)) {
    value.type = PJRT_NamedValue_kFloat;
    value.value.float_value = *real;
  } else {
    const auto& list = std::get<std::vector<int64_t>>(option);
    value.type = PJRT_NamedValue_kInt64List;
    value.value.int64_array_value = list.data();
    value.value_size = list.size();
  }
  return value;
}

std::string ToText(const OptionValue& option) {
  if (auto* text = std::get_if<std::string>(&option)) return *text;
  if (auto* integer = std::get_if<int64_t>(&option)) return std::to_string(*integer);
  if (auto* flag = std::get_if<bool>(&option)) return *flag ? "true" : "false";
  if (auto* real = std::get_if<float>(&option)) return std::to_string(*real);
  std::string list;
  for (int64_t item : std::get<std::vector<int64_t>>(option)) list += std::to_string(item) + ".";
  return list;
}

std::map<std::string, OptionValue> FromNamedValues(const PJRT_NamedValue* values, size_t count) {
  std::map<std::string, OptionValue> result;
  for (const PJRT_NamedValue& named : std::span(values, count)) {
    OptionValue value;
    switch (named.type) {
      case PJRT_NamedValue_kString:
        value = std::string(named.value.string_value, named.value_size);
        break;
      case PJRT_NamedValue_kInt64:
        value = named.value.int64_value;
        break;
      case PJRT_NamedValue_kInt64List:
        value = std::vector<int64_t>(named.value.int64_array_value,
                                     named.value.int64_array_value + named.value_size);
        break;
      case PJRT_NamedValue_kFloat:
        value = named.value.float_value;
        break;
      case PJRT_NamedValue_kBool:
        value = named.value.bool_value;
        break;
      default:
        continue;
    }
    result.emplace(std::string(named.name, named.name_size), std::move(value));
  }
  return result;
}

// The text " xla_version=2" for every attribute that the plugin publishes.
std::string PluginAttributes(const PluginLibrary& plugin) {
  Args<PJRT_Plugin_Attributes_Args> args;
  if (!plugin.Gives(&PJRT_Api::PJRT_Plugin_Attributes, args)) return {};
  std::string result;
  for (const auto& [name, value] : FromNamedValues(args.attributes, args.num_attributes)) {
    result += " " + name + "=" + ToText(value);
  }
  return result;
}

/// The version of the client's topology, which is known without devices as well; else the version
/// of the client.
std::string PlatformVersion(const PluginLibrary& plugin, PJRT_Client* client) {
  Args<PJRT_Client_TopologyDescription_Args> of;
  of.client = client;
  if (plugin.Has(&PJRT_Api::PJRT_TopologyDescription_PlatformVersion) &&
      plugin.Gives(&PJRT_Api::PJRT_Client_TopologyDescription, of)) {
    const auto version =
        PJRT_ASK(plugin, PJRT_TopologyDescription_PlatformVersion, topology, of.topology);
    return std::string(version.platform_version, version.platform_version_size);
  }
  const auto version = PJRT_ASK(plugin, PJRT_Client_PlatformVersion, client, client);
  return std::string(version.platform_version, version.platform_version_size);
}

DeviceInfo DescribeDevice(const PluginLibrary& plugin, PJRT_Device* device, int index) {
  DeviceInfo info;
  info.local_ordinal = index;
  const auto description = PJRT_ASK(plugin, PJRT_Device_GetDescription, device, device);
  const auto id = PJRT_ASK(plugin, PJRT_DeviceDescription_Id, device_description,
                           description.device_description);
  info.id = id.id;
  const auto kind = PJRT_ASK(plugin, PJRT_DeviceDescription_Kind, device_description,
                             description.device_description);
  info.kind.assign(kind.device_kind, kind.device_kind_size);
  const auto debug = PJRT_ASK(plugin, PJRT_DeviceDescription_DebugString, device_description,
                              description.device_description);
  info.debug_name.assign(debug.debug_string, debug.debug_string_size);
  const auto process = PJRT_ASK(plugin, PJRT_DeviceDescription_ProcessIndex, device_description,
                                description.device_description);
  info.process = process.process_index;
  Args<PJRT_DeviceDescription_Attributes_Args> args;
  args.device_description = description.device_description;
  if (plugin.Gives(&PJRT_Api::PJRT_DeviceDescription_Attributes, args)) {
    info.attributes = FromNamedValues(args.attributes, args.num_attributes);
  }
  Args<PJRT_Device_LocalHardwareId_Args> hardware;
  hardware.device = device;
  const bool has_id = plugin.Gives(&PJRT_Api::PJRT_Device_LocalHardwareId, hardware);
  info.hardware_id = has_id ? hardware.local_hardware_id : index;
  return info;
}

// The plugin's id of the first device of each process, by process index. With a topology only, the
// plugin knows no processes: then each process owns one device, in order.
std::vector<int64_t> ProcessDeviceIds(const PluginLibrary& plugin, PJRT_Client* client,
                                      const ProcessPlace& place, bool are_there) {
  std::vector<int64_t> ids(place.size, -1);
  const auto devices = PJRT_ASK(plugin, PJRT_Client_Devices, client, client);
  for (size_t i = 0; i < devices.num_devices; ++i) {
    const auto description =
        PJRT_ASK(plugin, PJRT_Device_GetDescription, device, devices.devices[i]);
    const auto id = PJRT_ASK(plugin, PJRT_DeviceDescription_Id, device_description,
                             description.device_description);
    const auto process = PJRT_ASK(plugin, PJRT_DeviceDescription_ProcessIndex, device_description,
                                  description.device_description);
    const int64_t owner = are_there ? process.process_index : static_cast<int64_t>(i);
    if (owner < 0 || owner >= place.size) continue;
    int64_t& first = ids[owner];
    if (first < 0 || id.id < first) first = id.id;
  }
  for (int rank = 0; rank < place.size; ++rank) {
    if (ids[rank] >= 0) continue;
    throw Error(PJRT_Error_Code_NOT_FOUND, "The plugin " + plugin.path() + " knows no device of " +
                                               "process " + std::to_string(rank) + " of " +
                                               std::to_string(place.size));
  }
  return ids;
}

void CheckCompileOptions(const ClientImpl& client, const CompileOptions& options) {
  if (options.num_replicas < 1 || options.num_partitions < 1) {
    throw InvalidArgument("A program needs at least one replica and one partition, got " +
                          std::to_string(options.num_replicas) + " and " +
                          std::to_string(options.num_partitions));
  }
  client.CheckDevice(options.device, "CompileOptions");
  if (options.across_processes && client.process_device_ids.empty()) {
    throw InvalidArgument("A program across processes needs a client that was made for several");
  }
}

// The plugin's ids of the devices that a program runs on; empty if the plugin shall choose.
std::vector<int64_t> DeviceIds(const ClientImpl& client, const CompileOptions& options) {
  if (options.across_processes) return client.process_device_ids;
  std::vector<int64_t> ids;
  for (int device : options.partition_devices) ids.push_back(client.device_ids[device]);
  if (!ids.empty()) return ids;
  if (options.num_replicas != 1 || options.num_partitions != 1) return {};
  return {client.device_ids[options.device]};
}

}  // namespace

// ----------------------------------------------------------------------------------- ClientImpl

ClientImpl::ClientImpl(const PluginLibrary& plugin) : plugin(plugin), code(CodeOf(plugin)) {}

ClientImpl::~ClientImpl() {
  if (client == nullptr) return;
  Args<PJRT_Client_Destroy_Args> args;
  args.client = client;
  plugin.Destroy(&PJRT_Api::PJRT_Client_Destroy, args);
}

void ClientImpl::Charge(int device, size_t bytes) {
  Accounting& memory = accounting[device];
  const auto change = static_cast<int64_t>(bytes);
  const int64_t now = memory.in_use.fetch_add(change, std::memory_order_relaxed) + change;
  int64_t peak = memory.peak.load(std::memory_order_relaxed);
  while (now > peak && !memory.peak.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
  }
}

void ClientImpl::Release(int device, size_t bytes) {
  accounting[device].in_use.fetch_sub(static_cast<int64_t>(bytes), std::memory_order_relaxed);
}

void ClientImpl::CheckDevice(int device, const char* what) const {
  if (device < 0 || static_cast<size_t>(device) >= devices.size()) {
    throw InvalidArgument(std::string(what) + ": there is no device " + std::to_string(device) +
                          ", the client has " + std::to_string(devices.size()));
  }
}

int ClientImpl::IndexOf(const PJRT_Device* device) const {
  for (size_t i = 0; i < devices.size(); ++i) {
    if (devices[i] == device) return static_cast<int>(i);
  }
  throw Error(PJRT_Error_Code_INTERNAL,
              "The plugin " + plugin.path() + " returned a device that the client does not own");
}

// --------------------------------------------------------------------------------------- Client

Client::~Client() = default;

bool Client::host_memory() const { return impl_->host_memory; }

bool Client::Forked() { return PluginLibrary::Forked(); }

bool Client::tells_shardings() const {
  return impl_->plugin.Has(&PJRT_Api::PJRT_Executable_OptimizedProgram);
}

bool Client::loads_executables() const {
  return impl_->plugin.Has(&PJRT_Api::PJRT_Executable_DeserializeAndLoad);
}

std::unique_ptr<Client> Client::Create(std::string_view platform, const ProcessPlace* place) {
  PluginSpec spec = FindPlugin(platform);
  const PluginLibrary& library = PluginLibrary::Load(spec.library);
  const PluginLibrary& plugin = spec.topology ? CompileOnly(library, *spec.topology) : library;
  std::unique_ptr<Client> client(new Client);
  client->platform_ = UpperCase(platform);
  client->devices_load_executables_ = library.Has(&PJRT_Api::PJRT_Executable_DeserializeAndLoad) &&
                                      (!spec.topology || spec.options.empty());
  if (IsHost(client->platform_) && !spec.options.contains("cpu_device_count")) {
    try {
      spec.options["cpu_device_count"] = CpuDeviceCount();
    } catch (const std::invalid_argument& error) {
      throw InvalidArgument(error.what());
    }
  }
  // This code is untested, since a test needs several GPUs.
  if (place && IsGpu(client->platform_) && !spec.topology) {
    spec.options["node_id"] = int64_t{place->rank};
    spec.options["num_nodes"] = int64_t{place->size};
    spec.options.try_emplace("visible_devices", std::vector<int64_t>{place->local_rank});
  }
  client->impl_ = std::make_shared<ClientImpl>(plugin);
  ClientImpl& impl = *client->impl_;

  for (const auto& [key, option] : spec.options) {
    client->create_options_ += " " + key + "=" + ToText(option);
  }
  if (place && spec.topology) spec.options[kCompileOnlyRank] = int64_t{place->rank};
  std::vector<PJRT_NamedValue> options;
  for (const auto& [name, option] : spec.options) options.push_back(ToNamedValue(name, option));
  Args<PJRT_Client_Create_Args> create;
  create.create_options = options.data();
  create.num_options = options.size();
  if (place) {
    impl.store = place->store;
    SetStore(create, *impl.store);
  }
  const auto cpus = spec.options.find("cpu_device_count");
  const auto* count = cpus == spec.options.end() ? nullptr : std::get_if<int64_t>(&cpus->second);
  const CpuThreads threads(count ? *count : 1);
  if (PJRT_Error* error = PJRT_TRY_CALL(plugin, PJRT_Client_Create, create)) {
    plugin.Throw(error, "Cannot create a client of platform " + client->platform_ + " with " +
                            plugin.path());
  }
  impl.client = create.client;
  PluginLibrary::WatchForks();

  const auto name = PJRT_ASK(plugin, PJRT_Client_PlatformName, client, impl.client);
  client->platform_name_.assign(name.platform_name, name.platform_name_size);
  impl.host_memory = IsHost(UpperCase(client->platform_name_));
  if (impl.host_memory && !spec.topology) {
    KeepFreedMemory(CodeOf(plugin));
  }
  client->version_ = client->platform_name_ + " " + PlatformVersion(plugin, impl.client) +
                     " pjrt=" + plugin.ApiVersion() + " build=" + plugin.Fingerprint() +
                     PluginAttributes(plugin);

  const auto devices = PJRT_ASK(plugin, PJRT_Client_AddressableDevices, client, impl.client);
  if (devices.num_addressable_devices == 0) {
    throw Error(PJRT_Error_Code_NOT_FOUND,
                "Platform " + client->platform_ + " (" + plugin.path() + ") has no device");
  }
  impl.devices.assign(devices.addressable_devices,
                      devices.addressable_devices + devices.num_addressable_devices);
  impl.accounting = std::make_unique<ClientImpl::Accounting[]>(impl.devices.size());
  for (size_t i = 0; i < impl.devices.size(); ++i) {
    client->devices_.push_back(DescribeDevice(plugin, impl.devices[i], static_cast<int>(i)));
    impl.device_ids.push_back(client->devices_.back().id);
  }
  if (place) {
    impl.process_device_ids = ProcessDeviceIds(plugin, impl.client, *place, !spec.topology);
  }
  GiveBackCode(CodeOf(plugin));
  return client;
}

std::unique_ptr<Buffer> Client::BufferFromHost(const void* data, ElementType type,
                                               std::span<const int64_t> dims, int device,
                                               std::function<void()> on_done, bool zero_copy) {
  return impl_->BufferFromHost(data, type, dims, device, std::move(on_done), zero_copy);
}

std::unique_ptr<Executable> Client::Compile(std::string_view stablehlo,
                                            const CompileOptions& options) {
  if (stablehlo.empty()) throw InvalidArgument("The program to compile is empty");
  CheckCompileOptions(*impl_, options);
  // A program that declares a mesh of Shardy is Shardy's to partition.
  const bool shardy = stablehlo.find("sdy.mesh @") != std::string_view::npos;
  const std::string encoded = EncodeCompileOptions(options, DeviceIds(*impl_, options), shardy);
  static constexpr std::string_view kFormat = "mlir";
  Args<PJRT_Program> program;
  program.code = const_cast<char*>(stablehlo.data());  // the plugin only reads it
  program.code_size = stablehlo.size();
  program.format = kFormat.data();
  program.format_size = kFormat.size();
  Args<PJRT_Client_Compile_Args> args;
  args.client = impl_->client;
  args.program = &program;
  args.compile_options = encoded.data();
  args.compile_options_size = encoded.size();
  const auto start = std::chrono::steady_clock::now();
  if (PJRT_Error* error = PJRT_TRY_CALL(impl_->plugin, PJRT_Client_Compile, args)) {
    impl_->plugin.Throw(error, "Compiling the program failed");
  }
  impl_->code.Worked(std::chrono::steady_clock::now() - start);
  // Attribute names appear verbatim both in MLIR text and in bytecode.
  const bool may_donate = stablehlo.find("tf.aliasing_output") != std::string_view::npos ||
                          stablehlo.find("jax.buffer_donor") != std::string_view::npos ||
                          stablehlo.find("mhlo.input_output_alias") != std::string_view::npos;
  return std::make_unique<Executable>(impl_, args.executable, may_donate);
}

std::unique_ptr<Executable> Client::Deserialize(std::string_view serialized,
                                                const CompileOptions& options) {
  if (serialized.empty()) throw InvalidArgument("The serialized executable is empty");
  CheckCompileOptions(*impl_, options);
  const std::string encoded = EncodeCompileOptions(options, DeviceIds(*impl_, options));
  Args<PJRT_Executable_DeserializeAndLoad_Args> args;
  args.client = impl_->client;
  args.serialized_executable = serialized.data();
  args.serialized_executable_size = serialized.size();
  args.overridden_serialized_compile_options = encoded.data();
  args.overridden_serialized_compile_options_size = encoded.size();
  const auto start = std::chrono::steady_clock::now();
  if (PJRT_Error* error = PJRT_TRY_CALL(impl_->plugin, PJRT_Executable_DeserializeAndLoad, args)) {
    impl_->plugin.Throw(error, "Loading a serialized executable failed");
  }
  // Loading an executable takes less time than compiling as much code.
  impl_->code.Worked(4 * (std::chrono::steady_clock::now() - start));
  return std::make_unique<Executable>(impl_, args.loaded_executable, /*may_donate=*/true);
}

std::string Client::CompileKey(const CompileOptions& options) const {
  CheckCompileOptions(*impl_, options);
  std::string key = "plugin: " + platform_ + " " + version_ + "\nclient:" + create_options_ + "\n";
  for (const DeviceInfo& device : devices_) {
    key += "device: " + std::to_string(device.id) + " " + device.kind + "\n";
  }
  key += "processes: " + std::to_string(impl_->process_device_ids.size()) + "\n";
  for (const char* name : {"XLA_FLAGS", "LIBTPU_INIT_ARGS"}) {
    const char* flags = std::getenv(name);
    if (flags == nullptr) continue;
    key.append(name).append("=").append(flags).append("\n");
    // A value that does not begin with a dash is the name of a file of flags.
    std::ifstream file;
    if (*flags != '-') file.open(flags);
    if (file.is_open()) {
      std::ostringstream content;
      content << file.rdbuf();
      key.append(content.str()).append("\n");
    }
  }
  if (host_memory()) key += "processor: " + HostProcessor() + "\n";
  return key + "options: " + EncodeCompileOptions(options, DeviceIds(*impl_, options));
}

MemoryInfo Client::memory(int device) const {
  impl_->CheckDevice(device, "memory");
  const ClientImpl::Accounting& own = impl_->accounting[device];
  MemoryInfo info;
  info.in_use = own.in_use.load(std::memory_order_relaxed);
  info.peak = own.peak.load(std::memory_order_relaxed);
  Args<PJRT_Device_MemoryStats_Args> args;
  args.device = impl_->devices[device];
  if (!impl_->plugin.Gives(&PJRT_Api::PJRT_Device_MemoryStats, args)) return info;
  info.in_use = args.bytes_in_use;
  if (args.peak_bytes_in_use_is_set) {
    const bool exceeded = args.peak_bytes_in_use > own.plugin_peak_then.load();
    info.peak = exceeded ? args.peak_bytes_in_use : std::max(info.peak, info.in_use);
  }
  if (args.bytes_limit_is_set) info.limit = args.bytes_limit;
  return info;
}

void Client::ResetPeakMemory(int device) {
  impl_->CheckDevice(device, "reset_peak_memory_stats");
  ClientImpl::Accounting& own = impl_->accounting[device];
  own.peak.store(own.in_use.load(std::memory_order_relaxed), std::memory_order_relaxed);
  Args<PJRT_Device_MemoryStats_Args> args;
  args.device = impl_->devices[device];
  if (impl_->plugin.Gives(&PJRT_Api::PJRT_Device_MemoryStats, args) &&
      args.peak_bytes_in_use_is_set) {
    own.plugin_peak_then.store(args.peak_bytes_in_use);
  }
}

}  // namespace torch_xla::runtime
