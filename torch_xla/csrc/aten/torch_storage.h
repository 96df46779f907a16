// What PyTorch takes for the storage of an xla tensor: it tells whether tensors share memory, and
// `set_` makes tensors of it. Its bytes cannot be reached from the host.
#pragma once

#include <ATen/core/Tensor.h>

#include "tensor/storage.h"

namespace torch_xla::aten {

/// The one that stands for `root`, and keeps it alive; the same one as long as somebody holds it.
c10::Storage TorchStorage(const lazy::StoragePtr& root);

/// Its address: none of the host's, but no other living storage has it.
void* StorageAddress(const lazy::StoragePtr& root);

/// A storage on `device` with the bytes of `host`, which are sent there when `set_` gives them a
/// dtype. Its address is that of the bytes.
c10::Storage StorageFromHost(c10::Storage host, int device);

/// Writes `source`, a CPU tensor, to such a storage; `block` is what PyTorch makes to fill one from
/// a file, a tensor of no kind over its address.
void WriteToStorage(const at::Tensor& block, const at::Tensor& source);

/// The other way: what such a block, over the address of any of our storages, holds.
at::Tensor ReadStorage(const at::Tensor& block);

}  // namespace torch_xla::aten
