// Lets a plugin use a c10d store while its client starts.
#pragma once

#include <memory>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "runtime/key_value_store.h"

namespace torch_xla::distributed {

std::shared_ptr<runtime::KeyValueStore> MakeProcessStore(c10::intrusive_ptr<c10d::Store> store);

}  // namespace torch_xla::distributed
