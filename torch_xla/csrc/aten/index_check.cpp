#include "aten/index_check.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/where.h>

#include <algorithm>
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

[[noreturn]] void ThrowOutOfRange(const char* op, int64_t value, int64_t low, int64_t high,
                                  Raises raises) {
  if (raises == kRuntimeError) {
    TORCH_CHECK(false, op, ": index ", value, " is out of range [", low, ", ", high, ")");
  }
  TORCH_CHECK_INDEX(false, op, ": index ", value, " is out of range [", low, ", ", high, ")");
}

/// Whether the view, of a storage of `numel` elements, leaves out none of them.
bool SeesAll(const lazy::View& view, int64_t numel) {
  if (view.steps.size() != 1 || view.last().bitcast) return false;
  const lazy::ViewStep& step = view.last();
  c10::SmallVector<std::pair<int64_t, int64_t>, 5> dims;  // stride, size
  for (size_t i = 0; i < step.sizes.size(); ++i) {
    if (step.sizes[i] != 1 && step.strides[i] != 0)
      dims.emplace_back(step.strides[i], step.sizes[i]);
  }
  std::sort(dims.begin(), dims.end());
  int64_t extent = 1;
  for (const auto& [stride, size] : dims) {
    if (stride != extent) return false;
    extent *= size;
  }
  return extent == numel;
}

/// What is known of the storage's integers.
std::optional<lazy::Extremes> ExtremesOf(const XLATensorImpl& tensor) {
  const ir::Value value = tensor.root()->value();
  const lazy::DeviceData* data = lazy::LeafData(value);
  return data ? data->extremes() : std::nullopt;
}

/// Whether the tensor has all elements of its storage.
bool SeesAll(const XLATensorImpl& tensor) {
  const lazy::View* view = tensor.view();
  return !view || SeesAll(*view, tensor.root()->shape()->numel);
}

/// One of the indices that are known to be out of range.
std::optional<int64_t> KnownBad(const XLATensorImpl& index, int64_t low, int64_t high,
                                std::optional<int64_t> ignored) {
  const std::optional<lazy::Extremes> extremes = ExtremesOf(index);
  if (!extremes) return std::nullopt;
  const int64_t least = extremes->least == ignored ? extremes->second_least : extremes->least;
  const int64_t most = extremes->most == ignored ? extremes->second_most : extremes->most;
  if (least >= low && most < high) [[likely]]
    return std::nullopt;
  if (!SeesAll(index)) return std::nullopt;
  // Where all are ignored there is no least and no most.
  if (least < low) return least;
  if (most >= high) return most;
  return std::nullopt;
}

}  // namespace

void CheckIndex(const char* op, const at::Tensor& index, int64_t low, int64_t high,
                std::optional<int64_t> ignored, Raises raises) {
  if (!IsXla(index) || index.numel() == 0 || !at::isIntegralType(index.scalar_type(), false)) {
    return;
  }
  if (std::optional<int64_t> bad = KnownBad(*GetImpl(index), low, high, ignored)) {
    ThrowOutOfRange(op, *bad, low, high, raises);
  }
  if (!indices_are_checked.load(std::memory_order_relaxed)) return;
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

void CheckCpuIndex(const char* op, const at::Tensor& index, int64_t low, int64_t high) {
  if (!index.is_cpu() || index.numel() == 0) return;
  const int64_t least = index.min().item().toLong(), most = index.max().item().toLong();
  if (least < low || most >= high) {
    ThrowOutOfRange(op, least < low ? least : most, low, high, kIndexError);
  }
}

void CheckDivisor(const at::Tensor& self, const at::Tensor& other) {
  if (!at::isIntegralType(self.scalar_type(), true) ||
      !at::isIntegralType(other.scalar_type(), true) || self.numel() == 0) {
    return;
  }
  if (!IsXla(other)) {
    if (other.is_cpu() && other.dim() == 0) CheckDivisor(self, other.item());
  } else if (const std::optional<lazy::Extremes> known = ExtremesOf(*GetImpl(other))) {
    const bool zero = known->least == 0 || known->second_least == 0 || known->second_most == 0 ||
                      known->most == 0;
    TORCH_CHECK(!zero || other.numel() == 0 || !SeesAll(*GetImpl(other)),
                "ZeroDivisionError: integers divided by 0");
  }
}

void CheckDivisor(const at::Tensor& self, const at::Scalar& other) {
  TORCH_CHECK(!at::isIntegralType(self.scalar_type(), true) || self.numel() == 0 ||
                  !other.isIntegral(true) || !other.equal(int64_t{0}),
              "ZeroDivisionError: integers divided by 0");
}

void CheckDivisor(const at::Scalar& self, const at::Tensor& other) {
  if (self.isIntegral(true)) CheckDivisor(other, other);
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
