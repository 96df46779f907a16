// The device from many threads, on several devices: who waits for whom, and whose values come out.
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "XLAOps.h"
#include "cpu/ffi_handler.h"
#include "cpu/ffi_tensor.h"
#include "exec/executor.h"
#include "exec/transfer.h"
#include "lowering/context.h"
#include "tensor/device.h"
#include "tensor/node_factory.h"

namespace torch_xla::exec {
namespace {

using namespace std::chrono_literals;

constexpr int kDevices = 4;
[[maybe_unused]] const bool enough_devices =
    setenv("CPU_NUM_DEVICES", std::to_string(kDevices).c_str(), 1) == 0;

/// Something that happens, as tests wait for it: not for ever.
class Signal {
 public:
  void Give() { given_ = true; }
  bool Came(std::chrono::seconds timeout = 60s) const {
    const auto end = std::chrono::steady_clock::now() + timeout;
    while (!given_) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(1ms);
    }
    return true;
  }

 private:
  std::atomic<bool> given_{false};
};

tensor::StoragePtr MakeStorage(ir::Value value, int device) {
  return c10::make_intrusive<tensor::Storage>(std::move(value), device);
}
ir::Value Upload(float number, int64_t size, int device) {
  return tensor::MakeLeaf(
      ToDevice(at::full({size}, number, at::TensorOptions().dtype(at::kFloat)), device));
}
float Read(const tensor::StoragePtr& storage) {
  ir::Value leaf = Evaluate(storage);
  return ToHost(*tensor::LeafData(leaf))[0].item<float>();
}
/// The same values; a program of its own for each size.
ir::Value Copied(const ir::Value& x) {
  return tensor::Cast(tensor::Cast(x, at::kDouble), at::kFloat);
}

Signal* lowering_began = nullptr;
Signal* lowering_may_end = nullptr;

constexpr ir::ArgSpec kArgs[] = {{"self", ir::ArgKind::kTensor}};

/// The identity, whose lowering lasts until it may end.
const ir::OpSpec slow_to_lower = {"test::slow_to_lower", "", kArgs,
                                  [](lowering::LoweringContext& cx, const ir::Node& node) {
                                    lowering_began->Give();
                                    EXPECT_TRUE(lowering_may_end->Came());
                                    cx.SetOutputs(node, cx.Lowered(node.operands()[0]));
                                  },
                                  &debug::GetCounter("test::slow_to_lower")};

/// The identity, which cannot be lowered, and says so late.
const ir::OpSpec fails_to_lower = {"test::fails_to_lower", "", kArgs,
                                   [](lowering::LoweringContext&, const ir::Node&) {
                                     lowering_began->Give();
                                     EXPECT_TRUE(lowering_may_end->Came());
                                     TORCH_CHECK(false, "as the test has it");
                                   },
                                   &debug::GetCounter("test::fails_to_lower")};

ir::Value Node(const ir::OpSpec& op, const ir::Value& x) {
  return tensor::MakeNode(&op, {x}, {}, x.shape());
}

class SlowLoweringTest : public testing::Test {
 protected:
  void SetUp() override {
    lowering_began = &began_;
    lowering_may_end = &may_end_;
  }
  Signal began_, may_end_;
};

TEST_F(SlowLoweringTest, StopsNoOtherThread) {
  tensor::StoragePtr slow = MakeStorage(Node(slow_to_lower, Upload(1, 5, 0)), 0);
  std::thread lowering([&] { SyncStorages({slow}, /*wait=*/false); });
  ASSERT_TRUE(began_.Came());
  Signal read;
  std::thread other([&] {
    EXPECT_EQ(Read(MakeStorage(Copied(Upload(2, 5, 1)), 1)), 2);
    read.Give();
  });
  EXPECT_TRUE(read.Came(30s)) << "the lowering holds a lock that others need";
  may_end_.Give();
  lowering.join();
  other.join();
  EXPECT_EQ(Read(slow), 1);
}

TEST_F(SlowLoweringTest, WhatNeedsItsResultsRunsAfterIt) {
  tensor::StoragePtr slow = MakeStorage(Node(slow_to_lower, Upload(3, 6, 0)), 0);
  std::thread lowering([&] { SyncStorages({slow}, /*wait=*/false); });
  ASSERT_TRUE(began_.Came());
  // The promise stands in the storage while its program is being made.
  EXPECT_TRUE(tensor::LeafData(slow->value()));
  tensor::StoragePtr next = MakeStorage(Copied(slow->value()), 0);
  SyncStorages({next}, /*wait=*/false);
  EXPECT_TRUE(tensor::LeafData(next->value())->pending());
  may_end_.Give();
  EXPECT_EQ(Read(next), 3);
  lowering.join();
}

TEST_F(SlowLoweringTest, AFailedOneFailsWhatNeedsItsResults) {
  tensor::StoragePtr failing = MakeStorage(Node(fails_to_lower, Upload(3, 7, 0)), 0);
  std::thread lowering([&] { EXPECT_ANY_THROW(SyncStorages({failing}, /*wait=*/false)); });
  ASSERT_TRUE(began_.Came());
  tensor::StoragePtr next = MakeStorage(Copied(failing->value()), 0);
  SyncStorages({next}, /*wait=*/false);
  may_end_.Give();
  lowering.join();
  EXPECT_ANY_THROW(Read(next));
  EXPECT_ANY_THROW(WaitDevice(0));  // Of what needed it.
  EXPECT_NO_THROW(WaitDevice(0));
  EXPECT_EQ(Read(MakeStorage(Copied(Upload(4, 7, 0)), 0)), 4);
}

TEST_F(SlowLoweringTest, OfOneGraphByManyThreadsIsOne) {
  debug::Counter& lowered = debug::GetCounter("UncachedCompile");
  const int64_t before = lowered.value();
  std::vector<tensor::StoragePtr> storages;
  for (int i = 0; i < 8; ++i) {
    ir::Value x = Upload(static_cast<float>(i), 11, 2);
    for (int k = 0; k < 100; ++k) x = Copied(x);
    storages.push_back(MakeStorage(x, 2));
  }
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] { EXPECT_EQ(Read(storages[i]), static_cast<float>(i)); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(lowered.value(), before + 1);
}

// ---------------------------------------------------------------- back-pressure

Signal* run_may_end = nullptr;

/// The identity, which runs until it may end.
runtime::pjrt::XLA_FFI_Error* SlowHandler(runtime::pjrt::XLA_FFI_CallFrame* frame) {
  if (!cpu::EntersExecution(frame)) return nullptr;
  EXPECT_TRUE(run_may_end->Came());
  cpu::FfiTensor(frame->rets.rets[0]).copy_(cpu::FfiTensor(frame->args.args[0]));
  return nullptr;
}

const ir::OpSpec slow_to_run = {
    "test::slow_to_run", "", kArgs,
    [](lowering::LoweringContext& cx, const ir::Node& node) {
      const stablehlo::Value x = cx.Lowered(node.operands()[0]);
      cx.SetOutputs(node, stablehlo::CustomCall(cx.builder(), "test_slow", {x}, {x.type()}));
    },
    &debug::GetCounter("test::slow_to_run")};

TEST(BackPressureTest, OfOneDeviceStopsNoOtherThread) {
  static const bool registered = [] {
    tensor::GetClient().RegisterCustomCall("test_slow", reinterpret_cast<void*>(&SlowHandler));
    return true;
  }();
  ASSERT_TRUE(registered);
  Signal may_end, filled;
  run_may_end = &may_end;
  tensor::StoragePtr state = MakeStorage(Upload(5, 4, 3), 3);
  std::thread ahead([&] {
    for (int i = 0; i < 20; ++i) {
      state->Assign(Node(slow_to_run, state->value()));
      SyncStorages({state}, /*wait=*/false);
    }
    filled.Give();
  });
  EXPECT_FALSE(filled.Came(1s)) << "the queue has no bound";
  Signal read;
  std::thread other([&] {
    EXPECT_EQ(Read(MakeStorage(Copied(Upload(2, 4, 1)), 1)), 2);
    read.Give();
  });
  EXPECT_TRUE(read.Came(30s)) << "a full queue holds a lock that others need";
  may_end.Give();
  ahead.join();
  other.join();
  EXPECT_EQ(Read(state), 5);
}

// ---------------------------------------------------------------- many

TEST(DeviceDataTest, IsMadeOnceByWhomeverNeedsItFirst) {
  for (int round = 0; round < 20; ++round) {
    auto data = c10::make_intrusive<tensor::DeviceData>(ir::GetShape(at::kFloat, {64}), 0, 2.5);
    std::vector<const runtime::Buffer*> seen(8);
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; ++i) {
      threads.emplace_back([&, i] {
        // What moves it elsewhere may come at the same time.
        if (i % 2) data->Resharded(data->sharding());
        seen[i] = data->Get()[0].get();
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const runtime::Buffer* buffer : seen) EXPECT_EQ(buffer, seen[0]);
  }
}

TEST(ThreadsTest, EightOnFourDevices) {
  constexpr int kThreads = 8, kSteps = 60;
  std::vector<std::thread> threads;
  std::vector<float> results(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const int device = t % kDevices;
      tensor::StoragePtr state = MakeStorage(Upload(static_cast<float>(t), 8, device), device);
      tensor::StoragePtr other = MakeStorage(tensor::Expand(state->value(), {2, 8}), device);
      for (int i = 0; i < kSteps; ++i) {
        state->Assign(Copied(state->value()));
        if (i % 2 == 0) other->Assign(tensor::Expand(state->value(), {1 + i % 3, 8}));  // resized
        if (i % 3 == 0) SyncDevice(device, /*wait=*/false);
        if (i % 5 == 0) {
          EXPECT_EQ(Read(state), static_cast<float>(t));
        }
        if (i % 7 == 0) {
          // A fill that is uploaded, and a number.
          tensor::StoragePtr fill =
              MakeStorage(tensor::Fill(t + 0.5, ir::GetShape(at::kFloat, {8})), device);
          EXPECT_EQ(Read(fill), static_cast<float>(t) + 0.5f);
          tensor::StoragePtr number = MakeStorage(
              tensor::Expand(tensor::MakeScalar(t + 0.25, at::kFloat, /*wrapped=*/false), {4}),
              device);
          EXPECT_EQ(Read(number), static_cast<float>(t) + 0.25f);
        }
      }
      results[t] = Read(state);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int t = 0; t < kThreads; ++t) EXPECT_EQ(results[t], static_cast<float>(t));
  for (int device = 0; device < kDevices; ++device) WaitDevice(device);
}

}  // namespace
}  // namespace torch_xla::exec
