// Tests of runtime/ against a real CPU plugin, named by PJRT_CPU_LIBRARY_PATH.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <complex>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>

#include "runtime/buffer_type.h"
#include "runtime/client.h"
#include "runtime/ffi_abi.h"
#include "runtime/key_value_store.h"
#include "runtime/pjrt_abi.h"
#include "runtime/plugin.h"

namespace torch_xla::runtime {
namespace {

constexpr const char* kLibraryVariable = "PJRT_CPU_LIBRARY_PATH";

// One client per process for most tests: creating one costs more than the tests do.
Client& SharedClient() {
  static auto& client = *Client::Create("CPU").release();
  return client;
}

// Two devices under a platform name of their own, so that the option is tested as well.
Client& TwoDeviceClient() {
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

std::unique_ptr<Buffer> Upload(Client& client, const std::vector<float>& values, int device = 0) {
  const int64_t dim = static_cast<int64_t>(values.size());
  return client.BufferFromHost(values.data(), ElementType::kF32, {&dim, 1}, device);
}

std::vector<float> Download(const Buffer& buffer) {
  std::vector<float> values(buffer.bytes() / sizeof(float));
  buffer.CopyToHost(values.data()).Await();
  return values;
}

// f(x) = x + x over tensor<`n`xf32>, donating x where asked.
std::string Doubling(int n, bool donate = false) {
  const std::string type = "tensor<" + std::to_string(n) + "xf32>";
  return "module @doubling { func.func @main(%x: " + type +
         (donate ? " {tf.aliasing_output = 0 : i32}" : "") + ") -> " + type +
         " { %0 = stablehlo.add %x, %x : " + type + " return %0 : " + type + " } }";
}

std::vector<Buffer*> Raw(const std::vector<std::unique_ptr<Buffer>>& buffers) {
  std::vector<Buffer*> raw;
  for (auto& buffer : buffers) raw.push_back(buffer.get());
  return raw;
}

// Accounting is per client; buffers that XLA still uses are released by their owners at once.
#define EXPECT_NO_LIVE_BYTES(client) EXPECT_EQ((client).memory(0).in_use, 0)

// ---------------------------------------------------------------------------------- element types

TEST(ElementTypeTest, BufferTypesRoundTrip) {
  for (int i = 1; i <= static_cast<int>(ElementType::kC128); ++i) {
    const auto type = static_cast<ElementType>(i);
    EXPECT_GT(ByteWidth(type), 0u) << MlirName(type);
    EXPECT_EQ(FromBufferType(ToBufferType(type)), type) << MlirName(type);
  }
  EXPECT_EQ(ByteWidth(ElementType::kInvalid), 0u);
  EXPECT_EQ(MlirName(ElementType::kC64), "complex<f32>");
  EXPECT_EQ(FromBufferType(static_cast<pjrt::PJRT_Buffer_Type>(21)), ElementType::kInvalid);
}

// ---------------------------------------------------------------------------------------- plugins

TEST(PluginTest, UnknownPlatformSaysWhatWasTried) {
  const std::string error = ErrorOf([] { FindPlugin("nonesuch"); });
  EXPECT_NE(error.find("PJRT_NONESUCH_LIBRARY_PATH"), std::string::npos) << error;
  EXPECT_NE(error.find("known platforms"), std::string::npos) << error;
}

TEST(PluginTest, KnownPlatformSaysWhatToInstall) {
  ScopedVariable unset("PJRT_CUDA_LIBRARY_PATH", nullptr);
  const std::string cuda = ErrorOf([] { FindPlugin("cuda"); });
  EXPECT_NE(cuda.find("pip install jax-cuda13-pjrt"), std::string::npos) << cuda;
  ScopedVariable no_cpu(kLibraryVariable, nullptr);
  const std::string cpu = ErrorOf([] { FindPlugin("CPU"); });
  EXPECT_NE(cpu.find("pip install fastatomstruct-xla-cpu"), std::string::npos) << cpu;
}

TEST(PluginTest, VariableReplacesLibraryAndKeepsOptions) {
  AddPlugin("named", {"/registered.so", {{"flag", true}}});
  EXPECT_EQ(FindPlugin("NAMED").library, "/registered.so");
  ScopedVariable variable("PJRT_NAMED_LIBRARY_PATH", "/other.so");
  EXPECT_EQ(FindPlugin("named").library, "/other.so");
  EXPECT_EQ(FindPlugin("named").options.count("flag"), 1u);
}

TEST(PluginTest, CandidatesFollowTheEnvironment) {
  {
    ScopedVariable device("PJRT_DEVICE", "tpu");
    EXPECT_EQ(CandidatePlatforms(), std::vector<std::string>{"TPU"});
  }
  ScopedVariable device("PJRT_DEVICE", nullptr);
  ScopedVariable cuda("PJRT_CUDA_LIBRARY_PATH", "/cuda.so");
  const auto platforms = CandidatePlatforms();
  EXPECT_EQ(platforms.back(), "CPU");
  EXPECT_NE(std::find(platforms.begin(), platforms.end(), "CUDA"), platforms.end());
}

TEST(PluginTest, WrongPath) {
  AddPlugin("wrongpath", {"/no/such/plugin.so", {}});
  const std::string error = ErrorOf([] { Client::Create("wrongpath"); });
  EXPECT_NE(error.find("/no/such/plugin.so"), std::string::npos) << error;
  EXPECT_NE(error.find("no such file"), std::string::npos) << error;
}

TEST(PluginTest, LibraryWithoutGetPjrtApi) {
  AddPlugin("math", {"libm.so.6", {}});
  const std::string error = ErrorOf([] { Client::Create("math"); });
  EXPECT_NE(error.find("exports no GetPjrtApi"), std::string::npos) << error;
}

// A plugin of `major`.`minor` whose table ends after `slots` functions; empty without a compiler.
std::string BuildPlugin(int major, int minor, int slots) {
  static int serial = 0;
  const std::filesystem::path include =
      std::filesystem::path(__FILE__).parent_path() / "../../torch_xla/csrc";
  if (!std::filesystem::exists(include)) return {};
  const std::string stem =
      "/tmp/runtime_test_" + std::to_string(getpid()) + "_" + std::to_string(serial++);
  std::ofstream(stem + ".cpp") << R"(
using namespace torch_xla::runtime::pjrt;
static PJRT_Api api;
extern "C" const PJRT_Api* GetPjrtApi() {
  api.struct_size = offsetof(PJRT_Api, PJRT_Error_Destroy) + 8 * SLOTS;
  api.pjrt_api_version.major_version = MAJOR;
  api.pjrt_api_version.minor_version = MINOR;
  api.PJRT_Error_Destroy = [](PJRT_Error_Destroy_Args*) {};
  api.PJRT_Error_Message = [](PJRT_Error_Message_Args*) {};
  api.PJRT_Error_GetCode = [](PJRT_Error_GetCode_Args*) -> PJRT_Error* { return nullptr; };
  // Beyond the end of the table it announces: never to be called.
  api.PJRT_Client_Create = [](PJRT_Client_Create_Args*) -> PJRT_Error* { __builtin_trap(); };
  return &api;
})";
  const std::string command =
      "c++ -std=c++20 -shared -fPIC -I " + include.string() + " -DMAJOR=" + std::to_string(major) +
      " -DMINOR=" + std::to_string(minor) + " -DSLOTS=" + std::to_string(slots) + " " + stem +
      ".cpp -o " + stem + ".so";
  const bool built = system(command.c_str()) == 0;
  std::filesystem::remove(stem + ".cpp");
  return built ? stem + ".so" : "";
}

TEST(PluginTest, ForeignVersions) {
  struct Case {
    int major, minor, slots;
    const char* expected;
  };
  const Case cases[] = {
      {1, 3, 100, "Install a newer torch_xla or an older plugin"},
      {0, 40, 100, "Install a newer plugin"},
      {0, 90, 2, "no functions to report errors with"},
      {0, 90, 10, "(API 0.90) has no PJRT_Client_Create"},
  };
  for (const Case& c : cases) {
    const std::string library = BuildPlugin(c.major, c.minor, c.slots);
    if (library.empty()) GTEST_SKIP() << "needs c++ and the source tree";
    AddPlugin("foreign", {library, {}});
    const std::string error = ErrorOf([] { Client::Create("foreign"); });
    EXPECT_NE(error.find(c.expected), std::string::npos) << error;
    std::filesystem::remove(library);
  }
}

TEST(PluginTest, CpuDeviceCountIsValidated) {
  for (const char* value : {"0", "-1", "two", "2x", "99999999999"}) {
    ScopedVariable variable("CPU_NUM_DEVICES", value);
    const std::string error = ErrorOf([] { Client::Create("CPU"); });
    EXPECT_NE(error.find("CPU_NUM_DEVICES"), std::string::npos) << error;
  }
  ScopedVariable variable("CPU_NUM_DEVICES", "3");
  EXPECT_EQ(Client::Create("CPU")->devices().size(), 3u);
}

// ----------------------------------------------------------------------------------------- client

TEST(ClientTest, DescribesItself) {
  Client& client = SharedClient();
  EXPECT_EQ(client.platform(), "CPU");
  EXPECT_TRUE(client.host_memory());
  EXPECT_NE(client.version().find("pjrt=0."), std::string::npos) << client.version();
  ASSERT_EQ(client.devices().size(), 1u);
  EXPECT_EQ(client.devices()[0].local_ordinal, 0);
  EXPECT_FALSE(client.devices()[0].kind.empty());
  std::printf("  version: %s\n", client.version().c_str());
}

// --------------------------------------------------------------------------------------- buffers

TEST(BufferTest, EveryTypeBothWays) {
  Client& client = SharedClient();
  for (int i = 1; i <= static_cast<int>(ElementType::kC128); ++i) {
    const auto type = static_cast<ElementType>(i);
    const int64_t dims[] = {3, 5};
    std::vector<uint8_t> sent(15 * ByteWidth(type)), got(sent.size());
    for (size_t j = 0; j < sent.size(); ++j) {
      sent[j] = static_cast<uint8_t>(type == ElementType::kPred ? j % 2 : 7 * j + 1);
    }
    auto buffer = client.BufferFromHost(sent.data(), type, dims, 0);
    EXPECT_EQ(buffer->bytes(), sent.size());
    buffer->CopyToHost(got.data()).Await();
    EXPECT_EQ(sent, got) << MlirName(type);
    buffer->ReadyEvent().Await();
    const void* pointer = buffer->HostPointer();
    ASSERT_NE(pointer, nullptr) << MlirName(type);
    EXPECT_EQ(std::memcmp(pointer, sent.data(), sent.size()), 0) << MlirName(type);
  }
  EXPECT_NO_LIVE_BYTES(client);
}

TEST(BufferTest, ScalarsAndEmptyArrays) {
  Client& client = SharedClient();
  const double value = 2.5;
  auto scalar = client.BufferFromHost(&value, ElementType::kF64, {}, 0);
  double got = 0;
  scalar->CopyToHost(&got).Await();
  EXPECT_EQ(got, 2.5);

  const int64_t dims[] = {4, 0, 2};
  auto empty = client.BufferFromHost(nullptr, ElementType::kS64, dims, 0);
  EXPECT_EQ(empty->bytes(), 0u);
  empty->CopyToHost(nullptr).Await();
  bool called = false;
  auto with_callback =
      client.BufferFromHost(nullptr, ElementType::kS64, dims, 0, [&] { called = true; });
  with_callback->ReadyEvent().Await();
  for (int i = 0; i < 1000 && !called; ++i) usleep(1000);
  EXPECT_TRUE(called);
}

TEST(BufferTest, RefusesWhatWouldAbort) {
  Client& client = SharedClient();
  const float value = 1;
  const int64_t negative = -1, one = 1;
  EXPECT_THROW(client.BufferFromHost(&value, ElementType::kInvalid, {}, 0), Error);
  EXPECT_THROW(client.BufferFromHost(&value, static_cast<ElementType>(200), {}, 0), Error);
  EXPECT_THROW(client.BufferFromHost(nullptr, ElementType::kF32, {&one, 1}, 0), Error);
  EXPECT_THROW(client.BufferFromHost(&value, ElementType::kF32, {&negative, 1}, 0), Error);
  EXPECT_THROW(client.BufferFromHost(&value, ElementType::kF32, {}, 1), Error);
  EXPECT_THROW(client.BufferFromHost(&value, ElementType::kF32, {}, -1), Error);
  EXPECT_THROW(Upload(client, {1})->CopyToHost(nullptr), Error);
}

TEST(BufferTest, DataMayBeReusedOnReturn) {
  Client& client = SharedClient();
  std::vector<float> values(1 << 20, 1.0f);
  auto buffer = Upload(client, values);
  std::fill(values.begin(), values.end(), 2.0f);
  EXPECT_EQ(Download(*buffer), std::vector<float>(1 << 20, 1.0f));
}

TEST(BufferTest, OnDoneIsCalledOnce) {
  Client& client = SharedClient();
  std::atomic<int> calls{0};
  std::vector<float> values(1 << 18, 3.0f);
  const int64_t dim = 1 << 18;
  auto buffer =
      client.BufferFromHost(values.data(), ElementType::kF32, {&dim, 1}, 0, [&] { ++calls; });
  EXPECT_EQ(Download(*buffer), values);
  for (int i = 0; i < 2000 && calls == 0; ++i) usleep(1000);
  buffer.reset();
  EXPECT_EQ(calls, 1);
}

TEST(BufferTest, ZeroCopyAliasesAlignedMemory) {
  Client& client = SharedClient();
  constexpr int64_t kCount = 1024;
  auto* data = static_cast<float*>(aligned_alloc(4096, kCount * sizeof(float)));
  std::iota(data, data + kCount, 0.0f);
  std::atomic<int> calls{0};
  auto buffer = client.BufferFromHost(
      data, ElementType::kF32, {&kCount, 1}, 0, [&] { ++calls; },
      /*zero_copy=*/true);
  buffer->ReadyEvent().Await();
  EXPECT_EQ(buffer->HostPointer(), data);
  EXPECT_EQ(calls, 0);
  EXPECT_EQ(Download(*buffer)[1023], 1023.0f);
  buffer.reset();
  for (int i = 0; i < 2000 && calls == 0; ++i) usleep(1000);
  EXPECT_EQ(calls, 1);
  free(data);
}

TEST(BufferTest, SharedMemoryIsTheBuffers) {
  Client& client = SharedClient();
  auto buffer = Upload(client, {1, 2, 3});
  buffer->ReadyEvent().Await();
  std::shared_ptr<void> first = buffer->Share(), second = buffer->Share();
  EXPECT_EQ(first.get(), buffer->HostPointer());
  EXPECT_EQ(second.get(), first.get());
  EXPECT_EQ(static_cast<const float*>(first.get())[2], 3.0f);
  first.reset();
  EXPECT_EQ(static_cast<const float*>(second.get())[0], 1.0f);
  second.reset();

  auto program = client.Compile(Doubling(3, /*donate=*/true), {});
  Buffer* argument = buffer.get();
  program->Execute({&argument, 1}).done.Await();
  EXPECT_THROW(buffer->Share(), Error) << "donated";
}

class ForeignArray {
 public:
  explicit ForeignArray(int64_t count)
      : data_(static_cast<float*>(aligned_alloc(64, count * sizeof(float)))) {
    std::iota(data_, data_ + count, 0.0f);
  }
  ~ForeignArray() { free(data_); }
  float* data() const { return data_; }
  /// Counts in `released` how often it is let go of.
  std::shared_ptr<const void> Owner(std::atomic<int>& released) const {
    return {data_, [&released](const void*) { ++released; }};
  }

 private:
  float* data_;
};

TEST(BufferTest, ViewIsTheOwnersMemory) {
  Client& client = SharedClient();
  constexpr int64_t kDims[] = {4, 256};
  ForeignArray array(1024);
  std::atomic<int> released{0};
  const int64_t before = client.memory(0).in_use;
  auto view = client.ViewOf(array.data(), ElementType::kF32, kDims, 0, array.Owner(released));
  EXPECT_TRUE(view->foreign());
  EXPECT_EQ(view->bytes(), 4096u);
  EXPECT_EQ(view->Share().get(), array.data());
  EXPECT_EQ(client.memory(0).in_use, before) << "not the client's memory";
  EXPECT_EQ(Download(*view)[1023], 1023.0f);
  array.data()[5] = -1;
  EXPECT_EQ(Download(*view)[5], -1.0f);

  // It outlives a program that reads it, and no longer.
  auto program = client.Compile(Doubling(1024), {});
  constexpr int64_t kFlat[] = {1024};
  auto flat = client.ViewOf(array.data(), ElementType::kF32, kFlat, 0, array.Owner(released));
  Buffer* argument = flat.get();
  auto result = program->Execute({&argument, 1});
  flat.reset();
  EXPECT_EQ(Download(*result.outputs[0])[1023], 2046.0f);
  for (int i = 0; i < 2000 && released == 0; ++i) usleep(1000);
  EXPECT_EQ(released, 1);
  view.reset();
  for (int i = 0; i < 2000 && released == 1; ++i) usleep(1000);
  EXPECT_EQ(released, 2);
  EXPECT_EQ(array.data()[1], 1.0f);
}

TEST(BufferTest, AForkedChildDestroysNothing) {
  Client& client = SharedClient();
  constexpr int64_t kDims[] = {16};
  ForeignArray array(16);
  std::atomic<int> released{0};
  auto view = client.ViewOf(array.data(), ElementType::kF32, kDims, 0, array.Owner(released));
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(30);
    view.reset();
    // The plugin would have let go of it at once.
    _exit(Client::Forked() && released == 0 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_FALSE(Client::Forked());
  view.reset();
  EXPECT_EQ(released, 1);
}

TEST(BufferTest, RefusedViewsReleaseTheirOwner) {
  Client& client = SharedClient();
  ForeignArray array(64);
  constexpr int64_t kDims[] = {32}, kNegative[] = {-1};
  std::atomic<int> released{0};
  EXPECT_THROW(client.ViewOf(nullptr, ElementType::kF32, kDims, 0, array.Owner(released)), Error);
  EXPECT_THROW(client.ViewOf(array.data(), ElementType::kF32, kDims, 1, array.Owner(released)),
               Error);
  EXPECT_THROW(client.ViewOf(array.data(), ElementType::kF32, kNegative, 0, array.Owner(released)),
               Error);
  EXPECT_THROW(client.ViewOf(array.data(), ElementType::kInvalid, kDims, 0, array.Owner(released)),
               Error);
  EXPECT_EQ(released, 4);
  // What the plugin itself refuses: memory that is not aligned, and a stream.
  for (auto [data, stream] : {std::pair(array.data() + 1, intptr_t{0}), {array.data(), 64}}) {
    try {
      client.ViewOf(data, ElementType::kF32, kDims, 0, array.Owner(released), stream);
      ADD_FAILURE() << "no Error thrown";
    } catch (const Error& error) {
      EXPECT_TRUE(error.refused()) << error.what();
    }
  }
  EXPECT_EQ(released, 6);
  EXPECT_FALSE(client.ExternalStream(0).has_value());
}

TEST(BufferTest, CloneIsIndependent) {
  Client& client = SharedClient();
  auto program = client.Compile(Doubling(64, /*donate=*/true), {});
  const std::vector<float> values(64, 1.5f);
  auto original = Upload(client, values);
  auto clone = original->Clone();
  Buffer* argument = original.get();
  auto result = program->Execute({&argument, 1});
  EXPECT_EQ(Download(*result.outputs[0]), std::vector<float>(64, 3.0f));
  EXPECT_EQ(Download(*clone), values);

  // The other way round: the clone is consumed, what it was made from is not.
  auto source = Upload(client, values);
  auto second = source->Clone();
  argument = second.get();
  result = program->Execute({&argument, 1});
  EXPECT_EQ(Download(*result.outputs[0]), std::vector<float>(64, 3.0f));
  EXPECT_EQ(Download(*source), values);
}

TEST(BufferTest, CloneOfEmpty) {
  const int64_t dim = 0;
  auto empty = SharedClient().BufferFromHost(nullptr, ElementType::kF32, {&dim, 1}, 0);
  auto clone = empty->Clone();
  clone->ReadyEvent().Await();
  EXPECT_EQ(clone->bytes(), 0u);
}

TEST(BufferTest, OutlivesItsClient) {
  auto client = Client::Create("CPU");
  auto buffer = Upload(*client, {1, 2, 3});
  auto program = client->Compile(Doubling(3), {});
  client.reset();
  Buffer* argument = buffer.get();
  EXPECT_EQ(Download(*program->Execute({&argument, 1}).outputs[0]), (std::vector<float>{2, 4, 6}));
}

// ----------------------------------------------------------------------------------- executables

TEST(ExecutableTest, CompilesAndExecutes) {
  Client& client = SharedClient();
  auto program = client.Compile(
      R"(module @pair {
        func.func @main(%x: tensor<2x3xf32>, %s: tensor<f32>)
            -> (tensor<2x3xf32>, tensor<i64>, tensor<0xf32>) {
          %b = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> tensor<2x3xf32>
          %0 = stablehlo.multiply %x, %b : tensor<2x3xf32>
          %1 = stablehlo.constant dense<7> : tensor<i64>
          %2 = stablehlo.constant dense<[]> : tensor<0xf32>
          return %0, %1, %2 : tensor<2x3xf32>, tensor<i64>, tensor<0xf32>
        } })",
      {});
  EXPECT_EQ(program->num_outputs(), 3u);
  EXPECT_EQ(program->name(), "pair");
  EXPECT_EQ(program->devices(), std::vector<int>{0});
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  const int64_t dims[] = {2, 3};
  const float scale = 10;
  std::vector<std::unique_ptr<Buffer>> arguments;
  arguments.push_back(client.BufferFromHost(values.data(), ElementType::kF32, dims, 0));
  arguments.push_back(client.BufferFromHost(&scale, ElementType::kF32, {}, 0));
  ExecuteResult result = program->Execute(Raw(arguments));
  result.done.Await();
  EXPECT_TRUE(result.done.ready());
  ASSERT_EQ(result.outputs.size(), 3u);
  EXPECT_EQ(Download(*result.outputs[0]), (std::vector<float>{10, 20, 30, 40, 50, 60}));
  int64_t seven = 0;
  result.outputs[1]->CopyToHost(&seven).Await();
  EXPECT_EQ(seven, 7);
  EXPECT_EQ(result.outputs[2]->bytes(), 0u);
}

TEST(ExecutableTest, ManyInFlight) {
  Client& client = SharedClient();
  auto program = client.Compile(Doubling(4096), {});
  std::vector<std::unique_ptr<Buffer>> chain;
  chain.push_back(Upload(client, std::vector<float>(4096, 1.0f)));
  std::atomic<int> done{0};
  for (int i = 0; i < 100; ++i) {
    Buffer* argument = chain.back().get();
    ExecuteResult result = program->Execute({&argument, 1});
    result.done.OnReady([&](const Error* error) { done += error == nullptr; });
    chain.push_back(std::move(result.outputs[0]));
  }
  // Inputs may go while the programs that read them are still running.
  chain.erase(chain.begin(), chain.end() - 1);
  EXPECT_EQ(Download(*chain.back())[0], std::ldexp(1.0f, 100));
  for (int i = 0; i < 2000 && done < 100; ++i) usleep(1000);
  EXPECT_EQ(done, 100);
}

TEST(ExecutableTest, ManyThreads) {
  Client& client = SharedClient();
  auto program = client.Compile(Doubling(16), {});
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        auto buffer = Upload(client, std::vector<float>(16, static_cast<float>(t + i)));
        Buffer* argument = buffer.get();
        right += Download(*program->Execute({&argument, 1}).outputs[0])[7] == 2.0f * (t + i);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(right, 800);
  EXPECT_NO_LIVE_BYTES(client);
}

TEST(ExecutableTest, CompileErrorsCarryThePluginsMessage) {
  Client& client = SharedClient();
  const std::string error = ErrorOf([&] {
    client.Compile(
        "func.func @main(%x: tensor<2xf32>) -> tensor<3xf32> { "
        "%0 = stablehlo.nonesuch %x : tensor<2xf32> return %0 : tensor<3xf32> }",
        {});
  });
  EXPECT_NE(error.find("Compiling the program failed"), std::string::npos) << error;
  EXPECT_NE(error.find("nonesuch"), std::string::npos) << error;
  EXPECT_THROW(client.Compile("", {}), Error);
  EXPECT_THROW(client.Compile("module {}", {}), Error);
  CompileOptions options;
  options.device = 5;
  EXPECT_THROW(client.Compile(Doubling(2), options), Error);
  options = {};
  options.num_replicas = 0;
  EXPECT_THROW(client.Compile(Doubling(2), options), Error);
}

TEST(ExecutableTest, OverridesReachTheCompiler) {
  Client& client = SharedClient();
  CompileOptions options;
  options.overrides = {{"xla_no_such_option", "true"}};
  const std::string error = ErrorOf([&] { client.Compile(Doubling(2), options); });
  EXPECT_NE(error.find("xla_no_such_option"), std::string::npos) << error;
  options.overrides = {{"xla_cpu_enable_fast_math", "maybe"}};
  EXPECT_THROW(client.Compile(Doubling(2), options), Error);

  char directory[] = "/tmp/runtime_test_XXXXXX";
  ASSERT_NE(mkdtemp(directory), nullptr);
  options.overrides = {{"xla_cpu_enable_fast_math", "true"},
                       {"xla_backend_optimization_level", "1"},
                       {"xla_dump_to", directory},
                       {"xla_dump_hlo_as_text", "true"}};
  client.Compile(Doubling(2), options);
  EXPECT_FALSE(std::filesystem::is_empty(directory));
  std::filesystem::remove_all(directory);
}

TEST(ExecutableTest, WrongArguments) {
  Client& client = SharedClient();
  auto program = client.Compile(Doubling(4), {});
  auto right = Upload(client, {1, 2, 3, 4});
  auto short_one = Upload(client, {1, 2});
  EXPECT_THROW(program->Execute({}), Error);
  std::vector<Buffer*> two = {right.get(), right.get()};
  EXPECT_THROW(program->Execute(two), Error);
  Buffer* null = nullptr;
  EXPECT_THROW(program->Execute({&null, 1}), Error);
  Buffer* argument = right.get();
  EXPECT_THROW(program->Execute({&argument, 1}, 1), Error);
  argument = short_one.get();
  EXPECT_THROW(
      {
        auto result = program->Execute({&argument, 1});
        result.done.Await();
      },
      Error);
  argument = right.get();
  EXPECT_EQ(Download(*program->Execute({&argument, 1}).outputs[0])[3], 8.0f);
}

TEST(ExecutableTest, DonationReusesMemory) {
  Client& client = SharedClient();
  auto program = client.Compile(Doubling(1024, /*donate=*/true), {});
  auto buffer = Upload(client, std::vector<float>(1024, 1.0f));
  buffer->ReadyEvent().Await();
  const void* memory = buffer->HostPointer();
  const int64_t before = client.memory(0).in_use;
  Buffer* argument = buffer.get();
  auto result = program->Execute({&argument, 1});
  result.done.Await();
  EXPECT_EQ(result.outputs[0]->HostPointer(), memory);
  EXPECT_EQ(client.memory(0).in_use, before) << "donated memory is counted once";

  // The consumed buffer can be destroyed and nothing else.
  EXPECT_THROW(Download(*buffer), Error);
  EXPECT_THROW(buffer->HostPointer(), Error);
  EXPECT_THROW(buffer->Clone(), Error);
  EXPECT_THROW(
      {
        auto again = program->Execute({&argument, 1});
        again.done.Await();
      },
      Error);
  buffer.reset();
  EXPECT_EQ(Download(*result.outputs[0])[5], 2.0f);
}

TEST(ExecutableTest, SerializesAndDeserializes) {
  Client& client = SharedClient();
  const std::string bytes = client.Compile(Doubling(8), {})->Serialize();
  EXPECT_FALSE(bytes.empty());
  auto program = client.Deserialize(bytes, {});
  EXPECT_EQ(program->num_outputs(), 1u);
  auto buffer = Upload(client, std::vector<float>(8, 21.0f));
  Buffer* argument = buffer.get();
  EXPECT_EQ(Download(*program->Execute({&argument, 1}).outputs[0]), std::vector<float>(8, 42.0f));
  EXPECT_THROW(client.Deserialize("nonsense", {}), Error);
  EXPECT_THROW(client.Deserialize("", {}), Error);

  // A client of another process is what the disk cache deserializes for.
  auto other = Client::Create("CPU");
  auto moved = other->Deserialize(bytes, {});
  auto input = Upload(*other, std::vector<float>(8, 1.0f));
  argument = input.get();
  EXPECT_EQ(Download(*moved->Execute({&argument, 1}).outputs[0]), std::vector<float>(8, 2.0f));
}

TEST(ExecutableTest, MemoryUse) {
  auto program = SharedClient().Compile(Doubling(256), {});
  const Executable::MemoryUse use = program->memory();
  EXPECT_EQ(use.arguments, 1024);
  EXPECT_EQ(use.outputs, 1024);
  EXPECT_GE(use.temporaries, 0);
}

TEST(ExecutableTest, MemoryAccounting) {
  auto client = Client::Create("CPU");
  EXPECT_NO_LIVE_BYTES(*client);
  {
    auto program = client->Compile(Doubling(1000), {});
    auto buffer = Upload(*client, std::vector<float>(1000, 1.0f));
    EXPECT_EQ(client->memory(0).in_use, 4000);
    Buffer* argument = buffer.get();
    auto result = program->Execute({&argument, 1});
    EXPECT_EQ(client->memory(0).in_use, 8000);
    auto clone = buffer->Clone();
    EXPECT_EQ(client->memory(0).in_use, 12000);
  }
  EXPECT_NO_LIVE_BYTES(*client);
  EXPECT_EQ(client->memory(0).peak, 12000);
  EXPECT_THROW(client->memory(1), Error);
}

// ---------------------------------------------------------------------------------- two devices

TEST(TwoDeviceTest, AllReduce) {
  Client& client = TwoDeviceClient();
  ASSERT_EQ(client.devices().size(), 2u);
  CompileOptions options;
  options.num_replicas = 2;
  auto program = client.Compile(
      R"(module @sum { func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
        %0 = "stablehlo.all_reduce"(%x) ({
          ^bb0(%a: tensor<f32>, %b: tensor<f32>):
            %s = stablehlo.add %a, %b : tensor<f32>
            stablehlo.return %s : tensor<f32>
        }) {replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>} : (tensor<4xf32>) -> tensor<4xf32>
        return %0 : tensor<4xf32> } })",
      options);
  EXPECT_EQ(program->devices(), (std::vector<int>{0, 1}));
  for (int i = 0; i < 20; ++i) {
    auto first = Upload(client, {1, 2, 3, 4}, 0);
    auto second = Upload(client, {10, 20, 30, 40}, 1);
    const std::vector<std::vector<Buffer*>> arguments = {{first.get()}, {second.get()}};
    auto results = program->ExecuteSharded(arguments);
    ASSERT_EQ(results.size(), 2u);
    for (int d = 0; d < 2; ++d) {
      EXPECT_EQ(results[d].outputs[0]->device(), d);
      EXPECT_EQ(Download(*results[d].outputs[0]), (std::vector<float>{11, 22, 33, 44}));
    }
  }
  Buffer* none = nullptr;
  EXPECT_THROW(program->Execute({&none, 1}), Error);
  EXPECT_THROW(program->ExecuteSharded({}), Error);
  const std::vector<std::vector<Buffer*>> no_arguments(2);
  EXPECT_THROW(program->ExecuteSharded(no_arguments), Error);
  {
    auto first = Upload(client, {1, 2, 3, 4}, 0);
    auto second = Upload(client, {1, 2}, 1);
    const std::vector<std::vector<Buffer*>> wrong_size = {{first.get()}, {second.get()}};
    EXPECT_THROW(program->ExecuteSharded(wrong_size), Error);
    const std::vector<std::vector<Buffer*>> wrong_device = {{first.get()}, {first.get()}};
    EXPECT_THROW(program->ExecuteSharded(wrong_device), Error);
  }
  EXPECT_EQ(client.memory(0).in_use, 0);
  EXPECT_EQ(client.memory(1).in_use, 0);
}

TEST(TwoDeviceTest, DonatedTwice) {
  Client& client = TwoDeviceClient();
  CompileOptions options;
  options.num_replicas = 2;
  auto program = client.Compile(Doubling(2, /*donate=*/true), options);
  auto first = Upload(client, {1, 2}, 0);
  auto second = Upload(client, {3, 4}, 1);
  const std::vector<std::vector<Buffer*>> arguments = {{first.get()}, {second.get()}};
  auto results = program->ExecuteSharded(arguments);
  EXPECT_EQ(Download(*results[1].outputs[0]), (std::vector<float>{6, 8}));
  const std::string error = ErrorOf([&] { program->ExecuteSharded(arguments); });
  EXPECT_NE(error.find("donated"), std::string::npos) << error;
}

TEST(TwoDeviceTest, ProgramOfTheSecondDevice) {
  Client& client = TwoDeviceClient();
  CompileOptions options;
  options.device = 1;
  auto program = client.Compile(Doubling(2), options);
  EXPECT_EQ(program->devices(), std::vector<int>{1});
  auto buffer = Upload(client, {1, 2}, 1);
  EXPECT_EQ(client.memory(1).in_use, 8);
  EXPECT_EQ(client.memory(0).in_use, 0);
  Buffer* argument = buffer.get();
  EXPECT_THROW(program->Execute({&argument, 1}, 0), Error);
  auto result = program->Execute({&argument, 1}, 1);
  EXPECT_EQ(result.outputs[0]->device(), 1);
  EXPECT_EQ(Download(*result.outputs[0]), (std::vector<float>{2, 4}));
  auto clone = buffer->Clone();
  EXPECT_EQ(clone->device(), 1);
  EXPECT_EQ(Download(*clone), (std::vector<float>{1, 2}));

  // A program cached for one device loads for another.
  const std::string bytes = client.Compile(Doubling(2), {})->Serialize();
  auto moved = client.Deserialize(bytes, options);
  EXPECT_EQ(moved->devices(), std::vector<int>{1});
  result = moved->Execute({&argument, 1}, 1);
  EXPECT_EQ(Download(*result.outputs[0]), (std::vector<float>{2, 4}));
}

TEST(TwoDeviceTest, SpmdPartitioning) {
  Client& client = TwoDeviceClient();
  CompileOptions options;
  options.num_partitions = 2;
  options.use_spmd_partitioning = true;
  auto program = client.Compile(
      R"(module @spmd attributes {mhlo.num_partitions = 2 : i32, mhlo.num_replicas = 1 : i32} {
        func.func @main(%x: tensor<4xf32> {mhlo.sharding = "{devices=[2]<=[2]}"})
            -> (tensor<4xf32> {mhlo.sharding = "{devices=[2]<=[2]}"}) {
          %0 = stablehlo.add %x, %x : tensor<4xf32>
          return %0 : tensor<4xf32> } })",
      options);
  auto first = Upload(client, {1, 2}, 0);
  auto second = Upload(client, {3, 4}, 1);
  const std::vector<std::vector<Buffer*>> arguments = {{first.get()}, {second.get()}};
  auto results = program->ExecuteSharded(arguments);
  EXPECT_EQ(Download(*results[0].outputs[0]), (std::vector<float>{2, 4}));
  EXPECT_EQ(Download(*results[1].outputs[0]), (std::vector<float>{6, 8}));
}

TEST(TwoDeviceTest, TellsHowOutputsLie) {
  Client& client = TwoDeviceClient();
  CompileOptions options;
  options.num_partitions = 2;
  options.use_spmd_partitioning = true;
  options.propagate_to_outputs = {true, true, false};
  auto program = client.Compile(
      R"(module @spmd attributes {mhlo.num_partitions = 2 : i32, mhlo.num_replicas = 1 : i32} {
        func.func @main(%x: tensor<4x2xf32> {mhlo.sharding = "{devices=[2,1]1,0}"})
            -> (tensor<4x2xf32>, tensor<2xf32>, tensor<4x2xf32> {mhlo.sharding = "{replicated}"}) {
          %0 = stablehlo.add %x, %x : tensor<4x2xf32>
          %1 = stablehlo.constant dense<1.0> : tensor<2xf32>
          return %0, %1, %x : tensor<4x2xf32>, tensor<2xf32>, tensor<4x2xf32> } })",
      options);
  ASSERT_TRUE(program->output_shardings().has_value());
  const std::vector<OutputSharding>& shardings = *program->output_shardings();
  ASSERT_EQ(shardings.size(), 3u);
  EXPECT_EQ(shardings[0].tiles, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(shardings[0].devices, (std::vector<int64_t>{1, 0}));
  EXPECT_TRUE(shardings[1].tiles.empty());
  EXPECT_TRUE(shardings[2].tiles.empty());
}

// ---------------------------------------------------------------------------- the store of a job

class MemoryStore final : public KeyValueStore {
 public:
  void Put(const std::string& key, const std::string& value) override { values_[key] = value; }
  std::optional<std::string> Get(const std::string& key,
                                 std::chrono::milliseconds timeout) override {
    if (key == "broken") throw std::runtime_error("the store is gone");
    last_timeout = timeout;
    auto found = values_.find(key);
    if (found == values_.end()) return std::nullopt;
    return found->second;
  }
  std::chrono::milliseconds last_timeout{-1};

 private:
  std::map<std::string, std::string> values_;
};

// What the plugin makes of an error of ours.
std::string g_store_error;
pjrt::PJRT_Error_Code g_store_code;
pjrt::PJRT_Error* NoteError(pjrt::PJRT_Error_Code code, const char* message, size_t size) {
  g_store_code = code;
  g_store_error.assign(message, size);
  return reinterpret_cast<pjrt::PJRT_Error*>(&g_store_error);
}

TEST(KeyValueStoreTest, ThePluginGetsWhatWasPut) {
  MemoryStore store;
  pjrt::PJRT_Client_Create_Args create{};
  SetStore(create, store);
  pjrt::PJRT_CallbackError on_error = &NoteError;
  const std::string key = "key", value("a\0b", 3);

  pjrt::PJRT_KeyValuePutCallback_Args put{};
  put.key = key.data();
  put.key_size = key.size();
  put.value = value.data();
  put.value_size = value.size();
  put.callback_error = &on_error;
  put.user_arg = create.kv_put_user_arg;
  EXPECT_EQ(create.kv_put_callback(&put), nullptr);

  pjrt::PJRT_KeyValueGetCallback_Args get{};
  get.key = key.data();
  get.key_size = key.size();
  get.timeout_in_ms = 1234;
  get.callback_error = &on_error;
  get.user_arg = create.kv_get_user_arg;
  ASSERT_EQ(create.kv_get_callback(&get), nullptr);
  EXPECT_EQ(std::string(get.value, get.value_size), value);
  EXPECT_EQ(store.last_timeout.count(), 1234);
  get.value_deleter_callback(get.value);

  pjrt::PJRT_KeyValueTryGetCallback_Args look{};
  look.callback_error = &on_error;
  look.user_arg = create.kv_try_get_user_arg;
  for (const auto& [name, code] : {std::pair{"absent", pjrt::PJRT_Error_Code_NOT_FOUND},
                                   std::pair{"broken", pjrt::PJRT_Error_Code_INTERNAL}}) {
    look.key = name;
    look.key_size = std::strlen(name);
    EXPECT_NE(create.kv_try_get_callback(&look), nullptr);
    EXPECT_EQ(g_store_code, code) << g_store_error;
  }
  EXPECT_EQ(g_store_error, "the store is gone");
}

// ----------------------------------------------------------------------------- custom calls,
// events

std::atomic<int> g_handler_calls{0};

// y = 3 x, or an error where x[0] is negative.
pjrt::XLA_FFI_Error* TripleHandler(pjrt::XLA_FFI_CallFrame* frame) {
  using namespace pjrt;
  for (auto* extension = frame->extension_start; extension != nullptr;
       extension = extension->next) {
    if (extension->type == XLA_FFI_Extension_Metadata) {
      XLA_FFI_Metadata* metadata =
          reinterpret_cast<XLA_FFI_Metadata_Extension*>(extension)->metadata;
      metadata->api_version.major_version = frame->api->api_version.major_version;
      metadata->api_version.minor_version = frame->api->api_version.minor_version;
      metadata->traits = 0;
      return nullptr;
    }
  }
  if (frame->stage != XLA_FFI_ExecutionStage_EXECUTE) return nullptr;
  ++g_handler_calls;
  auto* in = static_cast<XLA_FFI_Buffer*>(frame->args.args[0]);
  auto* out = static_cast<XLA_FFI_Buffer*>(frame->rets.rets[0]);
  const auto* x = static_cast<const float*>(in->data);
  if (x[0] < 0) {
    XLA_FFI_Error_Create_Args error{};
    error.struct_size = kStructSize<XLA_FFI_Error_Create_Args>;
    error.message = "the handler dislikes negative numbers";
    error.errc = PJRT_Error_Code_INVALID_ARGUMENT;
    return frame->api->XLA_FFI_Error_Create(&error);
  }
  for (int64_t i = 0; i < in->dims[0]; ++i) static_cast<float*>(out->data)[i] = 3 * x[i];
  return nullptr;
}

std::unique_ptr<Executable> CompileTriple(Client& client) {
  client.RegisterCustomCall("torch_xla_test_triple", reinterpret_cast<void*>(TripleHandler));
  return client.Compile(
      R"(module @triple { func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
        %0 = stablehlo.custom_call @torch_xla_test_triple(%x)
            {api_version = 4 : i32, backend_config = {}} : (tensor<3xf32>) -> tensor<3xf32>
        return %0 : tensor<3xf32> } })",
      {});
}

TEST(CustomCallTest, Runs) {
  Client& client = SharedClient();
  auto program = CompileTriple(client);
  auto buffer = Upload(client, {1, 2, 3});
  Buffer* argument = buffer.get();
  EXPECT_EQ(Download(*program->Execute({&argument, 1}).outputs[0]), (std::vector<float>{3, 6, 9}));
  EXPECT_EQ(g_handler_calls, 1);
  EXPECT_THROW(client.RegisterCustomCall("torch_xla_test_triple", &client), Error);
  EXPECT_THROW(client.RegisterCustomCall("torch_xla_test_null", nullptr), Error);
}

TEST(EventTest, FailuresReachWaitersAndCallbacks) {
  Client& client = SharedClient();
  auto program = CompileTriple(client);
  auto buffer = Upload(client, {-1, 2, 3});
  Buffer* argument = buffer.get();
  std::string message;
  int code = 0;
  try {
    ExecuteResult result = program->Execute({&argument, 1});
    std::mutex mutex;
    std::condition_variable condition;
    std::string called;
    result.done.OnReady([&](const Error* error) {
      std::lock_guard lock(mutex);
      called = error != nullptr ? error->what() : "no error";
      condition.notify_one();
    });
    std::unique_lock lock(mutex);
    condition.wait(lock, [&] { return !called.empty(); });
    EXPECT_NE(called.find("dislikes negative"), std::string::npos) << called;
    EXPECT_THROW(Download(*result.outputs[0]), Error);
    EXPECT_THROW(result.outputs[0]->ReadyEvent().Await(), Error);
    EXPECT_THROW(result.done.Await(), Error);
    result.done.Await();
  } catch (const Error& error) {
    message = error.what();
    code = error.code();
  }
  EXPECT_NE(message.find("dislikes negative"), std::string::npos) << message;
  EXPECT_EQ(code, 3) << message;
  EXPECT_FALSE(Error(3, "").out_of_memory());
  EXPECT_TRUE(Error(8, "").out_of_memory());
}

TEST(EventTest, DefaultIsReady) {
  Event event;
  EXPECT_TRUE(event.ready());
  event.Await();
  int calls = 0;
  event.OnReady([&](const Error* error) { calls += error == nullptr; });
  EXPECT_EQ(calls, 1);
  Event moved = std::move(event);
  EXPECT_TRUE(moved.ready());
}

// ------------------------------------------------------------------------------------ environment

// XLA reads its flags once per process, so these run this binary again.
int RunAgain(const std::string& mode, const std::string& environment) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  const int status = system((environment + " " + self + " " + mode).c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

TEST(EnvironmentTest, XlaFlagsReachTheCompiler) {
  char directory[] = "/tmp/runtime_test_XXXXXX";
  ASSERT_NE(mkdtemp(directory), nullptr);
  EXPECT_EQ(RunAgain("--compile", std::string("XLA_FLAGS='--xla_dump_to=") + directory +
                                      " --xla_dump_hlo_as_text'"),
            0);
  EXPECT_FALSE(std::filesystem::is_empty(directory));
  std::filesystem::remove_all(directory);
}

TEST(EnvironmentTest, ExitsCleanlyWithStaticOwners) {
  EXPECT_EQ(RunAgain("--static-owners", ""), 0);
}

// ------------------------------------------------------------------------------------ measurement

TEST(Measurement, ExecuteFloor) {
  Client& client = SharedClient();
  for (int count : {1, 2, 8, 64}) {
    std::string parameters, types, body, results;
    for (int i = 0; i < count; ++i) {
      const std::string n = std::to_string(i), comma = i == 0 ? "" : ", ";
      parameters += comma + "%a" + n + ": tensor<4xf32>";
      types += comma + "tensor<4xf32>";
      body += "%r" + n + " = stablehlo.add %a" + n + ", %a" + n + " : tensor<4xf32>\n";
      results += comma + "%r" + n;
    }
    auto program = client.Compile("func.func @main(" + parameters + ") -> (" + types + ") {\n" +
                                      body + "return " + results + " : " + types + " }",
                                  {});
    std::vector<std::unique_ptr<Buffer>> arguments;
    for (int i = 0; i < count; ++i) arguments.push_back(Upload(client, {1, 2, 3, 4}));
    const std::vector<Buffer*> raw = Raw(arguments);
    double best = 1e9;
    for (int round = 0; round < 20; ++round) {
      constexpr int kCalls = 500;
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < kCalls; ++i) ExecuteResult result = program->Execute(raw);
      const std::chrono::duration<double, std::micro> spent =
          std::chrono::steady_clock::now() - start;
      best = std::min(best, spent.count() / kCalls);
    }
    std::printf("  Execute with %d arguments and results: %.2f us\n", count, best);
  }
}

}  // namespace
}  // namespace torch_xla::runtime

int main(int argc, char** argv) {
  using namespace torch_xla::runtime;
  const char* library = getenv("PJRT_CPU_LIBRARY_PATH");
  if (library == nullptr || !std::filesystem::exists(library)) {
    std::fprintf(stderr,
                 "Set PJRT_CPU_LIBRARY_PATH to the shared library of a PJRT CPU plugin, for "
                 "instance of the package fastatomstruct-xla-cpu:\n  python -c \"import "
                 "fastatomstruct_xla_cpu as f; print(f.library_path())\"\n");
    return 1;
  }
  if (argc == 2 && std::string_view(argv[1]) == "--compile") {
    Client::Create("CPU")->Compile(Doubling(2), {});
    return 0;
  }
  if (argc == 2 && std::string_view(argv[1]) == "--static-owners") {
    // Destroyed by static destruction, in an order that nobody chose, with work in flight.
    static std::vector<std::unique_ptr<Buffer>> buffers;
    static std::unique_ptr<Executable> program;
    static std::unique_ptr<Client> client = Client::Create("CPU");
    program = client->Compile(Doubling(1 << 20), {});
    buffers.push_back(Upload(*client, std::vector<float>(1 << 20, 1.0f)));
    for (int i = 0; i < 20; ++i) {
      Buffer* argument = buffers.back().get();
      buffers.push_back(std::move(program->Execute({&argument, 1}).outputs[0]));
    }
    return 0;
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
