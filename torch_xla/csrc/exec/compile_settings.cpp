#include "exec/compile_settings.h"

#include <ATen/Context.h>

#include <functional>
#include <mutex>

#include "exec/nan_search.h"
#include "lowering/precision.h"
#include "runtime/platform.h"
#include "tensor/device.h"

namespace torch_xla::exec {
namespace {

std::mutex mutex;
thread_local CompileSettingsPtr of_thread;

CompileSettingsPtr& OfProcess() {
  static auto& settings = *new CompileSettingsPtr(std::make_shared<CompileSettings>());
  return settings;
}

}  // namespace

ir::Hash128 CompileSettings::Hash() const {
  ir::Hasher hasher;
  const std::hash<std::string> hash;
  for (const auto& [key, value] : options) {
    hasher.Add(hash(key));
    hasher.Add(hash(value));
  }
  if (!name.empty()) hasher.Add(hash(name));
  const lowering::FloatPrecision precision = lowering::CurrentPrecision(tensor::Platform());
  hasher.Add(static_cast<uint64_t>(precision.products) << 2 |
             uint64_t{precision.rounds_products} << 1 | uint64_t{precision.rounds_convolutions});
  hasher.Add(uint64_t{MustRepeat()} << 1 | uint64_t{FindsNan()});
  return hasher.Finish();
}

bool MustRepeat() {
  return runtime::IsGpu(tensor::Platform()) && at::globalContext().deterministicAlgorithms();
}

void SetCompileOptions(std::vector<std::pair<std::string, std::string>> options) {
  auto settings = std::make_shared<CompileSettings>();
  settings->options = std::move(options);
  std::lock_guard<std::mutex> lock(mutex);
  OfProcess() = std::move(settings);
}

CompileSettingsPtr SetThreadSettings(CompileSettingsPtr settings) {
  return std::exchange(of_thread, std::move(settings));
}

CompileSettingsPtr CurrentSettings() {
  if (of_thread) return of_thread;
  std::lock_guard<std::mutex> lock(mutex);
  return OfProcess();
}

}  // namespace torch_xla::exec
