#include <algorithm>
#include <array>
#include <memory>

#include "runtime/client_impl.h"
#include "runtime/errors.h"
#include "runtime/program_shape.h"

namespace torch_xla::runtime {

using namespace pjrt;

namespace {

PJRT_LoadedExecutable* Handle(void* handle) { return static_cast<PJRT_LoadedExecutable*>(handle); }

// The executable behind a loaded executable. The caller of the C API owns it.
class BareExecutable {
 public:
  BareExecutable(const PluginLibrary& plugin, void* loaded) : plugin_(plugin) {
    const auto args =
        PJRT_ASK(plugin_, PJRT_LoadedExecutable_GetExecutable, loaded_executable, Handle(loaded));
    handle_ = args.executable;
  }
  ~BareExecutable() {
    Args<PJRT_Executable_Destroy_Args> args;
    args.executable = handle_;
    plugin_.Destroy(&PJRT_Api::PJRT_Executable_Destroy, args);
  }
  BareExecutable(const BareExecutable&) = delete;
  BareExecutable& operator=(const BareExecutable&) = delete;
  PJRT_Executable* get() const { return handle_; }

 private:
  const PluginLibrary& plugin_;
  PJRT_Executable* handle_ = nullptr;
};

// An array that is on the stack unless it is long, since Execute takes only microseconds.
template <typename T>
class SmallArray {
 public:
  explicit SmallArray(size_t size) : heap_(size > kInline ? new T[size] : nullptr) {}
  T* data() { return heap_ ? heap_.get() : inline_; }

 private:
  static constexpr size_t kInline = 64;
  T inline_[kInline];  // uninitialized on purpose
  std::unique_ptr<T[]> heap_;
};

std::vector<size_t> OutputBytes(const PluginLibrary& plugin, PJRT_Executable* executable,
                                size_t num_outputs) {
  if (!plugin.Has(&PJRT_Api::PJRT_Executable_OutputElementTypes) ||
      !plugin.Has(&PJRT_Api::PJRT_Executable_OutputDimensions)) {
    return {};
  }
  Args<PJRT_Executable_OutputElementTypes_Args> types;
  types.executable = executable;
  Args<PJRT_Executable_OutputDimensions_Args> dims;
  dims.executable = executable;
  PJRT_Error* error = PJRT_TRY_CALL(plugin, PJRT_Executable_OutputElementTypes, types);
  if (error == nullptr) {
    error = PJRT_TRY_CALL(plugin, PJRT_Executable_OutputDimensions, dims);
  }
  if (error != nullptr) {
    // Without these sizes every output buffer is asked for its size.
    plugin.Discard(error);
    return {};
  }
  if (types.num_output_types != num_outputs || dims.num_outputs != num_outputs) return {};
  std::vector<size_t> bytes(num_outputs);
  const int64_t* next = dims.dims;
  for (size_t i = 0; i < num_outputs; ++i) {
    bytes[i] = DenseBytes(types.output_types[i], {next, dims.dim_sizes[i]});
    next += dims.dim_sizes[i];
  }
  return bytes;
}

std::optional<Executable::Optimized> ReadOptimized(const PluginLibrary& plugin,
                                                   PJRT_Executable* executable) {
  Args<PJRT_Program> program;
  Args<PJRT_Executable_OptimizedProgram_Args> args;
  args.executable = executable;
  args.program = &program;
  Executable::Optimized optimized;
  // The first call returns the size, the second one fills the memory.
  for (int call = 0; call < 2; ++call) {
    if (!plugin.Gives(&PJRT_Api::PJRT_Executable_OptimizedProgram, args)) return std::nullopt;
    if (call == 0) {
      optimized.code.resize(program.code_size);
      program.code = optimized.code.data();
    }
  }
  optimized.format.assign(program.format, program.format_size);
  return optimized;
}

}  // namespace

Executable::Executable(std::shared_ptr<ClientImpl> client, void* handle, bool may_donate)
    : client_(std::move(client)), handle_(handle), may_donate_(may_donate) {
  const PluginLibrary& plugin = client_->plugin;
  // The destructor does not run if the constructor throws, so this guard destroys the handle.
  struct Guard {
    const PluginLibrary& plugin;
    void* handle;
    ~Guard() {
      if (handle == nullptr) return;
      Args<PJRT_LoadedExecutable_Destroy_Args> args;
      args.executable = Handle(handle);
      plugin.Destroy(&PJRT_Api::PJRT_LoadedExecutable_Destroy, args);
    }
  } guard{plugin, handle};

  BareExecutable executable(plugin, handle);
  const auto outputs = PJRT_ASK(plugin, PJRT_Executable_NumOutputs, executable, executable.get());
  num_outputs_ = outputs.num_outputs;
  output_bytes_ = OutputBytes(plugin, executable.get(), num_outputs_);

  const auto name = PJRT_ASK(plugin, PJRT_Executable_Name, executable, executable.get());
  name_.assign(name.executable_name, name.executable_name_size);

  Args<PJRT_Executable_ParameterMemoryKinds_Args> parameters;
  parameters.executable = executable.get();
  if (plugin.Gives(&PJRT_Api::PJRT_Executable_ParameterMemoryKinds, parameters)) {
    num_parameters_ = static_cast<int64_t>(parameters.num_parameters);
  }

  const auto devices =
      PJRT_ASK(plugin, PJRT_LoadedExecutable_AddressableDevices, executable, Handle(handle));
  for (size_t i = 0; i < devices.num_addressable_devices; ++i) {
    devices_.push_back(client_->IndexOf(devices.addressable_devices[i]));
  }
  const std::vector<int> by_partition = devices_;
  std::ranges::sort(devices_);
  for (int device : by_partition) {
    places_.push_back(std::ranges::find(devices_, device) - devices_.begin());
  }
  if (devices_.size() > 1) {
    // Only programs that need it pay for the serialization of the optimized program.
    const auto optimized = ReadOptimized(plugin, executable.get());
    auto shape = optimized ? ReadProgramShape(optimized->format, optimized->code) : std::nullopt;
    if (shape) {
      num_parameters_ = static_cast<int64_t>(shape->parameter_bytes.size());
      parameter_bytes_ = std::move(shape->parameter_bytes);
      output_shardings_ = std::move(shape->outputs);
      if (output_shardings_ && by_partition != devices_) {
        for (OutputSharding& output : *output_shardings_) {
          for (int64_t& device : output.devices) device = by_partition.at(device);
        }
      }
    }
  }
  guard.handle = nullptr;
}

Executable::~Executable() {
  Args<PJRT_LoadedExecutable_Destroy_Args> args;
  args.executable = Handle(handle_);
  client_->plugin.Destroy(&PJRT_Api::PJRT_LoadedExecutable_Destroy, args);
}

void Executable::CheckArguments(std::span<Buffer* const> arguments, int device) const {
  if (num_parameters_ >= 0 && arguments.size() != static_cast<size_t>(num_parameters_)) {
    throw InvalidArgument("Program " + name_ + " has " + std::to_string(num_parameters_) +
                          " parameters, got " + std::to_string(arguments.size()) + " arguments");
  }
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == nullptr) {
      throw InvalidArgument("Program " + name_ + ": argument " + std::to_string(i) + " is null");
    }
    if (&arguments[i]->client_->plugin != &client_->plugin) {
      throw InvalidArgument("Program " + name_ + ": argument " + std::to_string(i) +
                            " belongs to another plugin");
    }
    if (arguments[i]->device_ != device) {
      throw InvalidArgument("Program " + name_ + ": argument " + std::to_string(i) +
                            " is on device " + std::to_string(arguments[i]->device_) +
                            ", the program runs on device " + std::to_string(device));
    }
  }
}

void Executable::CheckShardedArguments(std::span<Buffer* const> arguments) const {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const Buffer& argument = *arguments[i];
    if (i < parameter_bytes_.size() && parameter_bytes_[i] >= 0 &&
        static_cast<size_t>(parameter_bytes_[i]) != argument.bytes_) {
      throw InvalidArgument("Program " + name_ + ": parameter " + std::to_string(i) + " has " +
                            std::to_string(parameter_bytes_[i]) + " bytes, the argument has " +
                            std::to_string(argument.bytes_));
    }
    if (IsConsumed(argument)) {
      throw InvalidArgument("Program " + name_ + ": argument " + std::to_string(i) +
                            " has been donated to an earlier execution");
    }
  }
}

bool Executable::IsConsumed(const Buffer& buffer) const {
  const auto args = PJRT_ASK(client_->plugin, PJRT_Buffer_IsDeleted, buffer,
                             static_cast<PJRT_Buffer*>(buffer.handle()));
  return args.is_deleted;
}

void Executable::TakeOutputs(std::span<void* const> handles, int device,
                             std::vector<std::unique_ptr<Buffer>>& outputs) const {
  outputs.reserve(handles.size());
  for (size_t i = 0; i < handles.size(); ++i) {
    const size_t bytes = output_bytes_.empty()
                             ? client_->ArrayBytes(static_cast<PJRT_Buffer*>(handles[i]))
                             : output_bytes_[i];
    outputs.push_back(std::make_unique<Buffer>(client_, handles[i], bytes, device));
  }
}

void Executable::ReleaseConsumed(std::span<Buffer* const> arguments) const {
  for (Buffer* argument : arguments) {
    if (IsConsumed(*argument)) argument->ReleaseAccounting();
  }
}

void Executable::Run(std::span<const std::span<Buffer* const>> arguments,
                     std::span<ExecuteResult> results) const {
  const PluginLibrary& plugin = client_->plugin;
  const size_t num_devices = arguments.size();
  const size_t num_arguments = arguments[0].size();

  SmallArray<PJRT_Buffer*> inputs(num_devices * num_arguments);
  SmallArray<void*> outputs(num_devices * num_outputs_);
  SmallArray<PJRT_Buffer* const*> input_lists(num_devices);
  SmallArray<PJRT_Buffer**> output_lists(num_devices);
  SmallArray<PJRT_Event*> events(num_devices);
  for (size_t p = 0; p < num_devices; ++p) {
    const size_t d = places_[p];
    PJRT_Buffer** list = inputs.data() + d * num_arguments;
    for (size_t i = 0; i < num_arguments; ++i) {
      list[i] = static_cast<PJRT_Buffer*>(arguments[d][i]->handle());
    }
    input_lists.data()[p] = list;
    output_lists.data()[p] = reinterpret_cast<PJRT_Buffer**>(outputs.data() + d * num_outputs_);
    events.data()[p] = nullptr;
  }

  static const PJRT_ExecuteOptions& kOptions = *new Args<PJRT_ExecuteOptions>;
  Args<PJRT_LoadedExecutable_Execute_Args> args;
  args.executable = Handle(handle_);
  args.options = const_cast<PJRT_ExecuteOptions*>(&kOptions);
  args.argument_lists = input_lists.data();
  args.num_devices = num_devices;
  args.num_args = num_arguments;
  args.output_lists = output_lists.data();
  args.device_complete_events = events.data();
  if (PJRT_Error* error = PJRT_TRY_CALL(plugin, PJRT_LoadedExecutable_Execute, args)) {
    plugin.Throw(error, "Executing program " + name_ + " failed");
  }
  client_->code.Started();
  for (size_t p = 0; p < num_devices; ++p) {
    const size_t d = places_[p];
    // Release consumed arguments first, so that the peak does not count donated memory twice.
    if (may_donate_) ReleaseConsumed(arguments[d]);
    results[d].done = Event(&plugin, events.data()[p]);
    TakeOutputs({outputs.data() + d * num_outputs_, num_outputs_}, devices_[d], results[d].outputs);
  }
}

ExecuteResult Executable::Execute(std::span<Buffer* const> arguments, int device) const {
  if (devices_.size() != 1 || devices_[0] != device) {
    throw InvalidArgument(devices_.size() == 1
                              ? "Program " + name_ + " is compiled for device " +
                                    std::to_string(devices_[0]) + ", asked to run on device " +
                                    std::to_string(device)
                              : "Program " + name_ + " runs on " + std::to_string(devices_.size()) +
                                    " devices at once: use ExecuteSharded");
  }
  const std::vector<Buffer*> list(arguments.begin(), arguments.end());
  return std::move(ExecuteSharded({&list, 1})[0]);
}

std::vector<ExecuteResult> Executable::ExecuteSharded(
    std::span<const std::vector<Buffer*>> arguments) const {
  if (arguments.size() != devices_.size()) {
    throw InvalidArgument("Program " + name_ + " runs on " + std::to_string(devices_.size()) +
                          " devices, got arguments for " + std::to_string(arguments.size()));
  }
  std::vector<std::span<Buffer* const>> lists;
  lists.reserve(arguments.size());
  for (size_t d = 0; d < arguments.size(); ++d) {
    const std::vector<Buffer*>& list = arguments[d];
    CheckArguments(list, devices_[d]);
    if (devices_.size() > 1) CheckShardedArguments(list);
    if (list.size() != arguments[0].size()) {
      throw InvalidArgument("Program " + name_ + ": devices got " +
                            std::to_string(arguments[0].size()) + " and " +
                            std::to_string(list.size()) + " arguments");
    }
    lists.emplace_back(list);
  }
  std::vector<ExecuteResult> results(arguments.size());
  if (!results.empty()) Run(lists, results);
  return results;
}

std::string Executable::Serialize() const {
  const PluginLibrary& plugin = client_->plugin;
  BareExecutable executable(plugin, handle_);
  const auto args = PJRT_ASK(plugin, PJRT_Executable_Serialize, executable, executable.get());
  std::string bytes(args.serialized_bytes, args.serialized_bytes_size);
  if (args.serialized_executable_deleter != nullptr) {
    args.serialized_executable_deleter(args.serialized_executable);
  }
  return bytes;
}

Executable::MemoryUse Executable::memory() const {
  const PluginLibrary& plugin = client_->plugin;
  MemoryUse use;
  if (!plugin.Has(&PJRT_Api::PJRT_Executable_GetCompiledMemoryStats)) return use;
  BareExecutable executable(plugin, handle_);
  Args<PJRT_Executable_GetCompiledMemoryStats_Args> args;
  args.executable = executable.get();
  if (!plugin.Gives(&PJRT_Api::PJRT_Executable_GetCompiledMemoryStats, args)) return use;
  use.temporaries = args.temp_size_in_bytes;
  use.arguments = args.argument_size_in_bytes;
  use.outputs = args.output_size_in_bytes;
  use.code = args.generated_code_size_in_bytes;
  use.aliased = args.alias_size_in_bytes;
  if (args.peak_memory_in_bytes > 0) use.peak = args.peak_memory_in_bytes;
  return use;
}

std::vector<std::pair<std::string, double>> Executable::Costs() const {
  const PluginLibrary& plugin = client_->plugin;
  if (!plugin.Has(&PJRT_Api::PJRT_Executable_GetCostAnalysis)) return {};
  BareExecutable executable(plugin, handle_);
  Args<PJRT_Executable_GetCostAnalysis_Args> args;
  args.executable = executable.get();
  if (!plugin.Gives(&PJRT_Api::PJRT_Executable_GetCostAnalysis, args)) return {};
  std::vector<std::pair<std::string, double>> costs;
  for (size_t i = 0; i < args.num_properties; ++i) {
    const PJRT_NamedValue& property = args.properties[i];
    if (property.type != PJRT_NamedValue_kFloat) continue;
    costs.emplace_back(std::string(property.name, property.name_size), property.value.float_value);
  }
  return costs;
}

std::optional<Executable::Optimized> Executable::OptimizedProgram() const {
  BareExecutable executable(client_->plugin, handle_);
  return ReadOptimized(client_->plugin, executable.get());
}

}  // namespace torch_xla::runtime
