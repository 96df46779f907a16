// The devices of this process: one PJRT client, created when first needed.
#pragma once

#include <c10/core/Device.h>

#include <string>
#include <vector>

#include "runtime/client.h"

namespace torch_xla::tensor {

/// The client of PJRT_DEVICE's platform, or of the first platform that has a device. Throws
/// runtime::Error if there is none; a later call tries again.
runtime::Client& GetClient();
/// Calls `check` before the client is created; GetClient throws what `check` throws. For static
/// initialization.
void CheckBeforeClient(void (*check)());
/// Calls `hook` when the client has been created, before anything is compiled. For static
/// initialization: a hook added after that is never called.
void OnClientCreated(void (*hook)(runtime::Client& client));
/// Says that this process is one of several whose programs may run together on their devices. Must
/// be called before there is a client; throws otherwise. Not for the CPU, where collectives run on
/// the host.
void SetProcessPlace(runtime::ProcessPlace place);
/// Whether programs of several processes may run together on their devices.
bool RunsAcrossProcesses();
/// The same as GetClient().platform(), but cached.
const std::string& Platform();
bool ClientCreated();

/// Devices of the client, by index, that hold the parts of an array and run a program together.
/// Interned: equal sets are the same object, which is never freed.
using DeviceSet = std::vector<int>;
/// The devices that an xla device stands for: one device, or all of them in SPMD mode. Existing
/// data keeps the set that it was made for.
const DeviceSet* DevicesOf(int device);

/// From now on the devices of this process are a single device xla:0. Programs run on all of them,
/// each on its tiles of the arrays (tensor/sharding.h). Cannot be undone.
void EnterSpmdMode();
/// The number of devices that xla:0 stands for in SPMD mode; 0 otherwise.
int SpmdDevices();
/// The number of devices that PyTorch sees: 1 in SPMD mode.
int DeviceCount();

/// The current device of this thread, which 'xla' without an index stands for.
int CurrentDevice();
/// Returns the previous device. Throws IndexError if there is no such device.
int SetCurrentDevice(int device);
/// Sets the current device without a check: for guards, whose device comes from a tensor, and for
/// autograd's threads, which may start before there is a client.
void EnterDevice(int device);
/// The ordinal of an 'xla' device, or the current device if it has no index. Checks that the device
/// exists.
int DeviceOrdinal(c10::Device device);
inline c10::Device TorchDevice(int ordinal) {
  return {c10::DeviceType::XLA, static_cast<c10::DeviceIndex>(ordinal)};
}

}  // namespace torch_xla::tensor
