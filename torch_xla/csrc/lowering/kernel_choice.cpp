#include "lowering/kernel_choice.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <mutex>
#include <vector>

namespace torch_xla::lowering {
namespace {

/// The words of `kind` are compared with those of a call: "*" matches any word, and so do missing
/// words at the end.
struct Row {
  std::string_view operation, platform, kind;
  Kernel kernel;
};

constexpr Row kTable[] = {
#include "lowering/kernel_table.inc"
};

bool WordMatches(std::string_view pattern, std::string_view word) {
  return pattern == "*" || pattern == word;
}

/// Returns the first word of `text` and removes it.
std::string_view TakeWord(std::string_view& text, char separator = ' ') {
  const size_t end = std::min(text.find(separator), text.size());
  const std::string_view word = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return word;
}

bool Matches(const Row& row, std::string_view operation, std::string_view platform,
             std::initializer_list<std::string_view> kind) {
  if (!WordMatches(row.operation, operation) || !WordMatches(row.platform, platform)) return false;
  std::string_view pattern = row.kind;
  for (std::string_view word : kind) {
    if (pattern.empty()) return true;
    if (!WordMatches(TakeWord(pattern), word)) return false;
  }
  return true;
}

constexpr std::string_view kNames[] = {"stablehlo", "product",  "elementwise",
                                       "library",   "few_rows", "cudnn"};

Kernel ParseKernel(std::string_view name) {
  const auto* found = std::find(std::begin(kNames), std::end(kNames), name);
  if (found != std::end(kNames)) return static_cast<Kernel>(found - std::begin(kNames));
  TORCH_CHECK_VALUE(
      false,
      "XLA_KERNELS: expected stablehlo, product, elementwise, library, few_rows or cudnn, got ",
      name);
}

/// The rows of XLA_KERNELS, which come before the table.
const std::vector<Row>& Overrides() {
  static const auto& rows = *[] {
    auto* rows = new std::vector<Row>;
    const char* value = std::getenv("XLA_KERNELS");
    for (std::string_view text = value ? value : ""; !text.empty();) {
      std::string_view row = TakeWord(text, ',');
      const std::string_view operation = TakeWord(row, '=');
      rows->push_back({operation, "*", "", ParseKernel(row)});
    }
    return rows;
  }();
  return rows;
}

struct Choices {
  std::mutex mutex;
  std::set<std::tuple<std::string, std::string, std::string>> rows;
};

Choices& Chosen() {
  static auto& choices = *new Choices;
  return choices;
}

Kernel Choose(const LoweringContext& cx, std::string_view operation,
              std::initializer_list<std::string_view> kind, const std::vector<Kernel>& possible) {
  const bool calls = MayCallLibraries(cx.platform());
  auto takes = [&](const Row& row) {
    const bool is_call = row.kernel == Kernel::kLibrary || row.kernel == Kernel::kFewRows;
    if (is_call && !calls) return false;
    return std::find(possible.begin(), possible.end(), row.kernel) != possible.end() &&
           Matches(row, operation, cx.platform(), kind);
  };
  for (const Row& row : Overrides()) {
    if (takes(row)) return row.kernel;
  }
  for (const Row& row : kTable) {
    if (takes(row)) return row.kernel;
  }
  return possible.front();
}

}  // namespace

Kernel ChooseKernel(const LoweringContext& cx, std::string_view operation,
                    std::initializer_list<std::string_view> kind,
                    const std::vector<Kernel>& possible) {
  const Kernel kernel = Choose(cx, operation, kind, possible);
  if (!LibraryCalls::Allowed()) return kernel;  // checked or exported, not run
  std::string words;
  for (std::string_view word : kind) words.append(words.empty() ? "" : " ").append(word);
  std::lock_guard<std::mutex> lock(Chosen().mutex);
  Chosen().rows.emplace(operation, words, kNames[static_cast<size_t>(kernel)]);
  return kernel;
}

bool ChoosesLibrary(const LoweringContext& cx, std::string_view operation,
                    std::initializer_list<std::string_view> kind) {
  return ChooseKernel(cx, operation, kind, {Kernel::kStableHlo, Kernel::kLibrary}) ==
         Kernel::kLibrary;
}

std::set<std::tuple<std::string, std::string, std::string>> KernelChoices() {
  std::lock_guard<std::mutex> lock(Chosen().mutex);
  return Chosen().rows;
}

}  // namespace torch_xla::lowering
