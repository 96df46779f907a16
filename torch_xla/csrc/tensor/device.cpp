#include "tensor/device.h"

#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include "cpu/table.h"
#include "debug/environment.h"
#include "runtime/errors.h"
#include "runtime/flag_check.h"
#include "runtime/platform.h"
#include "runtime/plugin.h"

namespace torch_xla::tensor {
namespace {

std::mutex client_mutex;
std::atomic<runtime::Client*> client{nullptr};  // never destroyed: plugins misbehave at exit
std::atomic<const DeviceSet*> spmd_devices{nullptr};
// Per thread, as elsewhere in PyTorch: autograd's thread for a device makes that device current.
thread_local int current_device = 0;

std::vector<void (*)(runtime::Client&)>& ClientHooks() {
  static auto& hooks = *new std::vector<void (*)(runtime::Client&)>;
  return hooks;
}

std::vector<void (*)()>& ClientChecks() {
  static auto& checks = *new std::vector<void (*)()>;
  return checks;
}

std::optional<runtime::ProcessPlace>& Place() {
  static auto& place = *new std::optional<runtime::ProcessPlace>;
  return place;
}

const DeviceSet* Single(int device) {
  static const auto& sets = *[] {
    auto* made = new std::array<DeviceSet, 256>;
    for (int i = 0; i < 256; ++i) (*made)[i] = {i};
    return made;
  }();
  return &sets[static_cast<uint8_t>(device)];
}

void EnterSpmdMode(const runtime::Client& made) {
  if (spmd_devices.load()) return;
  const auto count = static_cast<int>(made.devices().size());
  const DeviceSet* all = Single(0);
  if (count > 1) {
    auto* several = new DeviceSet(count);
    std::iota(several->begin(), several->end(), 0);
    all = several;
  }
  const DeviceSet* none = nullptr;
  if (!spmd_devices.compare_exchange_strong(none, all) && all != Single(0)) delete all;
}

runtime::Client* CreateClient() {
  for (auto* check : ClientChecks()) check();
  std::vector<std::string> platforms = runtime::CandidatePlatforms();
  std::ostringstream failures;
  for (const std::string& platform : platforms) {
    try {
      const bool on_host = runtime::IsHost(platform);
      // Other platforms are not tried in a child process beforehand: a child that opens an
      // accelerator may keep its parent from opening it.
      if (on_host) runtime::CheckXlaFlags([&] { runtime::Client::Create(platform, nullptr); });
      return runtime::Client::Create(platform, Place() && !on_host ? &*Place() : nullptr).release();
    } catch (const runtime::Error& error) {
      if (platforms.size() == 1) throw;
      failures << "\n  " << platform << ": " << error.what();
    }
  }
  throw runtime::Error(runtime::pjrt::PJRT_Error_Code_NOT_FOUND,
                       "no PJRT plugin gave a device" + failures.str() +
                           "\n  (set PJRT_DEVICE to choose one, e.g. PJRT_DEVICE=CPU after "
                           "`pip install fastatomstruct-xla-cpu`)");
}

}  // namespace

runtime::Client& GetClient() {
  if (auto* made = client.load(std::memory_order_acquire)) {
    if (!runtime::Client::Forked()) return *made;
    throw runtime::Error(
        runtime::pjrt::PJRT_Error_Code_FAILED_PRECONDITION,
        "an xla device cannot be used in a process that was forked from a "
        "process that uses it: start the process with the 'spawn' method of multiprocessing");
  }
  std::lock_guard<std::mutex> lock(client_mutex);
  if (!client.load()) {
    runtime::Client* made = CreateClient();
    if (debug::EnvFlag("XLA_USE_SPMD")) EnterSpmdMode(*made);
    cpu::RegisterCalls(*made);
    for (auto* hook : ClientHooks()) hook(*made);
    client.store(made, std::memory_order_release);
  }
  return *client.load();
}

void OnClientCreated(void (*hook)(runtime::Client& client)) { ClientHooks().push_back(hook); }

void CheckBeforeClient(void (*check)()) { ClientChecks().push_back(check); }

void SetProcessPlace(runtime::ProcessPlace place) {
  std::lock_guard<std::mutex> lock(client_mutex);
  TORCH_CHECK(!client.load(), "the process's place must be set before a device is used");
  Place() = std::move(place);
}

bool RunsAcrossProcesses() {
  if (!runtime::HasInterconnect(Platform())) return false;
  std::lock_guard<std::mutex> lock(client_mutex);
  return Place().has_value();
}

const std::string& Platform() { return GetClient().platform(); }

bool ClientCreated() { return client.load(std::memory_order_acquire) != nullptr; }

void EnterSpmdMode() {
  TORCH_CHECK(current_device == 0, "SPMD mode has the one device xla:0, but the current device is ",
              TorchDevice(current_device));
  EnterSpmdMode(GetClient());
}

int SpmdDevices() {
  const DeviceSet* all = spmd_devices.load(std::memory_order_acquire);
  return all ? static_cast<int>(all->size()) : 0;
}

const DeviceSet* DevicesOf(int device) {
  const DeviceSet* all = spmd_devices.load(std::memory_order_acquire);
  return all ? all : Single(device);
}

int DeviceCount() { return SpmdDevices() > 0 ? 1 : static_cast<int>(GetClient().devices().size()); }

int CurrentDevice() { return current_device; }

int SetCurrentDevice(int device) {
  // Device 0 always exists. Asking for it must not start the client.
  return std::exchange(current_device, device == 0 ? 0 : DeviceOrdinal(TorchDevice(device)));
}

void EnterDevice(int device) { current_device = device; }

int DeviceOrdinal(c10::Device device) {
  TORCH_CHECK(device.type() == c10::DeviceType::XLA, "expected an xla device, got ", device);
  if (!device.has_index()) return CurrentDevice();
  const int count = DeviceCount();
  if (device.index() < count) return device.index();
  // A launcher's process has a single device, which LOCAL_RANK names, too, because scripts for
  // processes that see all devices use that number.
  const char* local_rank = std::getenv("LOCAL_RANK");
  const bool is_one = count == 1 && local_rank;
  TORCH_CHECK_INDEX(is_one && local_rank == std::to_string(device.index()), "there is no device ",
                    device, ": ", Platform(), " has ", count, " device", count == 1 ? "" : "s",
                    " (xla:0", count == 1 ? "" : " …", ")",
                    is_one ? ". A process that torchrun or spawn started has one device, xla:0, "
                             "which its LOCAL_RANK names, too: xla:"
                           : "",
                    is_one ? local_rank : "");
  return 0;
}

}  // namespace torch_xla::tensor
