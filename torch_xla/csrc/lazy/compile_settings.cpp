#include "lazy/compile_settings.h"

#include <functional>
#include <mutex>

#include "lowering/precision.h"

namespace torch_xla::lazy {
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
  hasher.Add(static_cast<uint64_t>(lowering::mat_mul_precision.load()));
  return hasher.Finish();
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

}  // namespace torch_xla::lazy
