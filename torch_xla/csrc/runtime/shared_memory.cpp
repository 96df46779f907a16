// Shares device memory with other libraries in both directions, as DLPack needs.
#include "runtime/buffer_type.h"
#include "runtime/client_impl.h"
#include "runtime/errors.h"

namespace torch_xla::runtime {

using namespace pjrt;

namespace {

// Whether the layout is untiled with the last dimension as the most minor one. A plugin that tells
// no layout has only this one.
bool IsRowMajor(const PluginLibrary& plugin, PJRT_Buffer* buffer) {
  if (!plugin.Has(&PJRT_Api::PJRT_Buffer_GetMemoryLayout)) return true;
  Args<PJRT_Buffer_GetMemoryLayout_Args> args;
  args.buffer = buffer;
  args.layout.struct_size = kStructSize<PJRT_Buffer_MemoryLayout>;
  PJRT_CALL(plugin, PJRT_Buffer_GetMemoryLayout, args);
  if (args.layout.type != PJRT_Buffer_MemoryLayout_Type_Tiled) return false;
  const PJRT_Buffer_MemoryLayout_Tiled& tiled = args.layout.layout.tiled;
  if (tiled.num_tiles != 0) return false;
  for (size_t i = 0; i < tiled.minor_to_major_size; ++i) {
    if (tiled.minor_to_major[i] != static_cast<int64_t>(tiled.minor_to_major_size - 1 - i)) {
      return false;
    }
  }
  return true;
}

using Owner = std::shared_ptr<const void>;

void LetGo(void* /*data*/, void* owner) { delete static_cast<Owner*>(owner); }

}  // namespace

std::shared_ptr<void> Buffer::Share() const {
  const PluginLibrary& plugin = client_->plugin;
  auto* buffer = static_cast<PJRT_Buffer*>(handle_);
  if (!IsRowMajor(plugin, buffer)) {
    throw Error(PJRT_Error_Code_UNIMPLEMENTED, "Share: the array is not row-major on the device");
  }
  PJRT_ASK(plugin, PJRT_Buffer_IncreaseExternalReferenceCount, buffer, buffer);
  std::shared_ptr<void> reference(buffer, [client = client_](void* shared) {
    Args<PJRT_Buffer_DecreaseExternalReferenceCount_Args> decrease;
    decrease.buffer = static_cast<PJRT_Buffer*>(shared);
    client->plugin.Destroy(&PJRT_Api::PJRT_Buffer_DecreaseExternalReferenceCount, decrease);
  });
  const auto address = PJRT_ASK(plugin, PJRT_Buffer_OpaqueDeviceMemoryDataPointer, buffer, buffer);
  return {std::move(reference), address.device_memory_ptr};
}

std::unique_ptr<Buffer> Client::ViewOf(void* data, ElementType type, std::span<const int64_t> dims,
                                       int device, std::shared_ptr<const void> owner,
                                       intptr_t stream) {
  const PluginLibrary& plugin = impl_->plugin;
  const size_t bytes = impl_->CheckArray("ViewOf", type, dims, device);
  if (data == nullptr) throw InvalidArgument("ViewOf: the data pointer is null");

  // A plugin that refuses may or may not have called LetGo: this weak pointer to `token` tells.
  Owner token = std::make_shared<Owner>(std::move(owner));
  const std::weak_ptr<const void> held = token;
  auto* callback_arg = new Owner(std::move(token));
  static constexpr int64_t kNoDims = 0;
  Args<PJRT_Client_CreateViewOfDeviceBuffer_Args> args;
  args.client = impl_->client;
  args.device_buffer_ptr = data;
  args.dims = dims.empty() ? &kNoDims : dims.data();
  args.num_dims = dims.size();
  args.element_type = ToBufferType(type);
  args.device = impl_->devices[device];
  args.on_delete_callback = &LetGo;
  args.on_delete_callback_arg = callback_arg;
  args.stream = stream;
  auto failed = [&] {
    if (!held.expired()) delete callback_arg;
  };
  PJRT_Error* error = nullptr;
  try {
    error = PJRT_TRY_CALL(plugin, PJRT_Client_CreateViewOfDeviceBuffer, args);
  } catch (...) {  // there is no such function
    failed();
    throw;
  }
  if (error != nullptr) {
    failed();
    plugin.Throw(error, "Taking memory of the device failed");
  }
  return std::make_unique<Buffer>(impl_, args.buffer, bytes, device, /*foreign=*/true);
}

std::optional<intptr_t> Client::ExternalStream(int device) const {
  impl_->CheckDevice(device, "ExternalStream");
  const PluginLibrary& plugin = impl_->plugin;
  auto* extension = reinterpret_cast<const PJRT_Stream_Extension*>(
      plugin.FindExtension(PJRT_Extension_Type_Stream));
  // Its later functions may be missing.
  if (extension == nullptr ||
      extension->base.struct_size <= offsetof(PJRT_Stream_Extension, get_stream) ||
      extension->get_stream == nullptr) {
    return std::nullopt;
  }
  Args<PJRT_Get_Stream_For_External_Ready_Events_Args> args;
  args.device = impl_->devices[device];
  if (PJRT_Error* error = extension->get_stream(&args)) {
    plugin.Discard(error);
    return std::nullopt;
  }
  return args.stream;
}

}  // namespace torch_xla::runtime
