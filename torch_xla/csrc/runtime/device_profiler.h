// What a plugin's own profiler saw its devices do.
#pragma once

#include <memory>
#include <string>
#include <type_traits>

#include "runtime/plugin_library.h"

namespace torch_xla::runtime {

/// A recording, from its start to Stop(). A process may have one at a time.
class DeviceProfiler {
 public:
  /// nullptr where the plugin has no profiler; throws runtime::Error where it cannot begin.
  static std::unique_ptr<DeviceProfiler> Start(const PluginLibrary& plugin);
  /// Ends a recording that nobody wants.
  ~DeviceProfiler();
  DeviceProfiler(const DeviceProfiler&) = delete;
  DeviceProfiler& operator=(const DeviceProfiler&) = delete;

  /// Ends it; returns the planes of the devices, a serialized XSpace. Once.
  std::string Stop();

 private:
  explicit DeviceProfiler(const pjrt::PLUGIN_Profiler_Api& api);
  template <typename Args>
  void Call(pjrt::PLUGIN_Profiler_Function<Args> pjrt::PLUGIN_Profiler_Api::* function,
            const char* what, std::type_identity_t<Args>& args) const;
  /// Of the functions that take nothing but the profiler.
  template <typename Args>
  void Call(pjrt::PLUGIN_Profiler_Function<Args> pjrt::PLUGIN_Profiler_Api::* function,
            const char* what) const;

  const pjrt::PLUGIN_Profiler_Api& api_;
  pjrt::PLUGIN_Profiler* profiler_ = nullptr;
  bool running_ = false;
};

}  // namespace torch_xla::runtime
