#include <algorithm>
#include <cstring>

#include "runtime/buffer_type.h"
#include "runtime/client_impl.h"
#include "runtime/errors.h"

namespace torch_xla::runtime {

using namespace pjrt;

namespace {

PJRT_Buffer* Handle(void* handle) { return static_cast<PJRT_Buffer*>(handle); }

std::span<const int64_t> Dimensions(const PluginLibrary& plugin, PJRT_Buffer* buffer) {
  const auto args = PJRT_ASK(plugin, PJRT_Buffer_Dimensions, buffer, buffer);
  return {args.dims, args.num_dims};
}

}  // namespace

size_t DenseBytes(PJRT_Buffer_Type type, std::span<const int64_t> dims) {
  if (type == PJRT_Buffer_Type_TOKEN) return 0;
  size_t bytes = ByteWidth(FromBufferType(type));
  if (bytes == 0) {
    throw Error(PJRT_Error_Code_UNIMPLEMENTED,
                "PJRT buffer type " + std::to_string(type) + " has no torch_xla element type");
  }
  for (int64_t dim : dims) bytes *= static_cast<size_t>(dim);
  return bytes;
}

size_t ClientImpl::ArrayBytes(PJRT_Buffer* buffer) const {
  const auto type_args = PJRT_ASK(plugin, PJRT_Buffer_ElementType, buffer, buffer);
  return DenseBytes(type_args.type, Dimensions(plugin, buffer));
}

size_t ClientImpl::CheckArray(const char* what, ElementType type, std::span<const int64_t> dims,
                              int device) const {
  CheckDevice(device, what);
  const PJRT_Buffer_Type buffer_type = ToBufferType(type);
  if (buffer_type == PJRT_Buffer_Type_INVALID) {
    throw InvalidArgument(std::string(what) + ": the element type is invalid");
  }
  if (plugin.ApiMinor() < BufferTypeSince(buffer_type)) {
    throw Error(PJRT_Error_Code_UNIMPLEMENTED,
                "The PJRT plugin " + plugin.path() + " (API " + plugin.ApiVersion() +
                    ") does not know element type " + std::string(MlirName(type)));
  }
  for (int64_t dim : dims) {
    if (dim < 0) {
      throw InvalidArgument(std::string(what) + ": dimension " + std::to_string(dim) +
                            " is negative");
    }
  }
  return DenseBytes(buffer_type, dims);
}

std::unique_ptr<Buffer> ClientImpl::BufferFromHost(const void* data, ElementType type,
                                                   std::span<const int64_t> dims, int device,
                                                   std::function<void()> on_done, bool zero_copy) {
  const size_t bytes = CheckArray("BufferFromHost", type, dims, device);
  static constexpr int64_t kNothing = 0;
  if (data == nullptr) {
    if (bytes != 0) throw InvalidArgument("BufferFromHost: the data pointer is null");
    data = &kNothing;
  }

  Args<PJRT_Client_BufferFromHostBuffer_Args> args;
  args.client = client;
  args.data = data;
  args.type = ToBufferType(type);
  args.dims = dims.empty() ? &kNothing : dims.data();
  args.num_dims = dims.size();
  args.host_buffer_semantics = zero_copy ? PJRT_HostBufferSemantics_kImmutableZeroCopy
                               : on_done ? PJRT_HostBufferSemantics_kImmutableUntilTransferCompletes
                                         : PJRT_HostBufferSemantics_kImmutableOnlyDuringCall;
  args.device = devices[device];
  PJRT_CALL(plugin, PJRT_Client_BufferFromHostBuffer, args);

  Event done(&plugin, args.done_with_host_buffer);
  auto buffer = std::make_unique<Buffer>(shared_from_this(), args.buffer, bytes, device);
  if (on_done) {
    // A failed transfer no longer reads `data` either; its error stays in the buffer.
    done.OnReady([on_done = std::move(on_done)](const Error*) { on_done(); });
  }
  return buffer;
}

Buffer::Buffer(std::shared_ptr<ClientImpl> client, void* handle, size_t bytes, int device,
               bool foreign)
    : client_(std::move(client)),
      handle_(handle),
      bytes_(bytes),
      accounted_(foreign ? 0 : bytes),
      device_(device),
      foreign_(foreign) {
  client_->Charge(device_, accounted_);
}

Buffer::~Buffer() {
  Args<PJRT_Buffer_Destroy_Args> args;
  args.buffer = Handle(handle_);
  client_->plugin.Destroy(&PJRT_Api::PJRT_Buffer_Destroy, args);
  ReleaseAccounting();
}

void Buffer::ReleaseAccounting() {
  if (const size_t bytes = accounted_.exchange(0, std::memory_order_relaxed)) {
    client_->Release(device_, bytes);
  }
}

Event Buffer::CopyToHost(void* dst) const {
  const PluginLibrary& plugin = client_->plugin;
  // With a null destination the plugin would only tell the size.
  if (bytes_ == 0) return ReadyEvent();
  if (dst == nullptr) throw InvalidArgument("CopyToHost: the destination is null");

  Args<PJRT_Buffer_ToHostBuffer_Args> args;
  args.src = Handle(handle_);
  args.dst = dst;
  args.dst_size = bytes_;
  // Without a given layout the plugin may keep the device's layout, which need not be row-major.
  Args<PJRT_Buffer_MemoryLayout> layout;
  std::vector<int64_t> minor_to_major;
  if (!client_->host_memory) {
    minor_to_major.resize(Dimensions(plugin, Handle(handle_)).size());
    for (size_t i = 0; i < minor_to_major.size(); ++i) {
      minor_to_major[i] = static_cast<int64_t>(minor_to_major.size() - 1 - i);
    }
    layout.type = PJRT_Buffer_MemoryLayout_Type_Tiled;
    layout.layout.tiled.struct_size = kStructSize<PJRT_Buffer_MemoryLayout_Tiled>;
    layout.layout.tiled.minor_to_major = minor_to_major.data();
    layout.layout.tiled.minor_to_major_size = minor_to_major.size();
    args.host_layout = &layout;
  }
  PJRT_CALL(plugin, PJRT_Buffer_ToHostBuffer, args);
  return Event(&plugin, args.event);
}

Event Buffer::ReadyEvent() const {
  const auto args = PJRT_ASK(client_->plugin, PJRT_Buffer_ReadyEvent, buffer, Handle(handle_));
  return Event(&client_->plugin, args.event);
}

}  // namespace torch_xla::runtime
