#include "aten/torch_storage.h"

#include <ATen/ops/as_strided.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "aten/bridge.h"
#include "aten/tensor_impl.h"
#include "exec/transfer.h"
#include "tensor/device.h"
#include "tensor/node_factory.h"

namespace torch_xla::aten {
namespace {

/// The context behind the data pointer of each c10::Storage made here.
struct Context {
  tensor::StoragePtr root;  // null: the bytes from the host were not sent yet
  c10::Storage host;
  c10::weak_intrusive_ptr<c10::StorageImpl> shown;  // the storage of an xla tensor
};

using ContextPtr = std::unique_ptr<Context>;

/// No storage may be released while this is held, since the release takes it, too.
std::mutex mutex;

/// All contexts by address, while they live.
std::unordered_map<const void*, Context*>& Contexts() {
  static auto& table = *new std::unordered_map<const void*, Context*>;
  return table;
}

void DeleteContext(void* pointer) {
  ContextPtr context(static_cast<Context*>(pointer));
  const void* address = context->host ? context->host.data() : StorageAddress(context->root);
  std::lock_guard lock(mutex);
  auto it = Contexts().find(address);
  if (it != Contexts().end() && it->second == context.get()) Contexts().erase(it);
}

/// PyTorch calls the allocator of a storage in `storage.new()`, whether there is one or not.
struct NoAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t /*bytes*/) override {
    TORCH_CHECK_NOT_IMPLEMENTED(
        false, "a storage on xla is made with its tensor: ",
        "torch.empty(bytes, dtype=torch.uint8, device='xla').untyped_storage()");
  }
  void copy_data(void*, const void*, size_t) const override {}
};

c10::Storage Make(void* address, ContextPtr context, int device, size_t bytes) {
  static auto& allocator = *new NoAllocator;
  c10::DataPtr data(address, context.release(), &DeleteContext, tensor::TorchDevice(device));
  return c10::Storage(c10::Storage::use_byte_size_t(), bytes, std::move(data), &allocator);
}

c10::weak_intrusive_ptr<c10::StorageImpl> NoStorage() {
  return c10::weak_intrusive_ptr<c10::StorageImpl>(c10::intrusive_ptr<c10::StorageImpl>());
}

/// All of `root`, as elements of `dtype`.
at::Tensor TensorOf(tensor::StoragePtr root, c10::ScalarType dtype) {
  const ir::ShapeRef shape = root->shape();
  at::Tensor all = at::detail::make_tensor<XLATensorImpl>(
      std::move(root), nullptr, c10::scalarTypeToTypeMeta(shape->dtype), shape->dims);
  return shape->dtype == dtype ? all : all.view({-1}).view(dtype);
}

}  // namespace

void* StorageAddress(const tensor::StoragePtr& root) {
  // No host pointer has this bit, so an access through it faults instead of reading unrelated
  // memory.
  constexpr uintptr_t kNotOfTheHost = uintptr_t{1} << 62;
  return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(root.get()) | kNotOfTheHost);
}

c10::Storage TorchStorage(const tensor::StoragePtr& root) {
  const ir::ShapeRef shape = root->shape();  // it may have been resized
  const size_t bytes = static_cast<size_t>(shape->numel) * c10::elementSize(shape->dtype);
  std::lock_guard lock(mutex);
  Context*& context = Contexts()[StorageAddress(root)];
  if (context) {
    if (auto shown = context->shown.lock()) {
      shown->set_nbytes(bytes);
      return c10::Storage(std::move(shown));
    }
  }
  context = new Context{root, {}, NoStorage()};
  c10::Storage made = Make(StorageAddress(root), ContextPtr(context), root->device(), bytes);
  context->shown = made.getWeakStorageImpl();
  return made;
}

const c10::Storage& XLATensorImpl::storage() const {
  c10::Storage made = TorchStorage(root_);  // even if there is one already, to update its size
  c10::Storage* shown = shown_.load(std::memory_order_acquire);
  if (shown) return *shown;
  auto kept = std::make_unique<c10::Storage>(std::move(made));
  if (!shown_.compare_exchange_strong(shown, kept.get(), std::memory_order_acq_rel)) return *shown;
  return *kept.release();
}

c10::Storage StorageFromHost(c10::Storage host, int device) {
  TORCH_CHECK(host.device_type() == c10::kCPU, "expected a storage on the CPU, got a storage on ",
              host.device());
  void* address = host.mutable_data();
  const size_t bytes = host.nbytes();
  ContextPtr context(new Context{{}, std::move(host), NoStorage()});
  {
    std::lock_guard lock(mutex);
    Contexts()[address] = context.get();
  }
  return Make(address, std::move(context), device, bytes);
}

namespace {

/// Sends the bytes from the host to the device as elements of `dtype`, with the shape `sizes` if
/// that has as many elements.
ir::Value Send(const c10::Storage& host, c10::ScalarType dtype, c10::IntArrayRef sizes,
               int device) {
  const auto count = static_cast<int64_t>(host.nbytes() / c10::elementSize(dtype));
  at::Tensor all = at::empty({0}, at::TensorOptions().dtype(dtype));
  all.set_(host, 0, {count}, {1});
  if (c10::multiply_integers(sizes) == count) all = all.view(sizes);
  return tensor::MakeLeaf(exec::ToDevice(all, device));
}

/// The memory behind a storage. Bytes from the host that were not sent yet are sent as elements of
/// `dtype`, with the shape `sizes` if that has as many elements.
tensor::StoragePtr RootOf(const c10::Storage& storage, c10::ScalarType dtype,
                          c10::IntArrayRef sizes) {
  auto* context = storage.data_ptr().cast_context<Context>(&DeleteContext);
  TORCH_CHECK(context, "set_: expected the storage of an xla tensor, got a storage on ",
              storage.device());
  {
    std::lock_guard lock(mutex);
    if (context->root) return context->root;
  }
  const int device = storage.device().index();
  auto sent =
      c10::make_intrusive<tensor::Storage>(Send(context->host, dtype, sizes, device), device);
  std::lock_guard lock(mutex);
  if (!context->root) context->root = std::move(sent);  // another thread may have been first
  return context->root;
}

at::Tensor& SetStorageWithOffset(at::Tensor& self, at::Storage source, int64_t storage_offset,
                                 at::IntArrayRef size, at::IntArrayRef stride) {
  const c10::ScalarType dtype = self.scalar_type();
  at::Tensor all = TensorOf(RootOf(source, dtype, size), dtype);
  const tensor::Ints contiguous = tensor::ContiguousStrides(size);
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

at::Tensor& SetNothing(at::Tensor& self) { return self.set_(at::empty({0}, self.options())); }

}  // namespace

namespace {

/// Finds the storage whose address `block` has. Returns its memory (null before its bytes were
/// sent) and its bytes from the host.
std::pair<tensor::StoragePtr, c10::Storage> Behind(const at::Tensor& block) {
  std::lock_guard lock(mutex);
  auto it = Contexts().find(block.const_data_ptr());
  TORCH_CHECK(it != Contexts().end(), "copy_: expected an xla tensor, got a block of memory on ",
              block.device());
  return {it->second->root, it->second->host};
}

at::Tensor BytesOf(const c10::Storage& host, const at::Tensor& block) {
  at::Tensor bytes = at::empty({0}, at::TensorOptions().dtype(block.scalar_type()));
  return bytes.set_(host, 0, block.sizes(), block.strides());
}

}  // namespace

void ResizeStorage(const c10::Storage& storage, int64_t bytes) {
  const tensor::StoragePtr root = RootOf(storage, c10::ScalarType::Byte, {});
  const ir::ShapeRef shape = root->shape();
  const auto size = static_cast<int64_t>(c10::elementSize(shape->dtype));
  TORCH_CHECK_VALUE(bytes >= 0 && bytes % size == 0, "UntypedStorage.resize_: expected a multiple ",
                    "of the ", size, " bytes of an element of ", shape->dtype, ", got ", bytes);
  const auto options = at::TensorOptions().dtype(shape->dtype).device(storage.device());
  const int64_t count = bytes / size, kept = std::min(count, shape->numel);
  std::vector<at::Tensor> parts;
  if (kept > 0) {
    parts.push_back(MakeTensor(root->value(), root->device()).reshape({-1}).slice(0, 0, kept));
  }
  if (count > kept || parts.empty()) parts.push_back(at::empty({count - kept}, options));
  root->Assign(GetIrValue(parts.size() == 1 ? parts[0] : at::cat(parts)));
  storage.unsafeGetStorageImpl()->set_nbytes(bytes);
}

void WriteToStorage(const at::Tensor& block, const at::Tensor& source) {
  const auto [root, host] = Behind(block);
  TORCH_CHECK(host, "copy_: a block of memory on ", block.device(),
              " can only be written if it comes from a file");
  BytesOf(host, block).copy_(source);
  if (!root) return;  // the case when a pickle is loaded; only older files get beyond this line
  const ir::ShapeRef shape = root->shape();
  root->Assign(Send(host, shape->dtype, shape->dims, root->device()));
}

at::Tensor ReadStorage(const at::Tensor& block) {
  const auto [root, host] = Behind(block);
  return root ? TensorOf(root, block.scalar_type()).view(block.sizes()) : BytesOf(host, block);
}

namespace {

TORCH_LIBRARY_IMPL(aten, XLA, m) {
  m.impl("set_", TORCH_FN(SetNothing));
  m.impl("set_.source_Storage", TORCH_FN(SetStorage));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(SetStorageWithOffset));
}

}  // namespace
}  // namespace torch_xla::aten
