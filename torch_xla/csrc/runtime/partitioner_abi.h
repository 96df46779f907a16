// The part of the PJRT C ABI by which a plugin takes partitioners of custom calls: the extension of
// pjrt_c_api_custom_partitioner_extension.h. Names and field order are the ABI's own.
#pragma once

#include "runtime/pjrt_abi.h"

namespace torch_xla::runtime::pjrt {

inline constexpr auto kCustomPartitionerExtension = static_cast<PJRT_Extension_Type>(2);

struct JAX_CustomCallPartitioner_string {
  const char* data;
  size_t size;
};

/// A serialized ShapeProto and, if there is one, a serialized OpSharding.
struct JAX_CustomCallPartitioner_aval {
  JAX_CustomCallPartitioner_string shape;
  bool has_sharding;
  JAX_CustomCallPartitioner_string sharding;
};

/// The callback owns its results until the plugin calls `cleanup_fn`, which must not be null.
struct JAX_CustomCallPartitioner_version_and_error {
  int64_t api_version;
  void* data;
  void (*cleanup_fn)(void* data);
  bool has_error;
  PJRT_Error_Code code;
  JAX_CustomCallPartitioner_string error_msg;
};

struct JAX_CustomCallPartitioner_Partition_Args {
  JAX_CustomCallPartitioner_version_and_error header;
  size_t num_args;
  JAX_CustomCallPartitioner_aval* op_args;
  JAX_CustomCallPartitioner_aval op_result;
  JAX_CustomCallPartitioner_string backend_config;
  // Results.
  JAX_CustomCallPartitioner_string mlir_module;
  JAX_CustomCallPartitioner_string* args_sharding;
  JAX_CustomCallPartitioner_string result_sharding;
};

struct JAX_CustomCallPartitioner_InferShardingFromOperands_Args {
  JAX_CustomCallPartitioner_version_and_error header;
  size_t num_args;
  JAX_CustomCallPartitioner_aval* op_args;
  JAX_CustomCallPartitioner_string result_shape;
  JAX_CustomCallPartitioner_string backend_config;
  // Results.
  bool has_result_sharding;
  JAX_CustomCallPartitioner_string result_sharding;
};

struct JAX_CustomCallPartitioner_PropagateUserSharding_Args {
  JAX_CustomCallPartitioner_version_and_error header;
  JAX_CustomCallPartitioner_string backend_config;
  JAX_CustomCallPartitioner_string result_shape;
  JAX_CustomCallPartitioner_string result_sharding;  // given, and changed
};

struct JAX_CustomCallPartitioner_Callbacks {
  int64_t version;
  void* private_data;
  void (*dtor)(JAX_CustomCallPartitioner_Callbacks* data);
  void (*partition)(JAX_CustomCallPartitioner_Callbacks* data,
                    JAX_CustomCallPartitioner_Partition_Args* args);
  void (*infer_sharding)(JAX_CustomCallPartitioner_Callbacks* data,
                         JAX_CustomCallPartitioner_InferShardingFromOperands_Args* args);
  void (*propagate_user_sharding)(JAX_CustomCallPartitioner_Callbacks* data,
                                  JAX_CustomCallPartitioner_PropagateUserSharding_Args* args);
  bool can_side_effecting_have_replicated_sharding;
};

struct PJRT_Register_Custom_Partitioner_Args {
  size_t struct_size;
  const char* name;
  size_t name_size;
  JAX_CustomCallPartitioner_Callbacks* callbacks;
};
PJRT_STRUCT_SIZE(PJRT_Register_Custom_Partitioner_Args, callbacks);

struct PJRT_Custom_Partitioner_Extension {
  PJRT_Extension_Base base;
  PJRT_Function<PJRT_Register_Custom_Partitioner_Args> register_custom_partitioner;
};
PJRT_STRUCT_SIZE(PJRT_Custom_Partitioner_Extension, register_custom_partitioner);

}  // namespace torch_xla::runtime::pjrt
