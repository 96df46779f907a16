// The state of a client that its buffers and executables share. They keep it alive, so that the
// PJRT client is destroyed after all of them, in whatever order their owners release them.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "runtime/client.h"
#include "runtime/loaded_library.h"
#include "runtime/plugin_library.h"

namespace torch_xla::runtime {

struct ClientImpl : std::enable_shared_from_this<ClientImpl> {
  /// Live bytes of one device. Padded, so that devices do not share a cache line.
  struct alignas(64) Accounting {
    std::atomic<int64_t> in_use{0};
    std::atomic<int64_t> peak{0};
    std::atomic<int64_t> plugin_peak_then{-1};  // the plugin's peak at the last reset
  };

  explicit ClientImpl(const PluginLibrary& plugin);
  ~ClientImpl();
  ClientImpl(const ClientImpl&) = delete;
  ClientImpl& operator=(const ClientImpl&) = delete;

  void Charge(int device, size_t bytes);
  void Release(int device, size_t bytes);
  /// Throws an Error that begins with `what` if `device` is no index of `devices`.
  void CheckDevice(int device, const char* what) const;
  /// The index of `device` in `devices`.
  int IndexOf(const pjrt::PJRT_Device* device) const;

  std::unique_ptr<Buffer> BufferFromHost(const void* data, ElementType type,
                                         std::span<const int64_t> dims, int device,
                                         std::function<void()> on_done, bool zero_copy);
  /// Throws Error for an array on which the plugin would abort the process; else returns its dense
  /// size in bytes.
  size_t CheckArray(const char* what, ElementType type, std::span<const int64_t> dims,
                    int device) const;
  /// The dense size on the host of any array that the plugin made, in bytes.
  size_t ArrayBytes(pjrt::PJRT_Buffer* buffer) const;

  const PluginLibrary& plugin;
  pjrt::PJRT_Client* client = nullptr;
  bool host_memory = false;
  CompilerCode code;
  std::vector<pjrt::PJRT_Device*> devices;
  std::vector<int> device_ids;
  /// The plugin's id of the device of each process of the job, by rank; empty for a single process.
  std::vector<int64_t> process_device_ids;
  std::shared_ptr<KeyValueStore> store;  // the plugin may use it as long as the client lives
  std::unique_ptr<Accounting[]> accounting;
};

/// The size of a dense array in bytes. Throws Error for types that the runtime does not support.
size_t DenseBytes(pjrt::PJRT_Buffer_Type type, std::span<const int64_t> dims);

}  // namespace torch_xla::runtime
