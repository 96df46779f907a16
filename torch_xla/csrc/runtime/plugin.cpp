#include "runtime/plugin.h"

#include <algorithm>
#include <cstdlib>
#include <mutex>

#include "debug/environment.h"
#include "runtime/errors.h"
#include "runtime/platform.h"

namespace torch_xla::runtime {
namespace {

struct Registry {
  std::mutex mutex;
  std::vector<std::pair<std::string, PluginSpec>> plugins;  // in order of registration
};

Registry& GlobalRegistry() {
  static auto& registry = *new Registry;
  return registry;
}

std::string PathVariable(const std::string& platform) {
  return "PJRT_" + platform + "_LIBRARY_PATH";
}

const char* NonEmptyVariable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value != nullptr && *value != '\0' ? value : nullptr;
}

}  // namespace

std::string UpperCase(std::string_view text) {
  std::string upper(text);
  for (char& c : upper) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  return upper;
}

void AddPlugin(std::string_view platform, PluginSpec spec) {
  const std::string name = UpperCase(platform);
  if (name.empty()) throw InvalidArgument("A PJRT plugin needs a platform name");
  Registry& registry = GlobalRegistry();
  std::lock_guard lock(registry.mutex);
  for (auto& [known, known_spec] : registry.plugins) {
    if (known == name) {
      known_spec = std::move(spec);
      return;
    }
  }
  registry.plugins.emplace_back(name, std::move(spec));
}

PluginSpec FindPlugin(std::string_view platform) {
  const std::string name = UpperCase(platform);
  const std::string variable = PathVariable(name);
  PluginSpec spec;
  std::string known_platforms;
  {
    Registry& registry = GlobalRegistry();
    std::lock_guard lock(registry.mutex);
    for (const auto& [known, known_spec] : registry.plugins) {
      if (known == name) spec = known_spec;
      if (!known_platforms.empty()) known_platforms += ", ";
      known_platforms += known;
    }
  }
  // The variable replaces only the library; the options belong to the platform.
  if (std::string library = debug::EnvPath(variable.c_str()); !library.empty()) {
    spec.library = std::move(library);
  }
  if (!spec.library.empty()) return spec;

  std::string message = "No PJRT plugin for platform " + (name.empty() ? "''" : name) +
                        ". Tried: the environment variable " + variable +
                        " (not set), the registered plugins (" +
                        (known_platforms.empty() ? "none" : known_platforms) + "). ";
  const std::string_view hint = InstallHint(name);
  if (!hint.empty()) {
    message.append("To get it: ").append(hint).append(".");
  } else {
    message +=
        "The known platforms are CPU, CUDA, ROCM and TPU; any other needs a plugin package or "
        "that variable, set to the path of its shared library.";
  }
  throw Error(pjrt::PJRT_Error_Code_NOT_FOUND, message);
}

std::vector<std::string> CandidatePlatforms() {
  if (const char* chosen = NonEmptyVariable("PJRT_DEVICE")) return {UpperCase(chosen)};
  std::vector<std::string> platforms;
  auto add = [&](const std::string& name) {
    if (!IsHost(name) && std::find(platforms.begin(), platforms.end(), name) == platforms.end()) {
      platforms.push_back(name);
    }
  };
  {
    Registry& registry = GlobalRegistry();
    std::lock_guard lock(registry.mutex);
    for (const auto& entry : registry.plugins) add(entry.first);
  }
  for (const char* name : {"TPU", "CUDA", "ROCM"}) {
    if (NonEmptyVariable(PathVariable(name)) != nullptr) add(name);
  }
  platforms.push_back("CPU");
  return platforms;
}

std::vector<std::pair<std::string, std::string>> KnownLibraries() {
  std::vector<std::pair<std::string, std::string>> found;
  for (const std::string& platform : CandidatePlatforms()) {
    try {
      found.emplace_back(platform, FindPlugin(platform).library);
    } catch (const Error&) {
    }
  }
  return found;
}

}  // namespace torch_xla::runtime
