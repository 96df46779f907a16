// Records device activity with the plugin's own profiler.
#pragma once

#include <memory>
#include <string>
#include <type_traits>

#include "runtime/plugin_library.h"

namespace torch_xla::runtime {

/// A recording, from Start() to Stop(). A process may have only one at a time.
class DeviceProfiler {
 public:
  /// Starts a recording. Returns nullptr if the plugin has no profiler; throws runtime::Error if
  /// the recording cannot start.
  static std::unique_ptr<DeviceProfiler> Start(const PluginLibrary& plugin);
  /// Discards the recording if Stop() was not called.
  ~DeviceProfiler();
  DeviceProfiler(const DeviceProfiler&) = delete;
  DeviceProfiler& operator=(const DeviceProfiler&) = delete;

  /// Ends the recording and returns the planes of the devices as a serialized XSpace. Call it once.
  std::string Stop();

 private:
  explicit DeviceProfiler(const pjrt::PLUGIN_Profiler_Api& api);
  template <typename Args>
  void Call(pjrt::PLUGIN_Profiler_Function<Args> pjrt::PLUGIN_Profiler_Api::* function,
            const char* what, std::type_identity_t<Args>& args) const;
  /// Calls a function that takes only the profiler.
  template <typename Args>
  void Call(pjrt::PLUGIN_Profiler_Function<Args> pjrt::PLUGIN_Profiler_Api::* function,
            const char* what) const;

  const pjrt::PLUGIN_Profiler_Api& api_;
  pjrt::PLUGIN_Profiler* profiler_ = nullptr;
  bool running_ = false;
};

}  // namespace torch_xla::runtime
