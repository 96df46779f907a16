// The device guard (current device) and the hooks that PyTorch requires of a device.
#include <ATen/detail/XLAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "aten/generator.h"
#include "exec/executor.h"
#include "runtime/client.h"
#include "tensor/device.h"

namespace torch_xla::aten {
namespace {

// At the first backward pass, even on the CPU, autograd starts a thread for each device that
// exists, and a process with such threads can no longer fork. So a program that has not used the
// device yet reports no device; see KeepBackwardOnThread. In a forked child such a thread could not
// enter its device.
c10::DeviceIndex CountDevices() noexcept {
  const bool usable = tensor::ClientCreated() && !runtime::Client::Forked();
  return usable ? static_cast<c10::DeviceIndex>(tensor::DeviceCount()) : 0;
}

class XLAGuardImpl final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::DeviceType::XLA; }
  c10::Device exchangeDevice(c10::Device device) const override {
    c10::Device previous = getDevice();
    setDevice(device);
    return previous;
  }
  c10::Device getDevice() const override { return tensor::TorchDevice(tensor::CurrentDevice()); }
  void setDevice(c10::Device device) const override { tensor::EnterDevice(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { setDevice(device); }
  // There is one stream per device: programs run in the order in which they were queued.
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device.has_index() ? device : getDevice());
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return getStream(device); }
  c10::Stream getNewStream(c10::Device device, int /*priority*/) const override {
    return getStream(device);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool /*high_priority*/) const override {
    return getStream(device);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  bool queryStream(const c10::Stream& stream) const override {
    synchronizeStream(stream);
    return true;
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    synchronizeDevice(stream.device_index());
  }
  // Launches traced operations, too, since a program cannot tell that they were not launched yet.
  void synchronizeDevice(c10::DeviceIndex device) const override {
    if (tensor::ClientCreated()) exec::SyncDevice(device, /*wait=*/true);
  }
  // An event only knows its device, as a number that is not null. A device has a single queue, so
  // later work follows earlier work in any case, and recording an event need not cut the graph.
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex /*device*/,
              c10::EventFlag flag) const override {
    TORCH_CHECK_NOT_IMPLEMENTED(flag != c10::EventFlag::BACKEND_DEFAULT,
                                "torch.Event on xla takes no time: use torch.xla.Event, whose "
                                "record() waits for the device if it has enable_timing");
    *event = reinterpret_cast<void*>(static_cast<uintptr_t>(stream.device_index()) + 1);
  }
  void block(void* /*event*/, const c10::Stream& /*stream*/) const override {}
  bool queryEvent(void* event) const override {
    synchronizeEvent(event);
    return true;
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    synchronizeDevice(static_cast<c10::DeviceIndex>(reinterpret_cast<uintptr_t>(event) - 1));
  }
  c10::DeviceIndex deviceCount() const noexcept override { return CountDevices(); }
};

struct XLAHooks final : public at::XLAHooksInterface {
  // Newer torch constructs hooks without arguments, older torch with an argument object.
  template <typename... Args>
  explicit XLAHooks(const Args&...) {}
  bool hasXLA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override {
    try {
      return !tensor::GetClient().devices().empty();
    } catch (...) {
      return false;
    }
  }
  std::string showConfig() const override { return "torch_xla over PJRT"; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return tensor::ClientCreated(); }
  void init() const override { tensor::GetClient(); }
  c10::DeviceIndex deviceCount() const override {
    return isAvailable() ? CountDevices() : c10::DeviceIndex{0};
  }
  void setCurrentDevice(c10::DeviceIndex device) const override {
    tensor::SetCurrentDevice(device);
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(tensor::CurrentDevice());
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return static_cast<c10::DeviceIndex>(tensor::SetCurrentDevice(device));
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return exchangeDevice(device);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return DefaultGenerator(device < 0 ? getCurrentDevice() : device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return at::make_generator<XLAGeneratorImpl>(device < 0 ? getCurrentDevice() : device);
  }
};

C10_REGISTER_GUARD_IMPL(XLA, XLAGuardImpl)

}  // namespace
}  // namespace torch_xla::aten

namespace at {
// REGISTER_XLA_HOOKS would use only the class name as the key, but PyTorch looks for this key.
C10_REGISTER_TYPED_CLASS(XLAHooksRegistry, "torch_xla::detail::XLAHooks", torch_xla::aten::XLAHooks)
}  // namespace at
