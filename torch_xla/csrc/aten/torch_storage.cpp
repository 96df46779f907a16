#include "aten/torch_storage.h"

#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <mutex>
#include <unordered_map>

#include "aten/tensor_impl.h"
#include "lazy/device.h"
#include "lazy/node_factory.h"
#include "lazy/transfer.h"

namespace torch_xla::aten {
namespace {

/// Behind the data pointer of each of our storages.
struct Context {
  c10::weak_intrusive_ptr<lazy::Storage> shown;  // Of an xla tensor,
  c10::Storage host;                             // or from the host,
  lazy::StoragePtr sent;                         // and sent already.
};

using ContextPtr = std::unique_ptr<Context>;

std::mutex mutex;

/// Those from the host, by the address of their bytes.
std::unordered_map<const void*, Context*>& FromHost() {
  static auto& table = *new std::unordered_map<const void*, Context*>;
  return table;
}

void DeleteContext(void* pointer) {
  std::unique_ptr<Context> context(static_cast<Context*>(pointer));
  if (!context->host) return;
  std::lock_guard lock(mutex);
  // Two storages of one block are told apart.
  auto it = FromHost().find(context->host.data());
  if (it != FromHost().end() && it->second == context.get()) FromHost().erase(it);
}

c10::Storage Make(void* address, ContextPtr context, int device, size_t bytes) {
  c10::DataPtr data(address, context.release(), &DeleteContext, lazy::TorchDevice(device));
  return c10::Storage(c10::Storage::use_byte_size_t(), bytes, std::move(data));
}

/// In a table, since hardly any is ever asked for.
using Table = std::unordered_map<const lazy::Storage*,
                                 std::pair<c10::weak_intrusive_ptr<lazy::Storage>, c10::Storage>>;

}  // namespace

const c10::Storage& TorchStorage(const lazy::StoragePtr& root) {
  static auto& table = *new Table;
  static size_t purge_at = 64;
  std::lock_guard lock(mutex);
  if (table.size() >= purge_at) {
    std::erase_if(table, [](const auto& entry) { return entry.second.first.expired(); });
    purge_at = std::max<size_t>(64, 2 * table.size());
  }
  auto it = table.find(root.get());
  if (it != table.end() && it->second.first.expired()) {
    table.erase(it);  // Of one that was here before.
    it = table.end();
  }
  if (it == table.end()) {
    c10::weak_intrusive_ptr<lazy::Storage> owner(root);
    // No pointer of the host has this bit: who follows it faults instead of reading something.
    constexpr uintptr_t kNotOfTheHost = uintptr_t{1} << 62;
    const uintptr_t address = reinterpret_cast<uintptr_t>(root.get()) | kNotOfTheHost;
    ContextPtr context(new Context{owner, {}, {}});
    c10::Storage made =
        Make(reinterpret_cast<void*>(address), std::move(context), root->device(), 0);
    it = table.emplace(root.get(), std::pair(std::move(owner), std::move(made))).first;
  }
  const ir::ShapeRef shape = root->shape();  // It may have been resized.
  it->second.second.set_nbytes(static_cast<size_t>(shape->numel) * c10::elementSize(shape->dtype));
  return it->second.second;
}

c10::Storage StorageFromHost(c10::Storage host, int device) {
  TORCH_CHECK(host.device_type() == c10::kCPU, "expected a storage on the CPU, got one on ",
              host.device());
  void* address = host.mutable_data();
  const size_t bytes = host.nbytes();
  c10::weak_intrusive_ptr<lazy::Storage> none{lazy::StoragePtr()};
  ContextPtr context(new Context{std::move(none), std::move(host), {}});
  std::lock_guard lock(mutex);
  FromHost()[address] = context.get();
  return Make(address, std::move(context), device, bytes);
}

namespace {

/// The bytes from the host as elements of `dtype`, on the device; of the shape `sizes` if there
/// are as many. Not to be called with `mutex`: it asks the interpreter where this is.
ir::Value Send(const c10::Storage& host, c10::ScalarType dtype, c10::IntArrayRef sizes,
               int device) {
  const auto count = static_cast<int64_t>(host.nbytes() / c10::elementSize(dtype));
  at::Tensor all = at::empty({0}, at::TensorOptions().dtype(dtype));
  all.set_(host, 0, {count}, {1});
  if (c10::multiply_integers(sizes) == count) all = all.view(sizes);
  return lazy::MakeLeaf(lazy::ToDevice(all, device));
}

/// The memory behind a storage. What comes from the host and was not sent yet is sent as elements
/// of `dtype`, of the shape `sizes` if there are as many.
lazy::StoragePtr RootOf(const c10::Storage& storage, c10::ScalarType dtype,
                        c10::IntArrayRef sizes) {
  auto* context = storage.data_ptr().cast_context<Context>(&DeleteContext);
  TORCH_CHECK(context, "set_: expected the storage of an xla tensor, got one on ",
              storage.device());
  if (lazy::StoragePtr shown = context->shown.lock()) return shown;
  TORCH_CHECK(context->host,
              "set_: the tensors of this storage are gone, and its memory with them");
  {
    std::lock_guard lock(mutex);
    if (context->sent) return context->sent;
  }
  const int device = storage.device().index();
  auto sent = c10::make_intrusive<lazy::Storage>(Send(context->host, dtype, sizes, device), device);
  std::lock_guard lock(mutex);
  if (!context->sent) context->sent = std::move(sent);  // else another thread was first
  return context->sent;
}

at::Tensor& SetStorageWithOffset(at::Tensor& self, at::Storage source, int64_t storage_offset,
                                 at::IntArrayRef size, at::IntArrayRef stride) {
  lazy::StoragePtr root = RootOf(source, self.scalar_type(), size);
  const ir::ShapeRef shape = root->shape();
  at::Tensor all = at::detail::make_tensor<XLATensorImpl>(
      std::move(root), nullptr, c10::scalarTypeToTypeMeta(shape->dtype), shape->dims);
  if (shape->dtype != self.scalar_type()) all = all.view({-1}).view(self.scalar_type());
  const lazy::Ints contiguous = lazy::ContiguousStrides(size);
  if (stride.empty()) stride = contiguous;
  if (all.sizes() != size || stride != c10::IntArrayRef(contiguous) || storage_offset != 0) {
    all = at::as_strided(all, size, stride, storage_offset);
  }
  return self.set_(all);
}

at::Tensor& SetStorage(at::Tensor& self, at::Storage source) {
  const ir::ShapeRef shape = RootOf(source, self.scalar_type(), {})->shape();
  const auto bytes = shape->numel * static_cast<int64_t>(c10::elementSize(shape->dtype));
  const auto size = static_cast<int64_t>(c10::elementSize(self.scalar_type()));
  return SetStorageWithOffset(self, std::move(source), 0, {bytes / size}, {});
}

}  // namespace

void WriteToStorage(const at::Tensor& block, const at::Tensor& source) {
  // What the block's storage stands for: its bytes, and the tensors' memory where they were sent.
  auto find = [&]() -> std::pair<c10::Storage, lazy::StoragePtr> {
    std::lock_guard lock(mutex);
    auto it = FromHost().find(block.const_data_ptr());
    TORCH_CHECK(it != FromHost().end(), "copy_: expected an xla tensor, got a block of memory on ",
                block.device());
    return {it->second->host, it->second->sent};
  };
  const c10::Storage host = find().first;
  at::Tensor bytes = at::empty({0}, at::TensorOptions().dtype(block.scalar_type()));
  bytes.set_(host, 0, block.sizes(), block.strides());
  bytes.copy_(source);
  const lazy::StoragePtr sent = find().second;
  if (!sent) return;  // As it is when a pickle is loaded; older files come to here.
  const ir::ShapeRef shape = sent->shape();
  sent->Assign(Send(host, shape->dtype, shape->dims, sent->device()));
}

namespace {

TORCH_LIBRARY_IMPL(aten, XLA, m) {
  m.impl("set_.source_Storage", TORCH_FN(SetStorage));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(SetStorageWithOffset));
}

}  // namespace
}  // namespace torch_xla::aten
