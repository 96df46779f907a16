// The devices of this process: one PJRT client, made when first needed.
#pragma once

#include <c10/core/Device.h>

#include <string>
#include <vector>

#include "runtime/client.h"

namespace torch_xla::lazy {

/// The client of PJRT_DEVICE's platform (or of the first that has a device). Throws
/// runtime::Error when there is none; a later call tries again.
runtime::Client& GetClient();
/// Calls `check` before the client is made; what it throws, GetClient throws. For static
/// initialization.
void CheckBeforeClient(void (*check)());
/// Calls `hook` when the client has been made, before anything is compiled. For static
/// initialization: hooks that come later than the client are not called.
void OnClientCreated(void (*hook)(runtime::Client& client));
/// Says, before there is a client, that this process is one of several whose programs may run
/// together on their devices. Not for the CPU, where collectives run on the host.
void SetProcessPlace(runtime::ProcessPlace place);
/// Whether they may.
bool RunsAcrossProcesses();
/// GetClient().platform(), without a look-up.
const std::string& Platform();
bool ClientCreated();

/// Devices of the client, by their index, that hold the parts of an array and run a program
/// together. Interned: equal sets are one object, which is never freed.
using DeviceSet = std::vector<int>;
/// What an xla device stands for: one device, or in SPMD mode all. What has been made keeps the set
/// that it was made for.
const DeviceSet* DevicesOf(int device);

/// From now on and for good the devices of this process are one, xla:0: programs run on all of
/// them, each working on its tiles of the arrays (tensor/sharding.h).
void EnterSpmdMode();
/// How many devices xla:0 stands for in SPMD mode; 0 in any other.
int SpmdDevices();
/// How many devices there are to PyTorch: 1 in SPMD mode.
int DeviceCount();

/// The current device of this thread, for 'xla' without an index.
int CurrentDevice();
/// Returns the previous one; throws IndexError when there is no such device.
int SetCurrentDevice(int device);
/// The same unchecked: for guards, whose device is that of a tensor, and for autograd's
/// threads, which may start before there is a client.
void EnterDevice(int device);
/// The ordinal of an 'xla' device, the current one where it has no index; checked.
int DeviceOrdinal(c10::Device device);
inline c10::Device TorchDevice(int ordinal) {
  return {c10::DeviceType::XLA, static_cast<c10::DeviceIndex>(ordinal)};
}

}  // namespace torch_xla::lazy
