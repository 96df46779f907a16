// One loaded PJRT plugin library and its function table.
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
  /// Loads and initializes the library at `path`, once per process. It is never unloaded: XLA
  /// leaves threads and registrations behind that outlive every client.
  static const PluginLibrary& Load(const std::string& path);
  /// The same library with another function table, which is over its own.
  static const PluginLibrary& Over(const PluginLibrary& library, const pjrt::PJRT_Api& api);

  const std::string& path() const { return path_; }
  const pjrt::PJRT_Api& api() const { return api_; }
  std::string ApiVersion() const;  // "0.106"
  int ApiMinor() const { return api_.pjrt_api_version.minor_version; }
  /// Tells builds apart that call themselves by the same version (CPU plugins do).
  std::string Fingerprint() const;

  template <typename Args>
  bool Has(pjrt::PJRT_Function<Args> pjrt::PJRT_Api::* slot) const {
    return api_.*slot != nullptr;
  }

  /// Calls a function of the table and returns its error, to be given to Throw or Discard.
  template <typename Args>
  pjrt::PJRT_Error* TryCall(pjrt::PJRT_Function<Args> pjrt::PJRT_Api::* slot, const char* name,
                            std::type_identity_t<Args>& args) const {
    if (api_.*slot == nullptr) ThrowMissing(name);
    return (api_.*slot)(&args);
  }

  /// The same, throwing runtime::Error with the function's name.
  template <typename Args>
  void Call(pjrt::PJRT_Function<Args> pjrt::PJRT_Api::* slot, const char* name,
            std::type_identity_t<Args>& args) const {
    if (pjrt::PJRT_Error* error = TryCall(slot, name, args)) Throw(error, name);
  }

  /// For destructors: does nothing where the slot is missing, the process is exiting, or the plugin
  /// is not alive in it (Forked).
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

  /// True once the plugin's own static objects may be gone; nothing of it may be called then.
  static bool ProcessIsExiting();
  /// Whether this process was forked off one with a client: it has the plugin's objects, but none
  /// of the threads that work on them, and locks stay as those threads held them.
  static bool Forked() { return forked_.load(std::memory_order_relaxed); }
  /// From now on forked children are told apart: there is a client.
  static void WatchForks();

 private:
  explicit PluginLibrary(const std::string& path);
  PluginLibrary(std::string path, const pjrt::PJRT_Api& api) : path_(std::move(path)), api_(api) {}
  [[noreturn]] void ThrowMissing(const char* function) const;
  inline static std::atomic<bool> forked_{false};

  std::string path_;
  // A copy as long as this header's table: what an older plugin lacks is nullptr in it.
  pjrt::PJRT_Api api_{};
  mutable std::mutex custom_calls_mutex_;
  mutable std::map<std::string, void*, std::less<>> custom_calls_;
};

/// `function` is a slot of PJRT_Api; its name goes into the error.
#define PJRT_CALL(plugin, function, args) \
  (plugin).Call(&::torch_xla::runtime::pjrt::PJRT_Api::function, #function, args)
#define PJRT_TRY_CALL(plugin, function, args) \
  (plugin).TryCall(&::torch_xla::runtime::pjrt::PJRT_Api::function, #function, args)

}  // namespace torch_xla::runtime
