// Plugins, clients and buffers of a real CPU plugin.
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
#include "runtime/host_memory.h"
#include "runtime/key_value_store.h"
#include "runtime/pjrt_abi.h"
#include "runtime/plugin.h"
#include "runtime_testing.h"

namespace torch_xla::runtime {
namespace {

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
    EXPECT_EQ(std::memcmp(buffer->Share().get(), sent.data(), sent.size()), 0) << MlirName(type);
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

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(BufferTest, MemoryAboutToBeFreedIsWaitedFor) {
  Client& client = SharedClient();
  const std::vector<float> values(3 << 20, 1.0f);
  auto address = [](const Buffer& buffer) { return buffer.Share().get(); };
  for (int i = 0; i < 5; ++i) {  // on a busy machine it may take too long
    GiveBackFreedMemory();
    auto first = Upload(client, values);
    first->ReadyEvent().Await();
    const void* before = address(*first);
    std::thread free([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(500));
      first.reset();
    });
    const auto second = Upload(client, values);
    free.join();
    if (address(*second) == before) return;
    std::this_thread::sleep_for(std::chrono::seconds(1));  // for as long it does not wait again
  }
  FAIL() << "it was new each time";
}
#endif

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
  EXPECT_EQ(buffer->Share().get(), data);
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

TEST(BufferTest, OutlivesItsClient) {
  auto client = Client::Create("CPU");
  auto buffer = Upload(*client, {1, 2, 3});
  auto program = client->Compile(Doubling(3), {});
  client.reset();
  Buffer* argument = buffer.get();
  EXPECT_EQ(Download(*program->Execute({&argument, 1}).outputs[0]), (std::vector<float>{2, 4, 6}));
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
