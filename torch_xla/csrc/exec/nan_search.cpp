#include "exec/nan_search.h"

#include <atomic>
#include <limits>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "XLAOps.h"
#include "cpu/calls.h"
#include "lowering/library_call.h"
#include "lowering/may_call.h"
#include "lowering/row_major.h"

namespace torch_xla::exec {
namespace {

std::atomic<bool> finds_nan{false};

struct Searches {
  std::mutex mutex;
  std::unordered_map<int64_t, std::vector<FoundNan>> by_number;
};

Searches& GetSearches() {
  static auto& searches = *new Searches;
  return searches;
}

/// Whether a result has NaN only if an operand has, so that it need not be checked.
bool OnlyMoves(const ir::Node& node) {
  static const auto& kOps =
      *new std::unordered_set<const ir::OpSpec*>{&ir::ops::scalar,
                                                 &ir::ops::Constant,
                                                 &ir::ops::fill,
                                                 &ir::ops::cast,
                                                 &ir::ops::expand,
                                                 &ir::ops::as_strided,
                                                 &ir::ops::as_strided_view_update,
                                                 &ir::ops::relu,
                                                 &ir::ops::neg,
                                                 &ir::ops::threshold_backward,
                                                 &ir::ops::select_backward,
                                                 &ir::ops::bernoulli};
  return kOps.contains(&node.op());
}

bool CanBeNan(const lowering::Value& value) {
  switch (value.element()) {
    case runtime::ElementType::kF16:
    case runtime::ElementType::kBF16:
    case runtime::ElementType::kF32:
    case runtime::ElementType::kF64:
    case runtime::ElementType::kC64:
    case runtime::ElementType::kC128:
      return value.type().num_elements() > 0;
    default:
      return false;
  }
}

}  // namespace

bool FindsNan() { return finds_nan.load(std::memory_order_relaxed); }
void SetFindsNan(bool on) { finds_nan.store(on, std::memory_order_relaxed); }

void AddNanSearch(lowering::LoweringContext& cx, std::span<const ir::Node* const> nodes) {
  if (!FindsNan() || !lowering::LibraryCalls::Allowed() ||
      !lowering::HasCpuKernels(cx.platform())) {
    return;
  }
  std::vector<FoundNan> operations;
  std::vector<stablehlo::Value> arrays;
  ir::Hasher hasher;
  for (const ir::Node* node : nodes) {
    if (OnlyMoves(*node)) continue;
    for (size_t i = 0; i < node->num_outputs(); ++i) {
      if (!node->shape(i) || !cx.IsLowered(*node, i)) continue;
      const stablehlo::Value array = cx.Result(*node, i);
      if (!CanBeNan(array)) continue;
      arrays.push_back(array);
      const bool is_input = &node->op() == &ir::ops::device_data;
      operations.push_back({node->op().name, is_input, node->location()});
      hasher.Add(std::hash<std::string_view>()(node->op().name));
      if (const ir::SourceLocation* line = node->location()) {
        hasher.Add(std::hash<std::string>()(line->ToString()));
      }
    }
  }
  if (arrays.empty()) return;
  stablehlo::Builder& builder = cx.builder();
  const stablehlo::Type type(runtime::ElementType::kS64, {});
  // The calls are a chain, so that each array is checked when it is computed, and is freed then.
  stablehlo::Value first = Constant(builder, std::numeric_limits<int64_t>::max(), type);
  for (size_t i = 0; i < arrays.size(); ++i) {
    first = lowering::CallLibrary(cpu::kHasNanTarget, {arrays[i], first}, {type},
                                  cpu::HasNanCall{static_cast<int64_t>(i)}, {{0, 1}})[0];
  }
  // The number is a hash of the content, since programs on disk contain the number.
  const auto number = static_cast<int64_t>(hasher.Finish().low >> 2);
  {
    Searches& searches = GetSearches();
    std::lock_guard lock(searches.mutex);
    searches.by_number.insert_or_assign(number, std::move(operations));
  }
  stablehlo::CustomCallOptions options;
  options.has_side_effect = true;
  options.operand_layouts = {lowering::RowMajor(0), lowering::RowMajor(0)};
  options.result_layouts = {lowering::RowMajor(0)};
  stablehlo::CustomCall(builder, cpu::kNanReportTarget, {first, Constant(builder, number, type)},
                        {type}, options);
}

std::optional<FoundNan> NanOf(int64_t search, int64_t position) {
  Searches& searches = GetSearches();
  std::lock_guard lock(searches.mutex);
  const auto found = searches.by_number.find(search);
  if (found == searches.by_number.end()) return std::nullopt;
  return found->second.at(static_cast<size_t>(position));
}

}  // namespace torch_xla::exec
