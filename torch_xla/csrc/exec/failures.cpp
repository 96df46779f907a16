#include "exec/failures.h"

#include <algorithm>
#include <new>
#include <utility>

namespace torch_xla::exec {
namespace {

// More failures than this come from one cause: a program that fails in a loop.
constexpr size_t kMaxFailures = 64;

}  // namespace

void Failures::Note(uint64_t execution, const Executions& sources,
                    const std::exception_ptr& error) noexcept try {
  // Only one failure is reported; the others are kept for readers of their results.
  if (failures_.size() < kMaxFailures) failures_.push_back({execution, sources, error});
} catch (const std::bad_alloc&) {
  // Without memory the failure is not noted. The failed results still report it.
}

std::exception_ptr Failures::TakeAll() {
  const std::vector<Failure> failures = std::exchange(failures_, {});
  if (failures.empty()) return nullptr;
  return std::ranges::min_element(failures, {}, &Failure::execution)->error;
}

const Failures::Failure* Failures::Find(uint64_t execution) const {
  const auto it = std::ranges::find(failures_, execution, &Failure::execution);
  return it == failures_.end() ? nullptr : &*it;
}

std::set<uint64_t> Failures::RootsOf(uint64_t failed) const {
  std::set<uint64_t> roots, seen{failed};
  std::vector<uint64_t> open{failed};
  while (!open.empty()) {
    const uint64_t execution = open.back();
    open.pop_back();
    const Failure* failure = Find(execution);
    if (!failure) continue;
    bool derived = false;
    for (uint64_t source : failure->sources) {
      if (!Find(source)) continue;
      derived = true;
      if (seen.insert(source).second) open.push_back(source);
    }
    if (!derived) roots.insert(execution);
  }
  return roots;
}

std::exception_ptr Failures::Take(uint64_t producer) {
  const std::set<uint64_t> told = RootsOf(producer);
  const std::exception_ptr first = told.empty() ? nullptr : Find(*told.begin())->error;
  std::vector<Failure> others;
  for (const Failure& failure : failures_) {
    const std::set<uint64_t> roots = RootsOf(failure.execution);
    if (std::ranges::none_of(roots, [&](uint64_t root) { return told.contains(root); })) {
      others.push_back(failure);
    }
  }
  failures_ = std::move(others);
  return first;
}

}  // namespace torch_xla::exec
