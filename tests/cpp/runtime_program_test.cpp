// Programs on a real CPU plugin: one device and two, donation, custom calls, the store of a job.
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
#include "runtime/errors.h"
#include "runtime/ffi_abi.h"
#include "runtime/key_value_store.h"
#include "runtime/pjrt_abi.h"
#include "runtime/plugin.h"
#include "runtime_testing.h"

namespace torch_xla::runtime {
namespace {

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
  const void* memory = buffer->Share().get();
  const int64_t before = client.memory(0).in_use;
  Buffer* argument = buffer.get();
  auto result = program->Execute({&argument, 1});
  result.done.Await();
  EXPECT_EQ(result.outputs[0]->Share().get(), memory);
  EXPECT_EQ(client.memory(0).in_use, before) << "donated memory is counted once";

  // The consumed buffer can be destroyed and nothing else.
  EXPECT_THROW(Download(*buffer), Error);
  EXPECT_THROW(buffer->Share(), Error);
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
    auto another = Upload(*client, std::vector<float>(1000, 2.0f));
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
  EXPECT_EQ(code, pjrt::PJRT_Error_Code_INVALID_ARGUMENT) << message;
}

TEST(ErrorTest, NamesOfCodes) {
  for (uint32_t code = 0; code <= pjrt::PJRT_Error_Code_UNAUTHENTICATED; ++code) {
    const Error error(static_cast<int>(code), "");
    EXPECT_EQ(error.out_of_memory(), ErrorCodeName(code) == "RESOURCE_EXHAUSTED") << code;
    const bool refused =
        ErrorCodeName(code) == "INVALID_ARGUMENT" || ErrorCodeName(code) == "UNIMPLEMENTED";
    EXPECT_EQ(error.refused(), refused) << code;
  }
}

TEST(EventTest, DefaultIsReady) {
  Event event;
  event.Await();
  int calls = 0;
  event.OnReady([&](const Error* error) { calls += error == nullptr; });
  EXPECT_EQ(calls, 1);
  Event moved = std::move(event);
  moved.Await();
}

}  // namespace
}  // namespace torch_xla::runtime
