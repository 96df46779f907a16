#include "runtime/compile_only.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "runtime/errors.h"
#include "runtime/partitioner_abi.h"
#include "runtime/proto_reader.h"

namespace torch_xla::runtime {
namespace pjrt {

// The objects behind the handles of this function table. Device descriptions and bare executables
// are the compiler's own.

struct PJRT_Device {
  PJRT_DeviceDescription* description;
};

struct PJRT_Client {
  PJRT_TopologyDescription* topology = nullptr;
  std::vector<PJRT_Device> devices;
  std::vector<PJRT_Device*> handles;  // of all devices
  std::vector<PJRT_Device*> own;  // all devices; with several processes only this process's device
};

struct PJRT_Buffer {
  PJRT_Buffer_Type type;
  std::vector<int64_t> dims;
};

struct PJRT_LoadedExecutable {
  PJRT_Executable* executable = nullptr;
  std::vector<PJRT_Device*> devices;
  std::vector<PJRT_Buffer> results;  // of one device
};

}  // namespace pjrt

namespace {

using namespace pjrt;

struct Compiler {
  const PluginLibrary& plugin;
  std::string topology;
};
const Compiler* g_compiler = nullptr;  // set once, before any function of the table is called

const PJRT_Api& Table() { return g_compiler->plugin.api(); }

// ---------------------------------------------------------------------------------------- errors

// The table returns its own errors as PJRT_Error*, like the compiler's errors. This set tells which
// ones are its own.
struct OwnErrors {
  std::mutex mutex;
  std::set<const void*> live;
};

OwnErrors& Own() {
  static auto& errors = *new OwnErrors;
  return errors;
}

PJRT_Error* Fail(PJRT_Error_Code code, std::string message) {
  auto* error = new Error(code, message);
  std::lock_guard lock(Own().mutex);
  Own().live.insert(error);
  return reinterpret_cast<PJRT_Error*>(error);
}

const Error* AsOwn(const PJRT_Error* error) {
  std::lock_guard lock(Own().mutex);
  return Own().live.contains(error) ? reinterpret_cast<const Error*>(error) : nullptr;
}

void DestroyError(PJRT_Error_Destroy_Args* args) {
  const Error* own = AsOwn(args->error);
  if (own == nullptr) return Table().PJRT_Error_Destroy(args);
  {
    std::lock_guard lock(Own().mutex);
    Own().live.erase(own);
  }
  delete own;
}

void ErrorMessage(PJRT_Error_Message_Args* args) {
  const Error* own = AsOwn(args->error);
  if (own == nullptr) return Table().PJRT_Error_Message(args);
  args->message = own->what();
  args->message_size = std::strlen(own->what());
}

PJRT_Error* ErrorCode(PJRT_Error_GetCode_Args* args) {
  const Error* own = AsOwn(args->error);
  if (own == nullptr) return Table().PJRT_Error_GetCode(args);
  args->code = static_cast<PJRT_Error_Code>(own->code());
  return nullptr;
}

// --------------------------------------------------------------------------------------- clients

PJRT_Error* DestroyClient(PJRT_Client_Destroy_Args* args) {
  const std::unique_ptr<PJRT_Client> client(args->client);
  Args<PJRT_TopologyDescription_Destroy_Args> destroy;
  destroy.topology = client->topology;
  return Table().PJRT_TopologyDescription_Destroy(&destroy);
}

PJRT_Error* CreateClient(PJRT_Client_Create_Args* args) {
  Args<PJRT_TopologyDescription_Create_Args> create;
  create.topology_name = g_compiler->topology.data();
  create.topology_name_size = g_compiler->topology.size();
  std::vector<PJRT_NamedValue> options;
  std::optional<int64_t> rank;
  for (size_t i = 0; i < args->num_options; ++i) {
    const PJRT_NamedValue& option = args->create_options[i];
    if (std::string_view(option.name, option.name_size) == kCompileOnlyRank) {
      rank = option.value.int64_value;
    } else {
      options.push_back(option);
    }
  }
  create.create_options = options.data();
  create.num_options = options.size();
  if (PJRT_Error* error = Table().PJRT_TopologyDescription_Create(&create)) return error;
  auto client = std::make_unique<PJRT_Client>();
  client->topology = create.topology;
  Args<PJRT_TopologyDescription_GetDeviceDescriptions_Args> devices;
  devices.topology = create.topology;
  if (PJRT_Error* error = Table().PJRT_TopologyDescription_GetDeviceDescriptions(&devices)) {
    return error;
  }
  for (size_t i = 0; i < devices.num_descriptions; ++i) {
    client->devices.push_back({devices.descriptions[i]});
  }
  for (PJRT_Device& device : client->devices) client->handles.push_back(&device);
  client->own = client->handles;
  if (rank) {
    const bool exists = *rank >= 0 && *rank < static_cast<int64_t>(client->handles.size());
    client->own = exists ? std::vector{client->handles[*rank]} : std::vector<PJRT_Device*>{};
  }
  args->client = client.release();
  return nullptr;
}

PJRT_Error* PlatformName(PJRT_Client_PlatformName_Args* args) {
  Args<PJRT_TopologyDescription_PlatformName_Args> name;
  name.topology = args->client->topology;
  PJRT_Error* error = Table().PJRT_TopologyDescription_PlatformName(&name);
  args->platform_name = name.platform_name;
  args->platform_name_size = name.platform_name_size;
  return error;
}

PJRT_Error* TopologyOf(PJRT_Client_TopologyDescription_Args* args) {
  args->topology = args->client->topology;
  return nullptr;
}

PJRT_Error* AddressableDevices(PJRT_Client_AddressableDevices_Args* args) {
  args->addressable_devices = args->client->own.data();
  args->num_addressable_devices = args->client->own.size();
  return nullptr;
}

PJRT_Error* AllDevices(PJRT_Client_Devices_Args* args) {
  args->devices = args->client->handles.data();
  args->num_devices = args->client->handles.size();
  return nullptr;
}

PJRT_Error* GetDescription(PJRT_Device_GetDescription_Args* args) {
  args->device_description = args->device->description;
  return nullptr;
}

// --------------------------------------------------------------------------------------- buffers

PJRT_Error* BufferFromHost(PJRT_Client_BufferFromHostBuffer_Args* args) {
  args->buffer = new PJRT_Buffer{args->type, {args->dims, args->dims + args->num_dims}};
  args->done_with_host_buffer = nullptr;
  return nullptr;
}

PJRT_Error* DestroyBuffer(PJRT_Buffer_Destroy_Args* args) {
  delete args->buffer;
  return nullptr;
}

PJRT_Error* ElementTypeOf(PJRT_Buffer_ElementType_Args* args) {
  args->type = args->buffer->type;
  return nullptr;
}

PJRT_Error* DimensionsOf(PJRT_Buffer_Dimensions_Args* args) {
  args->dims = args->buffer->dims.data();
  args->num_dims = args->buffer->dims.size();
  return nullptr;
}

// The runtime does not look at a donated array again.
PJRT_Error* IsDeleted(PJRT_Buffer_IsDeleted_Args* args) {
  args->is_deleted = false;
  return nullptr;
}

PJRT_Error* ReadyEvent(PJRT_Buffer_ReadyEvent_Args* args) {
  args->event = nullptr;  // an Event of null is ready
  return nullptr;
}

PJRT_Error* ToHost(PJRT_Buffer_ToHostBuffer_Args* /*args*/) {
  return Fail(PJRT_Error_Code_FAILED_PRECONDITION,
              "the value of a tensor was read, but the device is for compiling only: its tensors "
              "have shapes and no values (unset XLA_TOPOLOGY to run on real devices)");
}

// ----------------------------------------------------------------------------------- executables

struct DeviceRange {
  size_t first = 0, count = 1;
};

// The devices that a program is compiled for. CompileOptionsProto: executable_build_options = 3,
// with device_ordinal = 1 (for a program on one device), num_replicas = 4, num_partitions = 5.
DeviceRange DevicesOf(std::string_view options) {
  size_t ordinal = 0, replicas = 1, partitions = 1;
  ProtoReader reader(options);
  while (reader.Next()) {
    if (!reader.IsBytes(3)) continue;
    ProtoReader build(reader.bytes());
    while (build.Next()) {
      if (build.IsInteger(1)) ordinal = build.value();
      if (build.IsInteger(4)) replicas = build.value();
      if (build.IsInteger(5)) partitions = build.value();
    }
  }
  const size_t count = replicas * partitions;
  return {count == 1 ? ordinal : 0, count};
}

PJRT_Error* ReadResults(PJRT_LoadedExecutable& loaded) {
  Args<PJRT_Executable_OutputElementTypes_Args> types;
  types.executable = loaded.executable;
  if (PJRT_Error* error = Table().PJRT_Executable_OutputElementTypes(&types)) return error;
  Args<PJRT_Executable_OutputDimensions_Args> dims;
  dims.executable = loaded.executable;
  if (PJRT_Error* error = Table().PJRT_Executable_OutputDimensions(&dims)) return error;
  const int64_t* next = dims.dims;
  for (size_t i = 0; i < types.num_output_types; ++i) {
    const int64_t* end = next + dims.dim_sizes[i];
    loaded.results.push_back({types.output_types[i], {next, end}});
    next = end;
  }
  return nullptr;
}

PJRT_Error* DestroyLoaded(PJRT_LoadedExecutable_Destroy_Args* args) {
  Args<PJRT_Executable_Destroy_Args> destroy;
  destroy.executable = args->executable->executable;
  delete args->executable;
  return Table().PJRT_Executable_Destroy(&destroy);
}

PJRT_Error* Compile(PJRT_Client_Compile_Args* args) {
  Args<PJRT_Compile_Args> compile;
  compile.topology = args->client->topology;
  compile.program = args->program;
  compile.compile_options = args->compile_options;
  compile.compile_options_size = args->compile_options_size;
  if (PJRT_Error* error = Table().PJRT_Compile(&compile)) return error;
  auto loaded = std::make_unique<PJRT_LoadedExecutable>();
  loaded->executable = compile.executable;
  const std::string_view options(args->compile_options, args->compile_options_size);
  const std::vector<PJRT_Device*>& all = args->client->own;
  const auto [first, count] = DevicesOf(options);
  if (PJRT_Error* error = ReadResults(*loaded)) {
    Args<PJRT_LoadedExecutable_Destroy_Args> destroy;
    destroy.executable = loaded.release();
    DestroyLoaded(&destroy);
    return error;
  }
  for (size_t i = first; i < first + count && i < all.size(); ++i) {
    loaded->devices.push_back(all[i]);
  }
  args->executable = loaded.release();
  return nullptr;
}

PJRT_Error* GetExecutable(PJRT_LoadedExecutable_GetExecutable_Args* args) {
  args->executable = args->loaded_executable->executable;
  return nullptr;
}

// It is destroyed together with the loaded executable.
PJRT_Error* DestroyExecutable(PJRT_Executable_Destroy_Args* /*args*/) { return nullptr; }

PJRT_Error* ExecutableDevices(PJRT_LoadedExecutable_AddressableDevices_Args* args) {
  args->addressable_devices = args->executable->devices.data();
  args->num_addressable_devices = args->executable->devices.size();
  return nullptr;
}

PJRT_Error* Execute(PJRT_LoadedExecutable_Execute_Args* args) {
  for (size_t d = 0; d < args->num_devices; ++d) {
    const std::vector<PJRT_Buffer>& results = args->executable->results;
    for (size_t i = 0; i < results.size(); ++i) {
      args->output_lists[d][i] = new PJRT_Buffer(results[i]);
    }
  }
  return nullptr;
}

// ---------------------------------------------------------------------------------------- table

PJRT_Api MakeTable(const PJRT_Api& own) {
  PJRT_Api table{};
  table.struct_size = own.struct_size;
  table.pjrt_api_version = own.pjrt_api_version;
  // Custom calls are registered with the compiler; all other extensions need devices.
  for (auto* extension = own.extension_start; extension; extension = extension->next) {
    if (extension->type != PJRT_Extension_Type_FFI &&
        extension->type != kCustomPartitionerExtension) {
      continue;
    }
    auto* copy = static_cast<PJRT_Extension_Base*>(std::malloc(extension->struct_size));
    std::memcpy(copy, extension, extension->struct_size);
    copy->next = table.extension_start;
    table.extension_start = copy;
  }
  table.PJRT_Error_Destroy = DestroyError;
  table.PJRT_Error_Message = ErrorMessage;
  table.PJRT_Error_GetCode = ErrorCode;
  table.PJRT_Plugin_Attributes = own.PJRT_Plugin_Attributes;
  table.PJRT_Client_Create = CreateClient;
  table.PJRT_Client_Destroy = DestroyClient;
  table.PJRT_Client_PlatformName = PlatformName;
  table.PJRT_Client_TopologyDescription = TopologyOf;
  table.PJRT_TopologyDescription_PlatformVersion = own.PJRT_TopologyDescription_PlatformVersion;
  table.PJRT_Client_Devices = AllDevices;
  table.PJRT_Client_AddressableDevices = AddressableDevices;
  table.PJRT_Client_Compile = Compile;
  table.PJRT_Client_BufferFromHostBuffer = BufferFromHost;
  table.PJRT_DeviceDescription_Id = own.PJRT_DeviceDescription_Id;
  table.PJRT_DeviceDescription_ProcessIndex = own.PJRT_DeviceDescription_ProcessIndex;
  table.PJRT_DeviceDescription_Attributes = own.PJRT_DeviceDescription_Attributes;
  table.PJRT_DeviceDescription_Kind = own.PJRT_DeviceDescription_Kind;
  table.PJRT_DeviceDescription_DebugString = own.PJRT_DeviceDescription_DebugString;
  table.PJRT_Device_GetDescription = GetDescription;
  table.PJRT_Executable_Destroy = DestroyExecutable;
  table.PJRT_Executable_Name = own.PJRT_Executable_Name;
  table.PJRT_Executable_NumOutputs = own.PJRT_Executable_NumOutputs;
  table.PJRT_Executable_GetCostAnalysis = own.PJRT_Executable_GetCostAnalysis;
  table.PJRT_Executable_OptimizedProgram = own.PJRT_Executable_OptimizedProgram;
  table.PJRT_Executable_Serialize = own.PJRT_Executable_Serialize;
  table.PJRT_Executable_OutputElementTypes = own.PJRT_Executable_OutputElementTypes;
  table.PJRT_Executable_OutputDimensions = own.PJRT_Executable_OutputDimensions;
  table.PJRT_Executable_GetCompiledMemoryStats = own.PJRT_Executable_GetCompiledMemoryStats;
  table.PJRT_Executable_ParameterMemoryKinds = own.PJRT_Executable_ParameterMemoryKinds;
  table.PJRT_LoadedExecutable_Destroy = DestroyLoaded;
  table.PJRT_LoadedExecutable_GetExecutable = GetExecutable;
  table.PJRT_LoadedExecutable_AddressableDevices = ExecutableDevices;
  table.PJRT_LoadedExecutable_Execute = Execute;
  table.PJRT_Buffer_Destroy = DestroyBuffer;
  table.PJRT_Buffer_ElementType = ElementTypeOf;
  table.PJRT_Buffer_Dimensions = DimensionsOf;
  table.PJRT_Buffer_IsDeleted = IsDeleted;
  table.PJRT_Buffer_ReadyEvent = ReadyEvent;
  table.PJRT_Buffer_ToHostBuffer = ToHost;
  return table;
}

}  // namespace

const PluginLibrary& CompileOnly(const PluginLibrary& compiler, const std::string& topology) {
  static auto& mutex = *new std::mutex;
  static const PluginLibrary* made = nullptr;
  std::lock_guard lock(mutex);
  if (made != nullptr) {
    if (&g_compiler->plugin == &compiler && g_compiler->topology == topology) return *made;
    throw InvalidArgument("This process compiles for the topology " + g_compiler->topology +
                          " already and cannot use another one");
  }
  if (!compiler.Has(&PJRT_Api::PJRT_TopologyDescription_Create) ||
      !compiler.Has(&PJRT_Api::PJRT_Compile)) {
    throw Error(PJRT_Error_Code_UNIMPLEMENTED, "The PJRT plugin " + compiler.path() + " (API " +
                                                   compiler.ApiVersion() +
                                                   ") cannot compile without a device");
  }
  g_compiler = new Compiler{compiler, topology};
  made = &PluginLibrary::Over(compiler, MakeTable(compiler.api()));
  return *made;
}

}  // namespace torch_xla::runtime
