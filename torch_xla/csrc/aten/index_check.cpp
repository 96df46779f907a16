#include "aten/index_check.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/where.h>

#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "aten/bridge.h"
#include "lazy/executor.h"
#include "lazy/node_factory.h"

namespace torch_xla::aten {
namespace {

/// The largest of the indices that are out of range; kNone if there is none.
constexpr int64_t kNone = std::numeric_limits<int64_t>::min();

struct Check {
  const char* op;
  const ir::SourceLocation* location;
  int64_t low, high;
  at::Tensor found;

  void Throw(int64_t value) const {
    std::string line;
    if (location) {
      line = "\n  traced at " + location->ToString() + " in " + location->code->function;
    }
    TORCH_CHECK_INDEX(false, op, ": index ", value, " is out of range [", low, ", ", high, ")",
                      line);
  }
};

std::mutex mutex;
std::map<int, std::vector<Check>>& Checks() {
  static auto& checks = *new std::map<int, std::vector<Check>>;
  return checks;
}
/// Reading what was found is no read of the user's.
thread_local bool reading = false;
/// So many are kept before they are looked at.
constexpr size_t kMaxChecks = 256;

}  // namespace

void CheckIndex(const char* op, const at::Tensor& index, int64_t low, int64_t high,
                std::optional<int64_t> ignored) {
  if (!indices_are_checked.load(std::memory_order_relaxed)) return;
  if (!IsXla(index) || index.numel() == 0 || !at::isIntegralType(index.scalar_type(), false)) {
    return;
  }
  const at::Tensor wide = index.detach().to(at::kLong);
  at::Tensor bad = wide.lt(low).logical_or(wide.ge(high));
  if (ignored) bad = bad.logical_and(wide.ne(*ignored));
  at::Tensor found = at::where(bad, wide, kNone).amax();
  const int device = GetImpl(index)->root()->device();
  bool full;
  {
    std::lock_guard<std::mutex> lock(mutex);
    auto& checks = Checks()[device];
    checks.push_back({op, lazy::CurrentLocation(), low, high, std::move(found)});
    full = checks.size() >= kMaxChecks;
  }
  if (full) ThrowIndexError(device);
}

void CheckHostIndex(const at::Tensor& index, int64_t low, int64_t high, int64_t dim) {
  if (!index.is_cpu() || index.numel() == 0) return;
  const int64_t least = index.min().item().toLong(), most = index.max().item().toLong();
  TORCH_CHECK_INDEX(least >= low && most < high, "index ", least < low ? least : most,
                    " is out of bounds for dimension ", dim, " with size ", high);
}

void ThrowIndexError(int device) {
  if (reading) return;
  std::vector<Check> checks;
  {
    std::lock_guard<std::mutex> lock(mutex);
    auto it = Checks().find(device);
    if (it == Checks().end()) return;
    checks = std::exchange(it->second, {});
  }
  if (checks.empty()) return;
  reading = true;
  struct Done {
    ~Done() { reading = false; }
  } done;
  std::vector<lazy::StoragePtr> storages;
  for (const Check& check : checks) storages.push_back(GetImpl(check.found)->root());
  lazy::SyncStorages(storages, /*wait=*/false);
  for (const Check& check : checks) {
    const int64_t value = ToCpu(check.found).item<int64_t>();
    if (value != kNone) check.Throw(value);
  }
}

}  // namespace torch_xla::aten
