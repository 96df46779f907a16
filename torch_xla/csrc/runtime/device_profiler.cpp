#include "runtime/device_profiler.h"

#include <array>

#include "runtime/client_impl.h"
#include "runtime/errors.h"
#include "runtime/proto_reader.h"

namespace torch_xla::runtime {

using namespace pjrt;

namespace {

// A ProfileOptions message: version (field 5) 1 with the default host_tracer_level (2) and
// device_tracer_level (3), and with enable_hlo_proto (7), which adds the programs' text.
constexpr std::array<char, 8> kOptions = {0x10, 2, 0x18, 1, 0x28, 1, 0x38, 1};

}  // namespace

DeviceProfiler::DeviceProfiler(const PLUGIN_Profiler_Api& api) : api_(api) {}

template <typename Args>
void DeviceProfiler::Call(PLUGIN_Profiler_Function<Args> PLUGIN_Profiler_Api::* function,
                          const char* what, std::type_identity_t<Args>& args) const {
  PLUGIN_Profiler_Error* error = (api_.*function)(&args);
  if (error == nullptr) return;
  pjrt::Args<PLUGIN_Profiler_Error_Message_Args> message;
  message.error = error;
  api_.error_message(&message);
  const std::string reason(message.message, message.message_size);
  pjrt::Args<PLUGIN_Profiler_Error_Destroy_Args> destroy;
  destroy.error = error;
  api_.error_destroy(&destroy);
  throw MakeError(PJRT_Error_Code_INTERNAL, what, reason);
}

template <typename Args>
void DeviceProfiler::Call(PLUGIN_Profiler_Function<Args> PLUGIN_Profiler_Api::* function,
                          const char* what) const {
  pjrt::Args<Args> args;
  args.profiler = profiler_;
  Call(function, what, args);
}

std::unique_ptr<DeviceProfiler> DeviceProfiler::Start(const PluginLibrary& plugin) {
  auto* extension = reinterpret_cast<const PJRT_Profiler_Extension*>(
      plugin.FindExtension(PJRT_Extension_Type_Profiler));
  // Newer plugins have longer extensions and tables.
  if (extension == nullptr ||
      extension->base.struct_size < offsetof(PJRT_Profiler_Extension, traceme_context_id) ||
      extension->profiler_api == nullptr ||
      extension->profiler_api->struct_size < offsetof(PLUGIN_Profiler_Api, consume)) {
    return nullptr;
  }
  std::unique_ptr<DeviceProfiler> started(new DeviceProfiler(*extension->profiler_api));
  Args<PLUGIN_Profiler_Create_Args> args;
  args.options = kOptions.data();
  args.options_size = kOptions.size();
  started->Call(&PLUGIN_Profiler_Api::create, "Making the plugin's profiler failed", args);
  started->profiler_ = args.profiler;
  started->Call(&PLUGIN_Profiler_Api::start, "Starting the plugin's profiler failed");
  started->running_ = true;
  return started;
}

DeviceProfiler::~DeviceProfiler() {
  if (profiler_ == nullptr || PluginLibrary::ProcessIsExiting() || PluginLibrary::Forked()) return;
  try {
    if (running_) Call(&PLUGIN_Profiler_Api::stop, "");
    Call(&PLUGIN_Profiler_Api::destroy, "");
  } catch (const Error&) {  // There is nobody to report it to.
  }
}

std::string DeviceProfiler::Stop() {
  running_ = false;
  Call(&PLUGIN_Profiler_Api::stop, "Stopping the plugin's profiler failed");
  Args<PLUGIN_Profiler_CollectData_Args> args;  // The profiler owns the buffer.
  args.profiler = profiler_;
  Call(&PLUGIN_Profiler_Api::collect_data, "Reading the profile of the plugin's profiler failed",
       args);
  const std::string_view data(reinterpret_cast<const char*>(args.buffer),
                              args.buffer_size_in_bytes);
  // XLA's profiler appends a zero byte, which is not part of the message.
  ProtoReader fields(data);
  size_t whole = 0;
  while (fields.Next()) whole = data.size() - fields.left();
  return std::string(data.substr(0, whole));
}

}  // namespace torch_xla::runtime
