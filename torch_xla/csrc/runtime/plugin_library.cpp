#include "runtime/plugin_library.h"

#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <vector>

#include "runtime/errors.h"

namespace torch_xla::runtime {
namespace {

using namespace pjrt;

std::atomic<bool> g_exiting{false};

std::string LoadError(const std::string& path, const std::string& reason) {
  return "Cannot load the PJRT plugin " + path + ": " + reason;
}

}  // namespace

bool PluginLibrary::ProcessIsExiting() { return g_exiting.load(std::memory_order_relaxed); }

void PluginLibrary::WatchForks() {
  static const int once = pthread_atfork(nullptr, nullptr, [] { forked_ = true; });
  if (once != 0) throw Error(PJRT_Error_Code_RESOURCE_EXHAUSTED, "pthread_atfork() failed");
}

const PluginLibrary& PluginLibrary::Load(const std::string& path) {
  // Never destroyed: clients in static storage may be destroyed after any static object here.
  static auto& mutex = *new std::mutex;
  static auto& libraries = *new std::map<std::string, std::unique_ptr<PluginLibrary>>;
  std::error_code ignored;
  const std::filesystem::path canonical = std::filesystem::canonical(path, ignored);
  const std::string key = canonical.empty() ? path : canonical.string();

  std::lock_guard lock(mutex);
  auto found = libraries.find(key);
  if (found == libraries.end()) {
    std::unique_ptr<PluginLibrary> library(new PluginLibrary(key));
    found = libraries.emplace(key, std::move(library)).first;
    // Exit handlers run in reverse order, so this one runs before the destructors of the static
    // objects that the library made while it was loaded and initialized.
    std::atexit([] { g_exiting = true; });
  }
  return *found->second;
}

const PluginLibrary& PluginLibrary::Over(const PluginLibrary& library, const PJRT_Api& api) {
  return *new PluginLibrary(library.path_, api);
}

PluginLibrary::PluginLibrary(const std::string& path) : path_(path) {
  // Otherwise XLA logs its start-up at level INFO.
  setenv("TF_CPP_MIN_LOG_LEVEL", "3", /*overwrite=*/0);

  // The dynamic linker searches for a bare name.
  if (path.find('/') != std::string::npos && !std::filesystem::exists(path)) {
    throw MakeError(PJRT_Error_Code_NOT_FOUND, "Cannot load the PJRT plugin " + path,
                    "there is no such file");
  }
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw InvalidArgument(LoadError(path, dlerror()));
  auto get_api = reinterpret_cast<const PJRT_Api* (*)()>(dlsym(library, "GetPjrtApi"));
  if (get_api == nullptr) {
    throw InvalidArgument(
        LoadError(path, "it is a shared library but no PJRT plugin (it exports no GetPjrtApi)"));
  }
  const PJRT_Api* api = get_api();
  if (api == nullptr) throw InvalidArgument(LoadError(path, "its GetPjrtApi returned nothing"));
  if (api->struct_size < offsetof(PJRT_Api, PJRT_Error_Destroy)) {
    throw InvalidArgument(LoadError(path, "its function table is too short to hold a version"));
  }

  const PJRT_Api_Version& version = api->pjrt_api_version;
  const std::string spoken =
      std::to_string(version.major_version) + "." + std::to_string(version.minor_version);
  const std::string supported =
      std::to_string(kApiMajor) + "." + std::to_string(kOldestApiMinor) + " or later";
  if (version.major_version != kApiMajor) {
    throw InvalidArgument(LoadError(
        path, "it speaks PJRT API " + spoken + ", this torch_xla speaks version " + supported +
                  " of major version " + std::to_string(kApiMajor) + ". Install " +
                  (version.major_version > kApiMajor ? "a newer torch_xla or an older plugin."
                                                     : "a newer plugin.")));
  }
  if (version.minor_version < kOldestApiMinor) {
    throw InvalidArgument(LoadError(path, "it speaks PJRT API " + spoken +
                                              ", this torch_xla needs " + supported +
                                              ". Install a newer plugin."));
  }
  std::memcpy(&api_, api, std::min(api->struct_size, sizeof(PJRT_Api)));
  if (api_.PJRT_Error_Destroy == nullptr || api_.PJRT_Error_Message == nullptr ||
      api_.PJRT_Error_GetCode == nullptr) {
    throw InvalidArgument(LoadError(path, "it has no functions to report errors with"));
  }
  if (api_.PJRT_Plugin_Initialize != nullptr) {
    Args<PJRT_Plugin_Initialize_Args> args;
    PJRT_CALL(*this, PJRT_Plugin_Initialize, args);
  }
}

std::string PluginLibrary::ApiVersion() const {
  return std::to_string(api_.pjrt_api_version.major_version) + "." +
         std::to_string(api_.pjrt_api_version.minor_version);
}

std::string PluginLibrary::Fingerprint() const {
  // The wheels have no build id. The head and tail of an ELF file contain the offsets and sizes of
  // all its parts, in which two builds differ.
  constexpr std::streamoff kSample = 64 << 10;
  std::ifstream file(path_, std::ios::binary | std::ios::ate);
  const std::streamoff size = file ? static_cast<std::streamoff>(file.tellg()) : 0;
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  std::vector<char> sample(kSample);
  for (std::streamoff start : {std::streamoff{0}, std::max<std::streamoff>(0, size - kSample)}) {
    file.clear();
    file.seekg(start);
    file.read(sample.data(), kSample);
    for (std::streamsize i = 0; i < file.gcount(); ++i) {
      hash = (hash ^ static_cast<unsigned char>(sample[i])) * 0x100000001b3u;
    }
  }
  char text[64];
  std::snprintf(text, sizeof(text), "%lld-%016llx", static_cast<long long>(size),
                static_cast<unsigned long long>(hash));
  return text;
}

void PluginLibrary::ThrowMissing(const char* function) const {
  throw Error(PJRT_Error_Code_UNIMPLEMENTED,
              "The PJRT plugin " + path_ + " (API " + ApiVersion() + ") has no " + function);
}

int PluginLibrary::Code(const PJRT_Error* error) const {
  Args<PJRT_Error_GetCode_Args> args;
  args.error = error;
  if (PJRT_Error* failure = api_.PJRT_Error_GetCode(&args)) {
    Discard(failure);
    return PJRT_Error_Code_UNKNOWN;
  }
  return static_cast<int>(args.code);
}

std::string PluginLibrary::Message(const PJRT_Error* error) const {
  Args<PJRT_Error_Message_Args> args;
  args.error = error;
  api_.PJRT_Error_Message(&args);
  return std::string(args.message, args.message_size);
}

void PluginLibrary::Discard(PJRT_Error* error) const noexcept {
  if (error == nullptr) return;
  Args<PJRT_Error_Destroy_Args> args;
  args.error = error;
  api_.PJRT_Error_Destroy(&args);
}

void PluginLibrary::Throw(PJRT_Error* error, std::string_view what) const {
  Error thrown = MakeError(static_cast<PJRT_Error_Code>(Code(error)), what, Message(error));
  Discard(error);
  throw thrown;
}

const PJRT_Extension_Base* PluginLibrary::FindExtension(PJRT_Extension_Type type) const {
  const PJRT_Extension_Base* extension = api_.extension_start;
  while (extension != nullptr && extension->type != type) extension = extension->next;
  return extension;
}

}  // namespace torch_xla::runtime
