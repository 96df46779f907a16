// The part of the PJRT C ABI that this runtime uses, declared from the published numbers. Names,
// field order and slot order are the ABI's own. tests/python/runtime/test_pjrt_abi.py compares
// every size, offset, slot and enumerator below with the tables of the PyPI package `pypjrt`.
//
// Keep one field per line: the test reads this file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace torch_xla::runtime::pjrt {

inline constexpr int kApiMajor = 0;
/// The function table was reordered in 0.57; before that version no slot can be trusted.
inline constexpr int kOldestApiMinor = 57;

struct PJRT_Error;
struct PJRT_Event;
struct PJRT_Client;
struct PJRT_Device;
struct PJRT_DeviceDescription;
struct PJRT_Memory;
struct PJRT_Buffer;
struct PJRT_Executable;
struct PJRT_LoadedExecutable;
struct PJRT_SerializedExecutable;
struct PJRT_ExecuteContext;
struct PJRT_TopologyDescription;
struct PLUGIN_Profiler;
struct PLUGIN_Profiler_Error;

/// The value for `struct_size` of a struct that is no argument (see Args): the ABI counts up to the
/// end of the last field, without the padding that sizeof adds.
template <typename T>
inline constexpr size_t kStructSize = T::has_no_declared_size;
#define PJRT_STRUCT_SIZE(type, last_field)    \
  template <>                                 \
  inline constexpr size_t kStructSize<type> = \
      offsetof(type, last_field) + sizeof(type::last_field)

enum PJRT_Extension_Type : uint32_t {
  PJRT_Extension_Type_Profiler = 1,
  PJRT_Extension_Type_Stream = 3,
  PJRT_Extension_Type_FFI = 5,
};

struct PJRT_Extension_Base {
  size_t struct_size;
  PJRT_Extension_Type type;
  PJRT_Extension_Base* next;
};

/// The first fields of the arguments of a function.
struct ArgsHeader {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
};

struct PJRT_Api_Version {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  int major_version;
  int minor_version;
};

// ------------------------------------------------------------------------------------ errors

enum PJRT_Error_Code : uint32_t {
  PJRT_Error_Code_CANCELLED = 1,
  PJRT_Error_Code_UNKNOWN = 2,
  PJRT_Error_Code_INVALID_ARGUMENT = 3,
  PJRT_Error_Code_DEADLINE_EXCEEDED = 4,
  PJRT_Error_Code_NOT_FOUND = 5,
  PJRT_Error_Code_ALREADY_EXISTS = 6,
  PJRT_Error_Code_PERMISSION_DENIED = 7,
  PJRT_Error_Code_RESOURCE_EXHAUSTED = 8,
  PJRT_Error_Code_FAILED_PRECONDITION = 9,
  PJRT_Error_Code_ABORTED = 10,
  PJRT_Error_Code_OUT_OF_RANGE = 11,
  PJRT_Error_Code_UNIMPLEMENTED = 12,
  PJRT_Error_Code_INTERNAL = 13,
  PJRT_Error_Code_UNAVAILABLE = 14,
  PJRT_Error_Code_DATA_LOSS = 15,
  PJRT_Error_Code_UNAUTHENTICATED = 16,
};

struct PJRT_Error_Destroy_Args : ArgsHeader {
  PJRT_Error* error;
};

struct PJRT_Error_Message_Args : ArgsHeader {
  const PJRT_Error* error;
  const char* message;
  size_t message_size;
};

struct PJRT_Error_GetCode_Args : ArgsHeader {
  const PJRT_Error* error;
  PJRT_Error_Code code;
};

// ---------------------------------------------------------------------------------------- plugin

enum PJRT_NamedValue_Type : uint32_t {
  PJRT_NamedValue_kString = 0,
  PJRT_NamedValue_kInt64 = 1,
  PJRT_NamedValue_kInt64List = 2,
  PJRT_NamedValue_kFloat = 3,
  PJRT_NamedValue_kBool = 4,
};

union PJRT_NamedValue_Value {
  const char* string_value;
  int64_t int64_value;
  const int64_t* int64_array_value;
  float float_value;
  bool bool_value;
};

struct PJRT_NamedValue {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  const char* name;
  size_t name_size;
  PJRT_NamedValue_Type type;
  PJRT_NamedValue_Value value;
  size_t value_size;
};
PJRT_STRUCT_SIZE(PJRT_NamedValue, value_size);

struct PJRT_Plugin_Initialize_Args : ArgsHeader {};

struct PJRT_Plugin_Attributes_Args : ArgsHeader {
  const PJRT_NamedValue* attributes;
  size_t num_attributes;
};

// ---------------------------------------------------------------------------------------- events

struct PJRT_Event_Destroy_Args : ArgsHeader {
  PJRT_Event* event;
};

struct PJRT_Event_IsReady_Args : ArgsHeader {
  PJRT_Event* event;
  bool is_ready;
};

struct PJRT_Event_Await_Args : ArgsHeader {
  PJRT_Event* event;
};

struct PJRT_Event_OnReady_Args : ArgsHeader {
  PJRT_Event* event;
  void (*callback)(PJRT_Error* error, void* user_arg);
  void* user_arg;
};

// ---------------------------------------------------------------------------- client and devices

// The plugin passes this function to a callback, which calls it to make an error.
using PJRT_CallbackError = PJRT_Error* (*)(PJRT_Error_Code code, const char* message,
                                           size_t message_size);

struct PJRT_KeyValueGetCallback_Args : ArgsHeader {
  const char* key;
  size_t key_size;
  int timeout_in_ms;
  PJRT_CallbackError* callback_error;
  void* user_arg;
  char* value;
  size_t value_size;
  void (*value_deleter_callback)(char* value);
};

struct PJRT_KeyValueTryGetCallback_Args : ArgsHeader {
  const char* key;
  size_t key_size;
  PJRT_CallbackError* callback_error;
  void* user_arg;
  char* value;
  size_t value_size;
  void (*value_deleter_callback)(char* value);
};

struct PJRT_KeyValuePutCallback_Args : ArgsHeader {
  const char* key;
  size_t key_size;
  const char* value;
  size_t value_size;
  PJRT_CallbackError* callback_error;
  void* user_arg;
};

struct PJRT_Client_Create_Args : ArgsHeader {
  const PJRT_NamedValue* create_options;
  size_t num_options;
  PJRT_Error* (*kv_get_callback)(PJRT_KeyValueGetCallback_Args* args);
  void* kv_get_user_arg;
  PJRT_Error* (*kv_put_callback)(PJRT_KeyValuePutCallback_Args* args);
  void* kv_put_user_arg;
  PJRT_Client* client;
  PJRT_Error* (*kv_try_get_callback)(PJRT_KeyValueTryGetCallback_Args* args);
  void* kv_try_get_user_arg;
};

struct PJRT_Client_Destroy_Args : ArgsHeader {
  PJRT_Client* client;
};

struct PJRT_Client_PlatformName_Args : ArgsHeader {
  PJRT_Client* client;
  const char* platform_name;
  size_t platform_name_size;
};

struct PJRT_Client_PlatformVersion_Args : ArgsHeader {
  PJRT_Client* client;
  const char* platform_version;
  size_t platform_version_size;
};

struct PJRT_Client_Devices_Args : ArgsHeader {
  PJRT_Client* client;
  PJRT_Device* const* devices;
  size_t num_devices;
};

struct PJRT_Client_AddressableDevices_Args : ArgsHeader {
  PJRT_Client* client;
  PJRT_Device* const* addressable_devices;
  size_t num_addressable_devices;
};

struct PJRT_DeviceDescription_Id_Args : ArgsHeader {
  PJRT_DeviceDescription* device_description;
  int id;
};

struct PJRT_DeviceDescription_ProcessIndex_Args : ArgsHeader {
  PJRT_DeviceDescription* device_description;
  int process_index;
};

struct PJRT_DeviceDescription_Attributes_Args : ArgsHeader {
  PJRT_DeviceDescription* device_description;
  size_t num_attributes;
  const PJRT_NamedValue* attributes;
};

struct PJRT_DeviceDescription_Kind_Args : ArgsHeader {
  PJRT_DeviceDescription* device_description;
  const char* device_kind;
  size_t device_kind_size;
};

struct PJRT_DeviceDescription_DebugString_Args : ArgsHeader {
  PJRT_DeviceDescription* device_description;
  const char* debug_string;
  size_t debug_string_size;
};

struct PJRT_Device_GetDescription_Args : ArgsHeader {
  PJRT_Device* device;
  PJRT_DeviceDescription* device_description;
};

struct PJRT_Device_LocalHardwareId_Args : ArgsHeader {
  PJRT_Device* device;
  int local_hardware_id;
};

struct PJRT_Device_DefaultMemory_Args : ArgsHeader {
  PJRT_Device* device;
  PJRT_Memory* memory;
};

struct PJRT_Device_MemoryStats_Args : ArgsHeader {
  PJRT_Device* device;
  int64_t bytes_in_use;
  int64_t peak_bytes_in_use;
  bool peak_bytes_in_use_is_set;
  int64_t num_allocs;
  bool num_allocs_is_set;
  int64_t largest_alloc_size;
  bool largest_alloc_size_is_set;
  int64_t bytes_limit;
  bool bytes_limit_is_set;
  int64_t bytes_reserved;
  bool bytes_reserved_is_set;
  int64_t peak_bytes_reserved;
  bool peak_bytes_reserved_is_set;
  int64_t bytes_reservable_limit;
  bool bytes_reservable_limit_is_set;
  int64_t largest_free_block_bytes;
  bool largest_free_block_bytes_is_set;
  int64_t pool_bytes;
  bool pool_bytes_is_set;
  int64_t peak_pool_bytes;
  bool peak_pool_bytes_is_set;
  int64_t peak_allocated_bytes;
  bool peak_allocated_bytes_is_set;
};

// --------------------------------------------------------------------------------------- buffers

enum PJRT_Buffer_Type : uint32_t {
  PJRT_Buffer_Type_INVALID = 0,
  PJRT_Buffer_Type_PRED = 1,
  PJRT_Buffer_Type_S8 = 2,
  PJRT_Buffer_Type_S16 = 3,
  PJRT_Buffer_Type_S32 = 4,
  PJRT_Buffer_Type_S64 = 5,
  PJRT_Buffer_Type_U8 = 6,
  PJRT_Buffer_Type_U16 = 7,
  PJRT_Buffer_Type_U32 = 8,
  PJRT_Buffer_Type_U64 = 9,
  PJRT_Buffer_Type_F16 = 10,
  PJRT_Buffer_Type_F32 = 11,
  PJRT_Buffer_Type_F64 = 12,
  PJRT_Buffer_Type_BF16 = 13,
  PJRT_Buffer_Type_C64 = 14,
  PJRT_Buffer_Type_C128 = 15,
  PJRT_Buffer_Type_F8E5M2 = 16,
  PJRT_Buffer_Type_F8E4M3FN = 17,
  PJRT_Buffer_Type_F8E5M2FNUZ = 19,
  PJRT_Buffer_Type_F8E4M3FNUZ = 20,
  PJRT_Buffer_Type_TOKEN = 23,
  PJRT_Buffer_Type_F8E8M0FNU = 28,
};

enum PJRT_HostBufferSemantics : uint32_t {
  PJRT_HostBufferSemantics_kImmutableOnlyDuringCall = 0,
  PJRT_HostBufferSemantics_kImmutableUntilTransferCompletes = 1,
  PJRT_HostBufferSemantics_kImmutableZeroCopy = 2,
};

enum PJRT_Buffer_MemoryLayout_Type : uint32_t {
  PJRT_Buffer_MemoryLayout_Type_Tiled = 0,
  PJRT_Buffer_MemoryLayout_Type_Strides = 1,
};

struct PJRT_Buffer_MemoryLayout_Tiled {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  const int64_t* minor_to_major;
  size_t minor_to_major_size;
  const int64_t* tile_dims;
  const size_t* tile_dim_sizes;
  size_t num_tiles;
};
PJRT_STRUCT_SIZE(PJRT_Buffer_MemoryLayout_Tiled, num_tiles);

struct PJRT_Buffer_MemoryLayout_Strides {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  const int64_t* byte_strides;
  size_t num_byte_strides;
};

union PJRT_Buffer_MemoryLayout_Value {
  PJRT_Buffer_MemoryLayout_Tiled tiled;
  PJRT_Buffer_MemoryLayout_Strides strides;
};

struct PJRT_Buffer_MemoryLayout {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Buffer_MemoryLayout_Value layout;
  PJRT_Buffer_MemoryLayout_Type type;
};
PJRT_STRUCT_SIZE(PJRT_Buffer_MemoryLayout, type);

struct PJRT_Client_BufferFromHostBuffer_Args : ArgsHeader {
  PJRT_Client* client;
  const void* data;
  PJRT_Buffer_Type type;
  const int64_t* dims;
  size_t num_dims;
  const int64_t* byte_strides;
  size_t num_byte_strides;
  PJRT_HostBufferSemantics host_buffer_semantics;
  PJRT_Device* device;
  PJRT_Memory* memory;
  PJRT_Buffer_MemoryLayout* device_layout;
  PJRT_Event* done_with_host_buffer;
  PJRT_Buffer* buffer;
};

struct PJRT_Buffer_Destroy_Args : ArgsHeader {
  PJRT_Buffer* buffer;
};

struct PJRT_Buffer_ElementType_Args : ArgsHeader {
  PJRT_Buffer* buffer;
  PJRT_Buffer_Type type;
};

struct PJRT_Buffer_Dimensions_Args : ArgsHeader {
  PJRT_Buffer* buffer;
  const int64_t* dims;
  size_t num_dims;
};

struct PJRT_Buffer_GetMemoryLayout_Args : ArgsHeader {
  PJRT_Buffer* buffer;
  PJRT_Buffer_MemoryLayout layout;
};

struct PJRT_Buffer_Device_Args : ArgsHeader {
  PJRT_Buffer* buffer;
  PJRT_Device* device;
};

struct PJRT_Buffer_IsDeleted_Args : ArgsHeader {
  PJRT_Buffer* buffer;
  bool is_deleted;
};

struct PJRT_Buffer_CopyToMemory_Args : ArgsHeader {
  PJRT_Buffer* buffer;
  PJRT_Memory* dst_memory;
  PJRT_Buffer* dst_buffer;
};

struct PJRT_Buffer_ToHostBuffer_Args : ArgsHeader {
  PJRT_Buffer* src;
  PJRT_Buffer_MemoryLayout* host_layout;
  void* dst;
  size_t dst_size;
  PJRT_Event* event;
};

struct PJRT_Buffer_ReadyEvent_Args : ArgsHeader {
  PJRT_Buffer* buffer;
  PJRT_Event* event;
};

struct PJRT_Buffer_UnsafePointer_Args : ArgsHeader {
  PJRT_Buffer* buffer;
  uintptr_t buffer_pointer;
};

struct PJRT_Buffer_IncreaseExternalReferenceCount_Args : ArgsHeader {
  PJRT_Buffer* buffer;
};

struct PJRT_Buffer_DecreaseExternalReferenceCount_Args : ArgsHeader {
  PJRT_Buffer* buffer;
};

struct PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args : ArgsHeader {
  PJRT_Buffer* buffer;
  void* device_memory_ptr;
};

struct PJRT_Client_CreateViewOfDeviceBuffer_Args : ArgsHeader {
  PJRT_Client* client;
  void* device_buffer_ptr;
  const int64_t* dims;
  size_t num_dims;
  PJRT_Buffer_Type element_type;
  PJRT_Buffer_MemoryLayout* layout;
  PJRT_Device* device;
  void (*on_delete_callback)(void* device_buffer_ptr, void* user_arg);
  void* on_delete_callback_arg;
  intptr_t stream;
  PJRT_Buffer* buffer;
  PJRT_Memory* memory;
};

// ----------------------------------------------------------------------------------- executables

struct PJRT_Program : ArgsHeader {
  char* code;
  size_t code_size;
  const char* format;
  size_t format_size;
};

struct PJRT_Client_Compile_Args : ArgsHeader {
  PJRT_Client* client;
  const PJRT_Program* program;
  const char* compile_options;
  size_t compile_options_size;
  PJRT_LoadedExecutable* executable;
};

struct PJRT_Executable_Destroy_Args : ArgsHeader {
  PJRT_Executable* executable;
};

struct PJRT_Executable_Name_Args : ArgsHeader {
  PJRT_Executable* executable;
  const char* executable_name;
  size_t executable_name_size;
};

struct PJRT_Executable_GetCostAnalysis_Args : ArgsHeader {
  PJRT_Executable* executable;
  size_t num_properties;
  const PJRT_NamedValue* properties;
};

struct PJRT_Executable_NumOutputs_Args : ArgsHeader {
  PJRT_Executable* executable;
  size_t num_outputs;
};

struct PJRT_Executable_OutputElementTypes_Args : ArgsHeader {
  PJRT_Executable* executable;
  PJRT_Buffer_Type* output_types;
  size_t num_output_types;
};

struct PJRT_Executable_OutputDimensions_Args : ArgsHeader {
  PJRT_Executable* executable;
  size_t num_outputs;
  const int64_t* dims;
  const size_t* dim_sizes;
};

struct PJRT_Executable_ParameterMemoryKinds_Args : ArgsHeader {
  PJRT_Executable* executable;
  size_t num_parameters;
  const char* const* memory_kinds;
  const size_t* memory_kind_sizes;
};

struct PJRT_Executable_OptimizedProgram_Args : ArgsHeader {
  PJRT_Executable* executable;
  PJRT_Program* program;
};

struct PJRT_Executable_GetCompiledMemoryStats_Args : ArgsHeader {
  PJRT_Executable* executable;
  int64_t generated_code_size_in_bytes;
  int64_t argument_size_in_bytes;
  int64_t output_size_in_bytes;
  int64_t alias_size_in_bytes;
  int64_t temp_size_in_bytes;
  int64_t host_generated_code_size_in_bytes;
  int64_t host_argument_size_in_bytes;
  int64_t host_output_size_in_bytes;
  int64_t host_alias_size_in_bytes;
  int64_t host_temp_size_in_bytes;
  int64_t peak_memory_in_bytes;
  int64_t total_size_in_bytes;
  int64_t total_allocation_bytes;
  int64_t indefinite_allocations;
  int64_t peak_unpadded_heap_bytes;
};

struct PJRT_Executable_Serialize_Args : ArgsHeader {
  PJRT_Executable* executable;
  const char* serialized_bytes;
  size_t serialized_bytes_size;
  PJRT_SerializedExecutable* serialized_executable;
  void (*serialized_executable_deleter)(PJRT_SerializedExecutable*);
};

struct PJRT_Executable_DeserializeAndLoad_Args : ArgsHeader {
  PJRT_Client* client;
  const char* serialized_executable;
  size_t serialized_executable_size;
  PJRT_LoadedExecutable* loaded_executable;
  const char* overridden_serialized_compile_options;
  size_t overridden_serialized_compile_options_size;
  void* load_options;
};

struct PJRT_LoadedExecutable_Destroy_Args : ArgsHeader {
  PJRT_LoadedExecutable* executable;
};

struct PJRT_LoadedExecutable_GetExecutable_Args : ArgsHeader {
  PJRT_LoadedExecutable* loaded_executable;
  PJRT_Executable* executable;
};

struct PJRT_LoadedExecutable_AddressableDevices_Args : ArgsHeader {
  PJRT_LoadedExecutable* executable;
  PJRT_Device* const* addressable_devices;
  size_t num_addressable_devices;
};

struct PJRT_ExecuteOptions {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  void* send_callbacks;
  void* recv_callbacks;
  size_t num_send_ops;
  size_t num_recv_ops;
  int launch_id;
  const int64_t* non_donatable_input_indices;
  size_t num_non_donatable_input_indices;
  PJRT_ExecuteContext* context;
  const char* call_location;
  size_t num_tasks;
  void* task_ids;
  void* incarnation_ids;
  void* multi_slice_config;
  bool use_major_to_minor_data_layout_for_callbacks;
  void* hlo_output_callbacks;
  size_t num_hlo_output_callbacks;
};

struct PJRT_LoadedExecutable_Execute_Args : ArgsHeader {
  PJRT_LoadedExecutable* executable;
  PJRT_ExecuteOptions* options;
  PJRT_Buffer* const* const* argument_lists;
  size_t num_devices;
  size_t num_args;
  PJRT_Buffer** const* output_lists;
  PJRT_Event** device_complete_events;
  PJRT_Device* execute_device;
};

// --------------------------------------------------------------- topologies, which have no device

struct PJRT_TopologyDescription_Create_Args : ArgsHeader {
  const char* topology_name;
  size_t topology_name_size;
  const PJRT_NamedValue* create_options;
  size_t num_options;
  PJRT_TopologyDescription* topology;
};

struct PJRT_TopologyDescription_Destroy_Args : ArgsHeader {
  PJRT_TopologyDescription* topology;
};

struct PJRT_TopologyDescription_PlatformName_Args : ArgsHeader {
  PJRT_TopologyDescription* topology;
  const char* platform_name;
  size_t platform_name_size;
};

struct PJRT_TopologyDescription_PlatformVersion_Args : ArgsHeader {
  PJRT_TopologyDescription* topology;
  const char* platform_version;
  size_t platform_version_size;
};

struct PJRT_TopologyDescription_GetDeviceDescriptions_Args : ArgsHeader {
  PJRT_TopologyDescription* topology;
  PJRT_DeviceDescription* const* descriptions;
  size_t num_descriptions;
};

struct PJRT_Client_TopologyDescription_Args : ArgsHeader {
  PJRT_Client* client;
  PJRT_TopologyDescription* topology;
};

struct PJRT_Compile_Args : ArgsHeader {
  const PJRT_TopologyDescription* topology;
  const PJRT_Program* program;
  const char* compile_options;
  size_t compile_options_size;
  PJRT_Client* client;
  PJRT_Executable* executable;
};

// ------------------------------------------------------------------------------------ extensions

/// Every function except two returns nullptr or an error, which the caller owns.
template <typename Args>
using PJRT_Function = PJRT_Error* (*)(Args* args);

struct PJRT_FFI_Register_Handler_Args {
  size_t struct_size;
  const char* target_name;
  size_t target_name_size;
  void* handler;
  const char* platform_name;
  size_t platform_name_size;
  uint32_t traits;
};

struct PJRT_Get_Stream_For_External_Ready_Events_Args {
  size_t struct_size;
  PJRT_Device* device;
  intptr_t stream;
};

struct PJRT_Stream_Extension {
  PJRT_Extension_Base base;
  PJRT_Function<PJRT_Get_Stream_For_External_Ready_Events_Args> get_stream;
  void* wait_stream;
};

struct PJRT_FFI_Extension {
  PJRT_Extension_Base base;
  void* type_register;
  void* user_data_add;
  PJRT_Function<PJRT_FFI_Register_Handler_Args> register_handler;
};
PJRT_STRUCT_SIZE(PJRT_FFI_Extension, register_handler);

// The profiler has its own error type.
struct PLUGIN_Profiler_Error_Destroy_Args {
  size_t struct_size;
  void* priv;
  PLUGIN_Profiler_Error* error;
};

struct PLUGIN_Profiler_Error_Message_Args {
  size_t struct_size;
  void* priv;
  PLUGIN_Profiler_Error* error;
  const char* message;
  size_t message_size;
};

struct PLUGIN_Profiler_Create_Args {
  size_t struct_size;
  const char* options;
  size_t options_size;
  PLUGIN_Profiler* profiler;
};

struct PLUGIN_Profiler_Destroy_Args {
  size_t struct_size;
  PLUGIN_Profiler* profiler;
};

struct PLUGIN_Profiler_Start_Args {
  size_t struct_size;
  PLUGIN_Profiler* profiler;
};

struct PLUGIN_Profiler_Stop_Args {
  size_t struct_size;
  PLUGIN_Profiler* profiler;
};

struct PLUGIN_Profiler_CollectData_Args {
  size_t struct_size;
  PLUGIN_Profiler* profiler;
  uint8_t* buffer;
  size_t buffer_size_in_bytes;
};

template <typename Args>
using PLUGIN_Profiler_Function = PLUGIN_Profiler_Error* (*)(Args* args);

struct PLUGIN_Profiler_Api {
  size_t struct_size;
  void* priv;
  void (*error_destroy)(PLUGIN_Profiler_Error_Destroy_Args* args);
  void (*error_message)(PLUGIN_Profiler_Error_Message_Args* args);
  void* error_get_code;
  PLUGIN_Profiler_Function<PLUGIN_Profiler_Create_Args> create;
  PLUGIN_Profiler_Function<PLUGIN_Profiler_Destroy_Args> destroy;
  PLUGIN_Profiler_Function<PLUGIN_Profiler_Start_Args> start;
  PLUGIN_Profiler_Function<PLUGIN_Profiler_Stop_Args> stop;
  PLUGIN_Profiler_Function<PLUGIN_Profiler_CollectData_Args> collect_data;
  void* consume;
  void* consume_result_destroy;
  void* serialize;
};
PJRT_STRUCT_SIZE(PLUGIN_Profiler_Api, serialize);

struct PJRT_Profiler_Extension {
  PJRT_Extension_Base base;
  PLUGIN_Profiler_Api* profiler_api;
  int64_t traceme_context_id;
};
PJRT_STRUCT_SIZE(PJRT_Profiler_Extension, traceme_context_id);

// ---------------------------------------------------------------------------- function table

/// A slot of type void* is not used and only keeps the position of the others.
struct PJRT_Api {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Api_Version pjrt_api_version;
  void (*PJRT_Error_Destroy)(PJRT_Error_Destroy_Args* args);
  void (*PJRT_Error_Message)(PJRT_Error_Message_Args* args);
  PJRT_Function<PJRT_Error_GetCode_Args> PJRT_Error_GetCode;
  PJRT_Function<PJRT_Plugin_Initialize_Args> PJRT_Plugin_Initialize;
  PJRT_Function<PJRT_Plugin_Attributes_Args> PJRT_Plugin_Attributes;
  PJRT_Function<PJRT_Event_Destroy_Args> PJRT_Event_Destroy;
  PJRT_Function<PJRT_Event_IsReady_Args> PJRT_Event_IsReady;
  void* PJRT_Event_Error;
  PJRT_Function<PJRT_Event_Await_Args> PJRT_Event_Await;
  PJRT_Function<PJRT_Event_OnReady_Args> PJRT_Event_OnReady;
  PJRT_Function<PJRT_Client_Create_Args> PJRT_Client_Create;
  PJRT_Function<PJRT_Client_Destroy_Args> PJRT_Client_Destroy;
  PJRT_Function<PJRT_Client_PlatformName_Args> PJRT_Client_PlatformName;
  void* PJRT_Client_ProcessIndex;
  PJRT_Function<PJRT_Client_PlatformVersion_Args> PJRT_Client_PlatformVersion;
  PJRT_Function<PJRT_Client_Devices_Args> PJRT_Client_Devices;
  PJRT_Function<PJRT_Client_AddressableDevices_Args> PJRT_Client_AddressableDevices;
  void* PJRT_Client_LookupDevice;
  void* PJRT_Client_LookupAddressableDevice;
  void* PJRT_Client_AddressableMemories;
  PJRT_Function<PJRT_Client_Compile_Args> PJRT_Client_Compile;
  void* PJRT_Client_DefaultDeviceAssignment;
  PJRT_Function<PJRT_Client_BufferFromHostBuffer_Args> PJRT_Client_BufferFromHostBuffer;
  PJRT_Function<PJRT_DeviceDescription_Id_Args> PJRT_DeviceDescription_Id;
  PJRT_Function<PJRT_DeviceDescription_ProcessIndex_Args> PJRT_DeviceDescription_ProcessIndex;
  PJRT_Function<PJRT_DeviceDescription_Attributes_Args> PJRT_DeviceDescription_Attributes;
  PJRT_Function<PJRT_DeviceDescription_Kind_Args> PJRT_DeviceDescription_Kind;
  PJRT_Function<PJRT_DeviceDescription_DebugString_Args> PJRT_DeviceDescription_DebugString;
  void* PJRT_DeviceDescription_ToString;
  PJRT_Function<PJRT_Device_GetDescription_Args> PJRT_Device_GetDescription;
  void* PJRT_Device_IsAddressable;
  PJRT_Function<PJRT_Device_LocalHardwareId_Args> PJRT_Device_LocalHardwareId;
  void* PJRT_Device_AddressableMemories;
  PJRT_Function<PJRT_Device_DefaultMemory_Args> PJRT_Device_DefaultMemory;
  PJRT_Function<PJRT_Device_MemoryStats_Args> PJRT_Device_MemoryStats;
  void* PJRT_Memory_Id;
  void* PJRT_Memory_Kind;
  void* PJRT_Memory_DebugString;
  void* PJRT_Memory_ToString;
  void* PJRT_Memory_AddressableByDevices;
  PJRT_Function<PJRT_Executable_Destroy_Args> PJRT_Executable_Destroy;
  PJRT_Function<PJRT_Executable_Name_Args> PJRT_Executable_Name;
  void* PJRT_Executable_NumReplicas;
  void* PJRT_Executable_NumPartitions;
  PJRT_Function<PJRT_Executable_NumOutputs_Args> PJRT_Executable_NumOutputs;
  void* PJRT_Executable_SizeOfGeneratedCodeInBytes;
  PJRT_Function<PJRT_Executable_GetCostAnalysis_Args> PJRT_Executable_GetCostAnalysis;
  void* PJRT_Executable_OutputMemoryKinds;
  PJRT_Function<PJRT_Executable_OptimizedProgram_Args> PJRT_Executable_OptimizedProgram;
  PJRT_Function<PJRT_Executable_Serialize_Args> PJRT_Executable_Serialize;
  PJRT_Function<PJRT_LoadedExecutable_Destroy_Args> PJRT_LoadedExecutable_Destroy;
  PJRT_Function<PJRT_LoadedExecutable_GetExecutable_Args> PJRT_LoadedExecutable_GetExecutable;
  PJRT_Function<PJRT_LoadedExecutable_AddressableDevices_Args>
      PJRT_LoadedExecutable_AddressableDevices;
  void* PJRT_LoadedExecutable_Delete;
  void* PJRT_LoadedExecutable_IsDeleted;
  PJRT_Function<PJRT_LoadedExecutable_Execute_Args> PJRT_LoadedExecutable_Execute;
  PJRT_Function<PJRT_Executable_DeserializeAndLoad_Args> PJRT_Executable_DeserializeAndLoad;
  void* PJRT_LoadedExecutable_Fingerprint;
  PJRT_Function<PJRT_Buffer_Destroy_Args> PJRT_Buffer_Destroy;
  PJRT_Function<PJRT_Buffer_ElementType_Args> PJRT_Buffer_ElementType;
  PJRT_Function<PJRT_Buffer_Dimensions_Args> PJRT_Buffer_Dimensions;
  void* PJRT_Buffer_UnpaddedDimensions;
  void* PJRT_Buffer_DynamicDimensionIndices;
  PJRT_Function<PJRT_Buffer_GetMemoryLayout_Args> PJRT_Buffer_GetMemoryLayout;
  void* PJRT_Buffer_OnDeviceSizeInBytes;
  PJRT_Function<PJRT_Buffer_Device_Args> PJRT_Buffer_Device;
  void* PJRT_Buffer_Memory;
  void* PJRT_Buffer_Delete;
  PJRT_Function<PJRT_Buffer_IsDeleted_Args> PJRT_Buffer_IsDeleted;
  void* PJRT_Buffer_CopyToDevice;
  PJRT_Function<PJRT_Buffer_ToHostBuffer_Args> PJRT_Buffer_ToHostBuffer;
  void* PJRT_Buffer_IsOnCpu;
  PJRT_Function<PJRT_Buffer_ReadyEvent_Args> PJRT_Buffer_ReadyEvent;
  PJRT_Function<PJRT_Buffer_UnsafePointer_Args> PJRT_Buffer_UnsafePointer;
  PJRT_Function<PJRT_Buffer_IncreaseExternalReferenceCount_Args>
      PJRT_Buffer_IncreaseExternalReferenceCount;
  PJRT_Function<PJRT_Buffer_DecreaseExternalReferenceCount_Args>
      PJRT_Buffer_DecreaseExternalReferenceCount;
  PJRT_Function<PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args>
      PJRT_Buffer_OpaqueDeviceMemoryDataPointer;
  void* PJRT_CopyToDeviceStream_Destroy;
  void* PJRT_CopyToDeviceStream_AddChunk;
  void* PJRT_CopyToDeviceStream_TotalBytes;
  void* PJRT_CopyToDeviceStream_GranuleSize;
  void* PJRT_CopyToDeviceStream_CurrentBytes;
  PJRT_Function<PJRT_TopologyDescription_Create_Args> PJRT_TopologyDescription_Create;
  PJRT_Function<PJRT_TopologyDescription_Destroy_Args> PJRT_TopologyDescription_Destroy;
  PJRT_Function<PJRT_TopologyDescription_PlatformName_Args> PJRT_TopologyDescription_PlatformName;
  PJRT_Function<PJRT_TopologyDescription_PlatformVersion_Args>
      PJRT_TopologyDescription_PlatformVersion;
  PJRT_Function<PJRT_TopologyDescription_GetDeviceDescriptions_Args>
      PJRT_TopologyDescription_GetDeviceDescriptions;
  void* PJRT_TopologyDescription_Serialize;
  void* PJRT_TopologyDescription_Attributes;
  PJRT_Function<PJRT_Compile_Args> PJRT_Compile;
  PJRT_Function<PJRT_Executable_OutputElementTypes_Args> PJRT_Executable_OutputElementTypes;
  PJRT_Function<PJRT_Executable_OutputDimensions_Args> PJRT_Executable_OutputDimensions;
  PJRT_Function<PJRT_Buffer_CopyToMemory_Args> PJRT_Buffer_CopyToMemory;
  PJRT_Function<PJRT_Client_CreateViewOfDeviceBuffer_Args> PJRT_Client_CreateViewOfDeviceBuffer;
  void* PJRT_Executable_Fingerprint;
  PJRT_Function<PJRT_Client_TopologyDescription_Args> PJRT_Client_TopologyDescription;
  PJRT_Function<PJRT_Executable_GetCompiledMemoryStats_Args> PJRT_Executable_GetCompiledMemoryStats;
  void* PJRT_Memory_Kind_Id;
  void* PJRT_ExecuteContext_Create;
  void* PJRT_ExecuteContext_Destroy;
  void* PJRT_Buffer_CopyRawToHost;
  void* PJRT_AsyncHostToDeviceTransferManager_Destroy;
  void* PJRT_AsyncHostToDeviceTransferManager_TransferData;
  void* PJRT_Client_CreateBuffersForAsyncHostToDevice;
  void* PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer;
  void* PJRT_AsyncHostToDeviceTransferManager_Device;
  void* PJRT_AsyncHostToDeviceTransferManager_BufferCount;
  void* PJRT_AsyncHostToDeviceTransferManager_BufferSize;
  void* PJRT_AsyncHostToDeviceTransferManager_SetBufferError;
  void* PJRT_AsyncHostToDeviceTransferManager_AddMetadata;
  void* PJRT_Client_DmaMap;
  void* PJRT_Client_DmaUnmap;
  void* PJRT_Client_CreateUninitializedBuffer;
  void* PJRT_Client_UpdateGlobalProcessInfo;
  void* PJRT_TopologyDescription_Deserialize;
  void* PJRT_Client_CreateAliasBuffer;
  void* PJRT_Client_FulfillAliasBuffer;
  void* PJRT_LoadedExecutable_GetDeviceAssignment;
  void* PJRT_Client_CreateErrorBuffer;
  void* PJRT_AsyncHostToDeviceTransferManager_TransferLiteral;
  void* PJRT_Buffer_CopyRawToHostFuture;
  void* PJRT_Device_PoisonExecution;
  void* PJRT_Device_CreateAsyncTrackingEvent;
  void* PJRT_AsyncTrackingEvent_Destroy;
  void* PJRT_Executable_GetCompileOptions;
  void* PJRT_Buffer_DonateWithControlDependency;
  void* PJRT_Event_Create;
  void* PJRT_Event_Set;
  void* PJRT_Device_GetAttributes;
  void* PJRT_Client_Load;
  void* PJRT_LoadedExecutable_AddressableDeviceLogicalIds;
  void* PJRT_Buffer_Bitcast;
  void* PJRT_Error_ForEachPayload;
  void* PJRT_TopologyDescription_Fingerprint;
  PJRT_Function<PJRT_Executable_ParameterMemoryKinds_Args> PJRT_Executable_ParameterMemoryKinds;
};
PJRT_STRUCT_SIZE(PJRT_Api, PJRT_Executable_ParameterMemoryKinds);

/// A zeroed argument struct with `struct_size` set. A plugin newer than this header refuses a
/// struct without the fields that it has appended since, so room for them is added. Zero is the
/// ABI's default for fields that the caller does not know. Older plugins ignore the excess.
template <typename T>
struct Args : T {
  std::byte later_fields[64];

  Args() : T(), later_fields{} {
    static_assert(std::is_trivially_copyable_v<T>);
    this->struct_size = sizeof(T) + sizeof(later_fields);
  }
};

}  // namespace torch_xla::runtime::pjrt
