// A loaded PJRT plugin library and its function table.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/pjrt_abi.h"

namespace torch_xla::runtime {

class PluginLibrary {
 public:
  /// Loads and initializes the library at `path`, once per process. It is never unloaded, since XLA
  /// leaves threads and registrations behind that outlive every client.
  static const PluginLibrary& Load(const std::string& path);
  /// The same library with another function table, which calls the library's own table.
  static const PluginLibrary& Over(const PluginLibrary& library, const pjrt::PJRT_Api& api);

  const std::string& path() const { return path_; }
  const pjrt::PJRT_Api& api() const { return api_; }
  std::string ApiVersion() const;  // for example "0.106"
  int ApiMinor() const { return api_.pjrt_api_version.minor_version; }
  /// Distinguishes builds with the same version (as CPU plugins have).
  std::string Fingerprint() const;

  template <typename Args>
  bool Has(pjrt::PJRT_Function<Args> pjrt::PJRT_Api::* slot) const {
    return api_.*slot != nullptr;
  }

  /// Calls a function of the table and returns its error, which must be passed to Throw or Discard.
  template <typename Args>
  pjrt::PJRT_Error* TryCall(pjrt::PJRT_Function<Args> pjrt::PJRT_Api::* slot, const char* name,
                            std::type_identity_t<Args>& args) const {
    if (api_.*slot == nullptr) ThrowMissing(name);
    return (api_.*slot)(&args);
  }

  /// The same, but throws a runtime::Error with the function's name.
  template <typename Args>
  void Call(pjrt::PJRT_Function<Args> pjrt::PJRT_Api::* slot, const char* name,
            std::type_identity_t<Args>& args) const {
    if (pjrt::PJRT_Error* error = TryCall(slot, name, args)) Throw(error, name);
  }

  /// The same with one argument. Returns all arguments, in which the results are.
  template <typename Args, typename T>
  pjrt::Args<Args> Ask(pjrt::PJRT_Function<Args> pjrt::PJRT_Api::* slot, const char* name,
                       T Args::* argument, std::type_identity_t<T> value) const {
    pjrt::Args<Args> args;
    args.*argument = value;
    Call(slot, name, args);
    return args;
  }

  /// Calls a function that a plugin may lack or refuse. Returns whether the results are there.
  template <typename Args>
  bool Gives(pjrt::PJRT_Function<Args> pjrt::PJRT_Api::* slot,
             std::type_identity_t<Args>& args) const {
    if (api_.*slot == nullptr) return false;
    pjrt::PJRT_Error* error = (api_.*slot)(&args);
    if (error) Discard(error);
    return error == nullptr;
  }

  /// For destructors: does nothing if the slot is missing, the process is exiting, or the process
  /// was forked (Forked).
  template <typename Args>
  void Destroy(pjrt::PJRT_Function<Args> pjrt::PJRT_Api::* slot,
               std::type_identity_t<Args>& args) const noexcept {
    if (api_.*slot == nullptr || ProcessIsExiting() || Forked()) return;
    if (pjrt::PJRT_Error* error = (api_.*slot)(&args)) Discard(error);
  }

  /// Consumes `error` and throws it as runtime::Error: "<what> (<CODE>): <plugin's message>".
  [[noreturn]] void Throw(pjrt::PJRT_Error* error, std::string_view what) const;
  int Code(const pjrt::PJRT_Error* error) const;
  std::string Message(const pjrt::PJRT_Error* error) const;
  void Discard(pjrt::PJRT_Error* error) const noexcept;

  const pjrt::PJRT_Extension_Base* FindExtension(pjrt::PJRT_Extension_Type type) const;

  /// Custom calls are registered per library, not per client.
  void RegisterCustomCall(std::string_view platform, const std::string& name, void* handler) const;

  /// True once the plugin's static objects may be gone; then none of its functions may be called.
  static bool ProcessIsExiting();
  /// Whether this process was forked from a process with a client. It then has the plugin's
  /// objects, but none of the threads that work on them, and locks stay as those threads held them.
  static bool Forked() { return forked_.load(std::memory_order_relaxed); }
  /// Called when there is a client: from now on Forked() is true in forked children.
  static void WatchForks();

 private:
  explicit PluginLibrary(const std::string& path);
  PluginLibrary(std::string path, const pjrt::PJRT_Api& api) : path_(std::move(path)), api_(api) {}
  [[noreturn]] void ThrowMissing(const char* function) const;
  inline static std::atomic<bool> forked_{false};

  std::string path_;
  // A copy as long as this header's table; functions that an older plugin lacks are nullptr in it.
  pjrt::PJRT_Api api_{};
  mutable std::mutex custom_calls_mutex_;
  mutable std::map<std::string, void*, std::less<>> custom_calls_;
};

/// `function` is a slot of PJRT_Api; the error message contains its name.
#define PJRT_CALL(plugin, function, args) \
  (plugin).Call(&::torch_xla::runtime::pjrt::PJRT_Api::function, #function, args)
#define PJRT_ASK(plugin, function, argument, value)                        \
  (plugin).Ask(&::torch_xla::runtime::pjrt::PJRT_Api::function, #function, \
               &::torch_xla::runtime::pjrt::function##_Args::argument, value)
#define PJRT_TRY_CALL(plugin, function, args) \
  (plugin).TryCall(&::torch_xla::runtime::pjrt::PJRT_Api::function, #function, args)

}  // namespace torch_xla::runtime
