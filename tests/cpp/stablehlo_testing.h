// What the tests of the StableHLO builder share: a real plugin (PJRT_CPU_LIBRARY_PATH) that
// compiles and runs what was built.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/client.h"
#include "runtime/plugin.h"
#include "stablehlo/ops.h"

namespace torch_xla::stablehlo {

using enum ElementType;

inline runtime::Client* PluginClient() {
  static std::unique_ptr<runtime::Client> client = []() -> std::unique_ptr<runtime::Client> {
    const char* library = std::getenv("PJRT_CPU_LIBRARY_PATH");
    if (library == nullptr) return nullptr;
    // A name of its own, for four devices whatever the environment says.
    runtime::AddPlugin("STABLEHLO_TEST", {library, {{"cpu_device_count", int64_t{4}}}});
    return runtime::Client::Create("STABLEHLO_TEST");
  }();
  return client.get();
}

#define REQUIRE_PLUGIN() \
  if (PluginClient() == nullptr) GTEST_SKIP() << "PJRT_CPU_LIBRARY_PATH is not set"

/// Compiles the module; a failure shows the plugin's words and the text.
inline std::unique_ptr<runtime::Executable> Compile(const std::string& text,
                                                    runtime::CompileOptions options = {}) {
  // What counts is that XLA takes the text, not how well LLVM does with it.
  options.overrides.push_back({"xla_backend_optimization_level", "0"});
  try {
    return PluginClient()->Compile(text, options);
  } catch (const std::exception& e) {
    ADD_FAILURE() << e.what() << "\n" << text;
    return nullptr;
  }
}

/// Runs a module without parameters; the elements of its one output.
template <typename T>
std::vector<T> Evaluate(Builder& builder, Value output) {
  auto executable = Compile(builder.Finish({output}));
  if (executable == nullptr) return {};
  auto result = executable->Execute({});
  std::vector<T> host(result.outputs[0]->bytes() / sizeof(T));
  result.outputs[0]->CopyToHost(host.data()).Await();
  return host;
}

template <typename T>
Value Array(Builder& builder, ElementType element, Dims dims, std::vector<T> values) {
  return ConstantFromBytes(builder, Type(element, std::move(dims)),
                           std::as_bytes(std::span<const T>(values)));
}

inline Value F32(Builder& builder, Dims dims, std::vector<float> values) {
  return Array<float>(builder, kF32, std::move(dims), std::move(values));
}

inline std::string ErrorOf(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

#define EXPECT_TYPE(value, element, ...) EXPECT_EQ((value).type(), Type(element, Dims __VA_ARGS__))

}  // namespace torch_xla::stablehlo
