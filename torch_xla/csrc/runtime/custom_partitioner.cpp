#include "runtime/custom_partitioner.h"

#include <deque>
#include <exception>

#include "runtime/client_impl.h"
#include "runtime/partitioner_abi.h"
#include "runtime/program_shape.h"
#include "runtime/proto_writer.h"

namespace torch_xla::runtime {

using namespace pjrt;

namespace {

using Text = JAX_CustomCallPartitioner_string;

std::string_view View(const Text& text) { return {text.data, text.size}; }

/// The results of one callback.
struct Results {
  std::deque<std::string> texts;
  std::vector<Text> operands;

  Text Add(std::string text) {
    const std::string& kept = texts.emplace_back(std::move(text));
    return {kept.data(), kept.size()};
  }
};

Results& Open(JAX_CustomCallPartitioner_version_and_error& header) {
  auto* results = new Results;
  header.data = results;
  header.cleanup_fn = [](void* data) { delete static_cast<Results*>(data); };
  header.has_error = false;
  return *results;
}

// OpSharding, as program_shape.cpp reads it.
ProtoWriter Proto(const OutputSharding& sharding) {
  constexpr int64_t kReplicated = 0, kOther = 3;
  ProtoWriter proto;
  if (sharding.tiles.empty()) return proto.Integer(/*type*/ 1, kReplicated);
  proto.Integer(/*type*/ 1, kOther);
  auto copies = static_cast<int64_t>(sharding.devices.size());
  for (const int64_t tiles : sharding.tiles) {
    proto.Integer(/*tile_assignment_dimensions*/ 3, tiles);
    copies /= tiles;
  }
  if (copies > 1) proto.Integer(/*tile_assignment_dimensions*/ 3, copies);
  for (const int64_t device : sharding.devices) {
    proto.Integer(/*tile_assignment_devices*/ 4, device);
  }
  return proto.Integer(/*replicate_on_last_tile_dim*/ 6, copies > 1 ? 1 : 0);
}

void Partition(JAX_CustomCallPartitioner_Callbacks* callbacks,
               JAX_CustomCallPartitioner_Partition_Args* args) {
  Results& results = Open(args->header);
  try {
    PartitionedCall call;
    call.config = View(args->backend_config);
    for (size_t i = 0; i < args->num_args; ++i) {
      call.operands.push_back(ReadDimensions(View(args->op_args[i].shape)));
    }
    if (args->op_result.has_sharding) {
      const auto shardings = ReadShardings(View(args->op_result.sharding));
      if (shardings && !shardings->empty()) call.result = (*shardings)[0];
    }
    const CallOnDevice made = reinterpret_cast<PartitionCall>(callbacks->private_data)(call);
    args->mlir_module = results.Add(made.module);
    for (const OutputSharding& operand : made.operands) {
      results.operands.push_back(results.Add(Proto(operand).Take()));
    }
    args->args_sharding = results.operands.data();
    constexpr int64_t kTuple = 2;
    ProtoWriter tuple;
    tuple.Integer(/*type*/ 1, kTuple);
    for (const OutputSharding& result : made.results) {
      tuple.Message(/*tuple_shardings*/ 5, Proto(result));
    }
    args->result_sharding = results.Add(tuple.Take());
  } catch (const std::exception& error) {
    args->header.has_error = true;
    args->header.code = PJRT_Error_Code_INTERNAL;
    args->header.error_msg = results.Add(error.what());
  }
}

// GSPMD's questions, which Shardy does not ask. An error here would end the process.
void InferNothing(JAX_CustomCallPartitioner_Callbacks*,
                  JAX_CustomCallPartitioner_InferShardingFromOperands_Args* args) {
  Open(args->header);
  args->has_result_sharding = false;
}

void KeepSharding(JAX_CustomCallPartitioner_Callbacks*,
                  JAX_CustomCallPartitioner_PropagateUserSharding_Args* args) {
  Open(args->header);
}

}  // namespace

bool RegisterPartitioner(Client& client, std::string_view name, PartitionCall partition) {
  const PluginLibrary& plugin = client.impl().plugin;
  const auto* extension = reinterpret_cast<const PJRT_Custom_Partitioner_Extension*>(
      plugin.FindExtension(kCustomPartitionerExtension));
  if (!extension || extension->base.struct_size < kStructSize<PJRT_Custom_Partitioner_Extension>) {
    return false;
  }
  // The plugin keeps it.
  auto* callbacks = new JAX_CustomCallPartitioner_Callbacks{
      .version = 0,
      .private_data = reinterpret_cast<void*>(partition),
      .dtor = [](JAX_CustomCallPartitioner_Callbacks* data) { delete data; },
      .partition = Partition,
      .infer_sharding = InferNothing,
      .propagate_user_sharding = KeepSharding,
      .can_side_effecting_have_replicated_sharding = false};
  Args<PJRT_Register_Custom_Partitioner_Args> args;
  args.name = name.data();
  args.name_size = name.size();
  args.callbacks = callbacks;
  if (PJRT_Error* error = extension->register_custom_partitioner(&args)) {
    plugin.Throw(error, "Registering the partitioner of " + std::string(name) + " failed");
  }
  return true;
}

}  // namespace torch_xla::runtime
