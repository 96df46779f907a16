#include "runtime/client_impl.h"
#include "runtime/errors.h"

namespace torch_xla::runtime {

using namespace pjrt;

void PluginLibrary::RegisterCustomCall(std::string_view platform, const std::string& name,
                                       void* handler) const {
  if (handler == nullptr) throw InvalidArgument("The handler of custom call " + name + " is null");
  auto* extension =
      reinterpret_cast<const PJRT_FFI_Extension*>(FindExtension(PJRT_Extension_Type_FFI));
  if (extension == nullptr || extension->base.struct_size < kStructSize<PJRT_FFI_Extension> ||
      extension->register_handler == nullptr) {
    throw Error(PJRT_Error_Code_UNIMPLEMENTED, "Cannot register custom call " + name +
                                                   ": the PJRT plugin " + path_ + " (API " +
                                                   ApiVersion() + ") has no FFI extension");
  }

  std::lock_guard lock(custom_calls_mutex_);
  auto found = custom_calls_.find(name);
  if (found != custom_calls_.end()) {
    // Every client of the library registers the same handlers.
    if (found->second == handler) return;
    throw Error(PJRT_Error_Code_ALREADY_EXISTS,
                "Custom call " + name + " is already registered with another handler");
  }
  Args<PJRT_FFI_Register_Handler_Args> args;
  args.target_name = name.data();
  args.target_name_size = name.size();
  args.handler = handler;
  args.platform_name = platform.data();
  args.platform_name_size = platform.size();
  if (PJRT_Error* error = extension->register_handler(&args)) {
    Throw(error, "Registering custom call " + name + " failed");
  }
  custom_calls_.emplace(name, handler);
}

void Client::RegisterCustomCall(const std::string& name, void* handler) {
  // XLA registers handlers under its own platform names.
  const std::string_view platform = impl_->host_memory ? "Host" : std::string_view(platform_);
  impl_->plugin.RegisterCustomCall(platform, name, handler);
}

}  // namespace torch_xla::runtime
