// The c10::Storage that PyTorch sees of an xla tensor. It tells whether tensors share memory, and
// `set_` makes tensors from it. The host cannot access its bytes.
#pragma once

#include <ATen/core/Tensor.h>

#include "tensor/storage.h"

namespace torch_xla::aten {

/// The storage that represents `root` and keeps it alive. It stays the same object as long as
/// somebody holds it.
c10::Storage TorchStorage(const tensor::StoragePtr& root);

/// The address of that storage: no host address, and no other living storage has it.
void* StorageAddress(const tensor::StoragePtr& root);

/// A storage on `device` with the bytes of `host`. They are sent to the device when `set_` gives
/// them a dtype. Its address is the address of the bytes.
c10::Storage StorageFromHost(c10::Storage host, int device);

/// Gives the storage of an xla tensor another size, and keeps what fits. Its tensors see memory
/// again once it has the size that it had: FSDP2 frees parameters so.
void ResizeStorage(const c10::Storage& storage, int64_t bytes);

/// Writes `source`, a CPU tensor, to such a storage. `block` is the tensor that PyTorch makes over
/// the storage's address to fill it from a file.
void WriteToStorage(const at::Tensor& block, const at::Tensor& source);

/// Reads the bytes of any storage made here; `block` is a tensor over its address.
at::Tensor ReadStorage(const at::Tensor& block);

}  // namespace torch_xla::aten
