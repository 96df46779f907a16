#include "aten/index_check.h"

#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "aten/tensor_impl.h"
#include "exec/cut_log.h"
#include "exec/executor.h"
#include "tensor/node_factory.h"

namespace torch_xla::aten {
namespace {

/// The result of a check on the device is the largest index out of range; kNone if there is none.
constexpr int64_t kNone = std::numeric_limits<int64_t>::min();

struct Check {
  const char* op;
  const ir::SourceLocation* location;
  int64_t low, high;
  at::Tensor found;
  const char* message = nullptr;  // set if the error is not about an index

  void Throw(int64_t value) const {
    std::string line;
    if (location) {
      line = "\n  traced at " + location->ToString() + " in " + location->code->function;
    }
    TORCH_CHECK(!message, op, ": ", message, line);
    TORCH_CHECK_INDEX(false, op, ": index ", value, " is out of range [", low, ", ", high, ")",
                      line);
  }
};

std::mutex mutex;
std::map<int, std::vector<Check>>& Checks() {
  static auto& checks = *new std::map<int, std::vector<Check>>;
  return checks;
}
/// Set while the results of checks are read, which is no read by the user.
thread_local bool reading = false;
/// This many checks are kept before their results are read.
constexpr size_t kMaxChecks = 256;

[[noreturn]] void ThrowOutOfRange(const char* op, int64_t value, int64_t low, int64_t high,
                                  Raises raises) {
  if (raises == kRuntimeError) {
    TORCH_CHECK(false, op, ": index ", value, " is out of range [", low, ", ", high, ")");
  }
  TORCH_CHECK_INDEX(false, op, ": index ", value, " is out of range [", low, ", ", high, ")");
}

bool HasIndices(const at::Tensor& tensor) {
  return IsXla(tensor) && tensor.numel() != 0 && at::isIntegralType(tensor.scalar_type(), false);
}

/// Whether a view of a storage with `numel` elements contains all of them.
bool SeesAll(const tensor::View& view, int64_t numel) {
  if (view.steps.size() != 1 || view.last().bitcast) return false;
  const tensor::ViewStep& step = view.last();
  tensor::Ints sizes = step.sizes;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (step.strides[i] == 0) sizes[i] = 1;
  }
  return c10::multiply_integers(sizes) == numel && tensor::FillsBlock(sizes, step.strides);
}

/// Whether the tensor contains all elements of its storage.
bool SeesAll(const XLATensorImpl& tensor) {
  const tensor::View* view = tensor.view();
  return !view || SeesAll(*view, tensor.root()->shape()->numel);
}

/// The first violation of `bounds` among the tensor's integers, if these are known because they
/// came from the host.
std::optional<int64_t> KnownViolation(const XLATensorImpl& tensor,
                                      const tensor::IntegerBounds& bounds) {
  const ir::Value value = tensor.root()->value();
  const tensor::DeviceData* data = tensor::LeafData(value);
  if (!data) return std::nullopt;
  // A replayed call skips its operations, so the bounds that they check are recorded for the
  // replay.
  if (exec::CutLog* recorder = exec::CurrentCutLog()) [[unlikely]] {
    if (SeesAll(tensor)) recorder->bounds.push_back({data->id(), bounds});
  }
  const std::optional<tensor::Extremes> extremes = data->extremes();
  if (!extremes) return std::nullopt;
  const std::optional<int64_t> violation = bounds.Violation(*extremes);
  if (!violation) [[likely]]
    return std::nullopt;
  return SeesAll(tensor) ? violation : std::nullopt;
}

/// Keeps a check until a result is read.
void Remember(Check check) {
  const int device = GetImpl(check.found)->root()->device();
  bool full;
  {
    std::lock_guard<std::mutex> lock(mutex);
    auto& checks = Checks()[device];
    checks.push_back(std::move(check));
    full = checks.size() >= kMaxChecks;
  }
  if (full) ThrowIndexError(device);
}

/// Checks on the device, if that is enabled, indices that only the device knows.
void CheckOnDevice(const char* op, const at::Tensor& index, int64_t low, int64_t high,
                   std::optional<int64_t> ignored = std::nullopt) {
  if (!indices_are_checked.load(std::memory_order_relaxed)) return;
  const at::Tensor wide = index.detach().to(at::kLong);
  at::Tensor bad = wide.lt(low).logical_or(wide.ge(high));
  if (ignored) bad = bad.logical_and(wide.ne(*ignored));
  Remember({op, ir::CurrentLocation(), low, high, at::where(bad, wide, kNone).amax()});
}

}  // namespace

void CheckIndex(const char* op, const at::Tensor& index, int64_t low, int64_t high,
                std::optional<int64_t> ignored, Raises raises) {
  if (!HasIndices(index)) return;
  const tensor::IntegerBounds bounds{.least = low, .most = high - 1, .ignored = ignored};
  if (const std::optional<int64_t> bad = KnownViolation(*GetImpl(index), bounds)) {
    ThrowOutOfRange(op, *bad, low, high, raises);
  }
  CheckOnDevice(op, index, low, high, ignored);
}

void NoteGood(const char* op, const char* message, const at::Tensor& good) {
  if (!IsXla(good)) return;
  Remember({op, ir::CurrentLocation(), 0, 1, at::where(good, kNone, int64_t{1}), message});
}

void CheckBags(const char* op, const at::Tensor& weight, const at::Tensor& indices,
               const at::Tensor& offsets) {
  CheckIndex(op, indices, 0, SizeAt(weight, 0), {}, kRuntimeError);
  if (!HasIndices(offsets)) return;
  const int64_t end = indices.numel() + 1;
  const tensor::IntegerBounds bounds{.least = 0, .most = end - 1, .least_until = 0};
  if (const std::optional<int64_t> bad = KnownViolation(*GetImpl(offsets), bounds)) {
    if (*bad < 0 || *bad >= end) ThrowOutOfRange(op, *bad, 0, end, kRuntimeError);
    TORCH_CHECK(false, op,
                ": offsets[0] has to be 0, i.e., the first sequence in the mini-batch has ",
                "to start from position 0. However, got ", *bad);
  }
  CheckOnDevice(op, offsets, 0, end);
  CheckData(op, "offsets must begin with 0 and ascend", [&] {
    const at::Tensor begins = offsets.detach();
    return begins.select(0, 0).eq(0).logical_and(begins.diff().ge(0).all());
  });
}

void CheckProbabilities(const char* op, const at::Tensor& input, const at::Tensor& target) {
  auto all_good = [](const at::Tensor& p) {
    return p.detach().ge(0).logical_and(p.detach().le(1)).all();  // false for NaN
  };
  CheckData(op, "all elements of input should be between 0 and 1", [&] { return all_good(input); });
  CheckData(op, "all elements of target should be between 0 and 1",
            [&] { return all_good(target); });
}

void CheckRange(const char* op, const at::Tensor& self, const at::Scalar& min,
                const at::Scalar& max) {
  if (min.toDouble() != max.toDouble()) return;
  CheckData(op, "the range of the data is not finite",
            [&] { return self.detach().isfinite().all(); });
}

void CheckEnough(const char* op, const at::Tensor& self, const at::Tensor& mask,
                 const at::Tensor& source) {
  CheckData(op, "Number of elements of source < number of ones in mask", [&] {
    return mask.expand(at::infer_size(mask.sizes(), self.sizes())).sum().le(source.numel());
  });
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
  } else if (other.numel() != 0) {
    TORCH_CHECK(!KnownViolation(*GetImpl(other), {.zero = false}),
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

void CheckRepeats(const at::Tensor& repeats, int64_t total) {
  if (!IsXla(repeats)) return;
  TORCH_CHECK(!KnownViolation(*GetImpl(repeats), {.least = 0}), "repeats can not be negative");
  const std::optional<int64_t> sum = KnownViolation(*GetImpl(repeats), {.sum = total});
  TORCH_CHECK(!sum, "allocated size does not match required size: output_size is ", total,
              ", and the repeats add up to ", *sum);
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
  std::vector<tensor::StoragePtr> storages;
  for (const Check& check : checks) storages.push_back(GetImpl(check.found)->root());
  exec::SyncStorages(storages, /*wait=*/false);
  for (const Check& check : checks) {
    const int64_t value = check.found.item<int64_t>();
    if (value != kNone) check.Throw(value);
  }
}

}  // namespace torch_xla::aten
