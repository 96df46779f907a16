#include "runtime/compile_options.h"

#include <cstdint>

#include "runtime/proto_writer.h"

namespace torch_xla::runtime {
namespace {

// XLA_FLAGS accepts the booleans "true" and "1", but XLA's parser of overrides only "True".
std::string_view CapitalizeBool(std::string_view value) {
  if (value == "true") return "True";
  if (value == "false") return "False";
  return value;
}

}  // namespace

std::string EncodeCompileOptions(const CompileOptions& options, std::span<const int64_t> device_ids,
                                 bool shardy) {
  const int64_t num_replicas =
      options.across_processes ? static_cast<int64_t>(device_ids.size()) : options.num_replicas;
  ProtoWriter build_options;  // ExecutableBuildOptionsProto
  build_options.Integer(/*device_ordinal*/ 1, options.device)
      .Integer(/*num_replicas*/ 4, num_replicas)
      .Integer(/*num_partitions*/ 5, options.num_partitions)
      .Integer(/*use_spmd_partitioning*/ 6, options.use_spmd_partitioning);
  if (!device_ids.empty()) {
    const int64_t num_partitions = options.num_partitions;
    ProtoWriter assignment;  // DeviceAssignmentProto
    assignment.Integer(/*replica_count*/ 1, num_replicas)
        .Integer(/*computation_count*/ 2, num_partitions);
    for (int64_t partition = 0; partition < num_partitions; ++partition) {
      ProtoWriter devices;  // DeviceAssignmentProto.ComputationDevice
      for (int64_t replica = 0; replica < num_replicas; ++replica) {
        devices.Integer(/*replica_device_ids*/ 1, device_ids[replica * num_partitions + partition]);
      }
      assignment.Message(/*computation_devices*/ 3, devices);
    }
    build_options.Message(/*device_assignment*/ 9, assignment);
  }
  if (!options.propagate_to_outputs.empty()) {
    std::string packed;
    for (bool propagate : options.propagate_to_outputs) packed.push_back(propagate ? 1 : 0);
    build_options.Bytes(/*allow_spmd_sharding_propagation_to_output*/ 12, packed);
  }
  if (shardy) build_options.Integer(/*use_shardy_partitioner*/ 19, 1);

  ProtoWriter result;  // CompileOptionsProto
  result.Message(/*executable_build_options*/ 3, build_options);
  for (const auto& [name, value] : options.overrides) {
    ProtoWriter text;  // OptionOverrideProto; XLA parses strings to the option's own type
    text.Bytes(/*string_field*/ 1, CapitalizeBool(value));
    ProtoWriter entry;  // map<string, OptionOverrideProto>
    entry.Bytes(/*key*/ 1, name).Message(/*value*/ 2, text);
    result.Message(/*env_option_overrides*/ 7, entry);
  }
  return result.Take();
}

}  // namespace torch_xla::runtime
