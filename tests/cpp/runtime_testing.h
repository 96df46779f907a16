// What the tests of runtime/ share: clients of a real CPU plugin, named by PJRT_CPU_LIBRARY_PATH.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <memory>
#include <string>
#include <vector>

#include "runtime/client.h"
#include "runtime/plugin.h"

namespace torch_xla::runtime {

constexpr const char* kLibraryVariable = "PJRT_CPU_LIBRARY_PATH";

// One client per process for most tests: creating one costs more than the tests do.
inline Client& SharedClient() {
  static auto& client = *Client::Create("CPU").release();
  return client;
}

// Two devices under a platform name of their own, so that the option is tested as well.
inline Client& TwoDeviceClient() {
  static auto& client = *[] {
    AddPlugin("TWOCPU", {getenv(kLibraryVariable), {{"cpu_device_count", int64_t{2}}}});
    return Client::Create("twocpu").release();
  }();
  return client;
}

class ScopedVariable {
 public:
  ScopedVariable(const char* name, const char* value) : name_(name) {
    if (const char* old = getenv(name)) old_ = old, had_ = true;
    value != nullptr ? setenv(name, value, 1) : unsetenv(name);
  }
  ~ScopedVariable() { had_ ? setenv(name_, old_.c_str(), 1) : unsetenv(name_); }

 private:
  const char* name_;
  std::string old_;
  bool had_ = false;
};

template <typename F>
std::string ErrorOf(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "no Error thrown";
  return {};
}

inline std::unique_ptr<Buffer> Upload(Client& client, const std::vector<float>& values,
                                      int device = 0) {
  const int64_t dim = static_cast<int64_t>(values.size());
  return client.BufferFromHost(values.data(), ElementType::kF32, {&dim, 1}, device);
}

inline std::vector<float> Download(const Buffer& buffer) {
  std::vector<float> values(buffer.bytes() / sizeof(float));
  buffer.CopyToHost(values.data()).Await();
  return values;
}

// f(x) = x + x over tensor<`n`xf32>, donating x where asked.
inline std::string Doubling(int n, bool donate = false) {
  const std::string type = "tensor<" + std::to_string(n) + "xf32>";
  return "module @doubling { func.func @main(%x: " + type +
         (donate ? " {tf.aliasing_output = 0 : i32}" : "") + ") -> " + type +
         " { %0 = stablehlo.add %x, %x : " + type + " return %0 : " + type + " } }";
}

inline std::vector<Buffer*> Raw(const std::vector<std::unique_ptr<Buffer>>& buffers) {
  std::vector<Buffer*> raw;
  for (auto& buffer : buffers) raw.push_back(buffer.get());
  return raw;
}

// Accounting is per client; buffers that XLA still uses are released by their owners at once.
#define EXPECT_NO_LIVE_BYTES(client) EXPECT_EQ((client).memory(0).in_use, 0)

}  // namespace torch_xla::runtime
