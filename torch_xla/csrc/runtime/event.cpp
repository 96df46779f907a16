#include <exception>
#include <optional>
#include <utility>

#include "runtime/client_impl.h"
#include "runtime/errors.h"

namespace torch_xla::runtime {

using namespace pjrt;

namespace {

constexpr std::string_view kFailure = "Running on the device failed";

struct Callback {
  const PluginLibrary* plugin;
  std::function<void(const Error*)> done;
};

/// The error to report if there is no memory for a proper one; made in advance.
const Error& NoMemory() {
  static const auto& error = *new Error(
      MakeError(PJRT_Error_Code_RESOURCE_EXHAUSTED, kFailure, "there is no memory to say why"));
  return error;
}

/// Runs on a thread of the plugin, through whose frames no exception may pass.
void RunCallback(PJRT_Error* error, void* user_arg) noexcept {
  std::unique_ptr<Callback> callback(static_cast<Callback*>(user_arg));
  if (error == nullptr) {
    callback->done(nullptr);
    return;
  }
  const PluginLibrary& plugin = *callback->plugin;
  std::optional<Error> failure;
  try {
    failure = MakeError(static_cast<PJRT_Error_Code>(plugin.Code(error)), kFailure,
                        plugin.Message(error));
  } catch (const std::exception&) {
  }
  plugin.Discard(error);
  callback->done(failure ? &*failure : &NoMemory());
}

}  // namespace

Event::Event(const PluginLibrary* plugin, void* handle) : plugin_(plugin), handle_(handle) {}

Event::Event(Event&& other) noexcept
    : plugin_(other.plugin_), handle_(std::exchange(other.handle_, nullptr)) {}

Event& Event::operator=(Event&& other) noexcept {
  std::swap(plugin_, other.plugin_);
  std::swap(handle_, other.handle_);
  return *this;
}

Event::~Event() {
  if (handle_ == nullptr) return;
  Args<PJRT_Event_Destroy_Args> args;
  args.event = static_cast<PJRT_Event*>(handle_);
  plugin_->Destroy(&PJRT_Api::PJRT_Event_Destroy, args);
}

void Event::Await() const {
  if (handle_ == nullptr) return;
  Args<PJRT_Event_Await_Args> args;
  args.event = static_cast<PJRT_Event*>(handle_);
  if (PJRT_Error* error = PJRT_TRY_CALL(*plugin_, PJRT_Event_Await, args)) {
    plugin_->Throw(error, kFailure);
  }
}

void Event::OnReady(std::function<void(const Error* error)> done) const {
  if (handle_ == nullptr) {
    done(nullptr);
    return;
  }
  NoMemory();
  auto callback = std::make_unique<Callback>(Callback{plugin_, std::move(done)});
  Args<PJRT_Event_OnReady_Args> args;
  args.event = static_cast<PJRT_Event*>(handle_);
  args.callback = RunCallback;
  args.user_arg = callback.get();
  PJRT_CALL(*plugin_, PJRT_Event_OnReady, args);
  callback.release();  // RunCallback owns it, and may have deleted it by now
}

}  // namespace torch_xla::runtime
