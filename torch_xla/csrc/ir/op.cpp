#include "ir/op.h"

#include <mutex>
#include <string_view>
#include <unordered_set>

#include "ir/hash.h"

namespace torch_xla::ir {
namespace {

uint64_t NewId(std::string_view name, std::string_view overload) {
  // Some operations share the name of the operation that they are a part of. Every process makes
  // the operations in the same order.
  static std::mutex mutex;
  static auto& taken = *new std::unordered_set<uint64_t>;
  Hasher hasher;
  hasher.AddText(name);
  hasher.AddText(overload);
  std::lock_guard lock(mutex);
  while (!taken.insert(hasher.Finish().low).second) hasher.Add(1);
  return hasher.Finish().low;
}

}  // namespace

OpSpec::OpSpec(const char* name, const char* overload, std::span<const ArgSpec> args,
               LowerFunction lower, debug::Counter* counter)
    : name(name),
      overload(overload),
      args(args),
      lower(lower),
      counter(counter),
      id(NewId(name, overload)) {}

}  // namespace torch_xla::ir
