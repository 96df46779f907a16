// exec/: cutting graphs, running them, donation, the cache of programs.
#include "exec/executor.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "XLAOps.h"
#include "debug/metrics.h"
#include "exec/disk_cache.h"
#include "exec/failures.h"
#include "exec/lower_graph.h"
#include "exec/program.h"
#include "exec/stored_programs.h"
#include "exec/transfer.h"
#include "exec/worker.h"
#include "tensor/device.h"
#include "tensor/graph.h"
#include "tensor/node_factory.h"

namespace torch_xla::exec {
namespace {

constexpr int kDevice = 0;

int64_t Count(const std::string& name) {
  debug::Counter* counter = debug::FindCounter(name);
  return counter ? counter->value() : 0;
}
int64_t Compiles() { return Count("UncachedCompile"); }
int64_t Executions() { return Count("UncachedCompile") + Count("CachedCompile"); }

ir::Value Upload(const at::Tensor& cpu) { return tensor::MakeLeaf(ToDevice(cpu, kDevice)); }
ir::Value Numbers(int64_t n) {
  return Upload(at::arange(n, at::TensorOptions().dtype(at::kFloat)));
}
tensor::StoragePtr MakeStorage(ir::Value value) {
  return c10::make_intrusive<tensor::Storage>(std::move(value), kDevice);
}

/// The vector x as each of `rows` rows: some op, so that there is something to run.
ir::Value Expanded(const ir::Value& x, int64_t rows) {
  return tensor::Expand(x, {rows, x.shape()->dims.back()});
}

at::Tensor Read(const tensor::StoragePtr& storage) {
  ir::Value leaf = Evaluate(storage);
  return ToHost(*tensor::LeafData(leaf));
}

bool IsLeaf(const tensor::StoragePtr& storage) {
  return tensor::LeafData(storage->value()) != nullptr;
}

class ExecutorTest : public testing::Test {
 protected:
  void SetUp() override { SyncDevice(kDevice, /*wait=*/true); }
};

TEST_F(ExecutorTest, SyncGivesPendingStoragesTheirData) {
  tensor::StoragePtr a = MakeStorage(Expanded(Numbers(3), 2));
  tensor::StoragePtr b = MakeStorage(tensor::Cast(a->value(), at::kInt));
  EXPECT_FALSE(IsLeaf(a));
  const int64_t before = Executions();
  SyncDevice(kDevice, /*wait=*/false);
  EXPECT_TRUE(IsLeaf(a));
  EXPECT_TRUE(IsLeaf(b));
  EXPECT_EQ(Executions(), before + 1);
  at::Tensor expected = at::arange(3, at::TensorOptions().dtype(at::kFloat)).expand({2, 3});
  EXPECT_TRUE(at::equal(Read(a), expected));
  EXPECT_TRUE(at::equal(Read(b), expected.to(at::kInt)));
  EXPECT_EQ(Executions(), before + 1);
}

TEST_F(ExecutorTest, SyncOfNothingRunsNothing) {
  tensor::StoragePtr leaf = MakeStorage(Numbers(3));
  const int64_t before = Executions();
  SyncDevice(kDevice, /*wait=*/true);
  EXPECT_EQ(Executions(), before);
  EXPECT_TRUE(IsLeaf(leaf));
}

TEST_F(ExecutorTest, DeadStoragesAreNotComputed) {
  MakeStorage(Expanded(Numbers(3), 2));
  const int64_t before = Executions();
  SyncDevice(kDevice, /*wait=*/true);
  EXPECT_EQ(Executions(), before);
}

TEST_F(ExecutorTest, OneValueInTwoStoragesIsComputedOnce) {
  ir::Value value = Expanded(Numbers(3), 4);
  tensor::StoragePtr a = MakeStorage(value), b = MakeStorage(value);
  value = {};
  SyncDevice(kDevice, /*wait=*/true);
  EXPECT_EQ(tensor::LeafData(a->value()), tensor::LeafData(b->value()));
}

TEST_F(ExecutorTest, EvaluateLeavesTheRestPending) {
  tensor::StoragePtr a = MakeStorage(Expanded(Numbers(3), 2));
  tensor::StoragePtr b = MakeStorage(tensor::Cast(a->value(), at::kInt));
  tensor::StoragePtr other = MakeStorage(Expanded(Numbers(5), 2));
  EXPECT_EQ(Read(b).sum().item<int64_t>(), 6);
  EXPECT_TRUE(IsLeaf(b));
  EXPECT_TRUE(IsLeaf(a));  // Computed on the way.
  EXPECT_FALSE(IsLeaf(other));
}

TEST_F(ExecutorTest, EvaluateOfAValueKeepsWhatIsComputedOnTheWay) {
  tensor::StoragePtr a = MakeStorage(Expanded(Numbers(3), 2));
  tensor::StoragePtr other = MakeStorage(Expanded(Numbers(5), 2));
  ir::Value leaf = Evaluate(tensor::Cast(a->value(), at::kLong), kDevice);
  EXPECT_EQ(ToHost(*tensor::LeafData(leaf)).sum().item<int64_t>(), 6);
  EXPECT_TRUE(IsLeaf(a));
  EXPECT_FALSE(IsLeaf(other));
}

TEST_F(ExecutorTest, SyncStoragesComputesTheseAlone) {
  tensor::StoragePtr a = MakeStorage(Expanded(Numbers(3), 2));
  tensor::StoragePtr b = MakeStorage(Expanded(Numbers(4), 2));
  SyncStorages({a}, /*wait=*/true);
  EXPECT_TRUE(IsLeaf(a));
  EXPECT_FALSE(IsLeaf(b));
}

TEST_F(ExecutorTest, EqualGraphsAreOneProgram) {
  for (int i = 0; i < 3; ++i) {
    tensor::StoragePtr a = MakeStorage(Expanded(Numbers(7), 3));
    const int64_t before = Compiles();
    SyncDevice(kDevice, /*wait=*/true);
    if (i > 0) {
      EXPECT_EQ(Compiles(), before);
    }
    EXPECT_EQ(Read(a).sum().item<float>(), 63);
  }
}

TEST_F(ExecutorTest, NumbersAreParameters) {
  int64_t first = 0;
  for (double number : {2.5, 3.5, -4.0}) {
    tensor::StoragePtr a = MakeStorage(
        tensor::Expand(tensor::MakeScalar(number, at::kFloat, /*wrapped=*/false), {11}));
    SyncDevice(kDevice, /*wait=*/true);
    EXPECT_EQ(Read(a)[10].item<double>(), number);
    if (first == 0) first = Compiles();
    EXPECT_EQ(Compiles(), first) << number;
  }
}

TEST_F(ExecutorTest, FillNeedsNoProgram) {
  tensor::StoragePtr a = MakeStorage(tensor::Fill(2.5, ir::GetShape(at::kFloat, {4})));
  const int64_t before = Executions();
  SyncDevice(kDevice, /*wait=*/true);
  EXPECT_TRUE(IsLeaf(a));
  EXPECT_TRUE(at::equal(Read(a), at::full({4}, 2.5, at::TensorOptions().dtype(at::kFloat))));
  EXPECT_EQ(Executions(), before);
}

// ---------------------------------------------------------------- the graph

TEST_F(ExecutorTest, HashCoversTheWiring) {
  ir::Value x = Numbers(3), y = Numbers(3);
  auto hash = [](ir::Value a, ir::Value b) {
    return tensor::CollectGraph({tensor::Cast(a, at::kInt), tensor::Cast(b, at::kLong)}).hash;
  };
  EXPECT_EQ(hash(x, y), hash(y, x));  // other leaves, same program
  EXPECT_FALSE(hash(x, y) == hash(x, x));
  EXPECT_EQ(hash(x, x), hash(y, y));
}

TEST_F(ExecutorTest, HashCoversShapesAttributesAndOutputs) {
  ir::Value x = Numbers(3);
  auto hash = [](std::vector<ir::Value> roots) {
    return tensor::CollectGraph(std::move(roots)).hash;
  };
  ir::Value a = Expanded(x, 2);
  EXPECT_FALSE(hash({a}) == hash({Expanded(x, 3)}));
  EXPECT_FALSE(hash({a}) == hash({a, x}));
  EXPECT_FALSE(hash({a, tensor::Cast(a, at::kInt)}) == hash({tensor::Cast(a, at::kInt), a}));
}

TEST_F(ExecutorTest, ParametersAreTheLeavesOnceEach) {
  ir::Value x = Numbers(3), y = Numbers(3);
  ir::Value two = tensor::MakeScalar(2.5), three = tensor::MakeScalar(int64_t{3});
  tensor::Graph graph =
      tensor::CollectGraph({tensor::Cast(x, at::kInt), tensor::Cast(y, at::kInt), Expanded(x, 2),
                            tensor::Expand(two, {2}), tensor::Expand(three, {2})});
  ASSERT_EQ(graph.data.size(), 2u);
  EXPECT_EQ(graph.data[0].get(), tensor::LeafData(x));
  EXPECT_EQ(graph.data[1].get(), tensor::LeafData(y));
  EXPECT_EQ(graph.floats, std::vector<double>{2.5});
  EXPECT_EQ(graph.integers, std::vector<int64_t>{3});
  EXPECT_EQ(graph.num_parameters(), 4u);
}

TEST_F(ExecutorTest, DeepGraphsNeedNoStack) {
  ir::Value x = Numbers(2);
  const int kDepth = 200000;
  for (int i = 0; i < kDepth; ++i) x = tensor::Cast(x, i % 2 ? at::kFloat : at::kInt);
  EXPECT_EQ(tensor::CollectGraph({x}).order.size(), kDepth + 1u);
  x = {};  // freed here
}

TEST_F(ExecutorTest, StableHloNamesTheDonation) {
  ir::Value x = Numbers(3);
  tensor::Graph graph = tensor::CollectGraph({tensor::Cast(tensor::Cast(x, at::kInt), at::kFloat)});
  const int alias = 0;
  EXPECT_NE(LowerGraph(graph, {&alias, 1}, tensor::Platform()).find("tf.aliasing_output = 0"),
            std::string::npos);
  EXPECT_EQ(LowerGraph(graph, {}, tensor::Platform()).find("tf.aliasing_output"),
            std::string::npos);
}

// ---------------------------------------------------------------- donation

int64_t MemoryInUse() {
  WaitDevice(kDevice);
  return tensor::GetClient().memory(kDevice).in_use;
}

/// A new value of x's type that depends on it.
ir::Value Update(const ir::Value& x) { return tensor::Cast(tensor::Cast(x, at::kInt), at::kFloat); }

TEST_F(ExecutorTest, OverwrittenDataIsDonated) {
  const int64_t kElements = 1 << 16, kBytes = 4 * kElements;
  const int64_t before = MemoryInUse();
  tensor::StoragePtr state = MakeStorage(Numbers(kElements));
  int64_t peak = 0;
  for (int i = 0; i < 5; ++i) {
    state->Assign(Update(state->value()));
    SyncDevice(kDevice, /*wait=*/true);
    if (i == 0) peak = tensor::GetClient().memory(kDevice).peak;
    EXPECT_LT(MemoryInUse() - before, kBytes + kBytes / 2);
  }
  EXPECT_LT(tensor::GetClient().memory(kDevice).peak, peak + kBytes / 2);
  EXPECT_EQ(Read(state)[77].item<float>(), 77);
}

TEST_F(ExecutorTest, DataOfAnotherStorageIsNotDonated) {
  tensor::StoragePtr state = MakeStorage(Numbers(8)), clone = MakeStorage(state->value());
  state->Assign(tensor::Expand(tensor::MakeScalar(2.5, at::kFloat, false), {8}));
  state->Assign(Update(clone->value()));
  SyncDevice(kDevice, /*wait=*/true);
  EXPECT_EQ(Read(clone)[5].item<float>(), 5);
  EXPECT_EQ(Read(state)[5].item<float>(), 5);
}

TEST_F(ExecutorTest, DataThatAHeldValueNeedsIsNotDonated) {
  // As an op that another thread is tracing holds its operands.
  tensor::StoragePtr state = MakeStorage(Numbers(8));
  ir::Value held = tensor::Cast(state->value(), at::kInt);
  state->Assign(Update(state->value()));
  SyncDevice(kDevice, /*wait=*/true);
  EXPECT_EQ(ToHost(*tensor::LeafData(Evaluate(held, kDevice)))[5].item<int>(), 5);
}

TEST_F(ExecutorTest, DataThatIsBeingReadIsNotDonated) {
  tensor::StoragePtr state = MakeStorage(Numbers(8));
  ir::Value leaf = Evaluate(state);
  state->Assign(Update(state->value()));
  SyncDevice(kDevice, /*wait=*/true);
  EXPECT_EQ(ToHost(*tensor::LeafData(leaf))[5].item<float>(), 5);
}

TEST_F(ExecutorTest, EvaluateDonatesNothing) {
  tensor::StoragePtr state = MakeStorage(Numbers(8));
  tensor::StoragePtr view = MakeStorage(Expanded(state->value(), 2));
  state->Assign(Update(state->value()));
  EXPECT_EQ(Read(state)[5].item<float>(), 5);
  EXPECT_EQ(Read(view)[1][5].item<float>(), 5);
}

// ---------------------------------------------------------------- storages

TEST_F(ExecutorTest, ReplaceOnlyWhatIsExpected) {
  ir::Value first = Numbers(3), second = Numbers(3), third = Numbers(3);
  tensor::StoragePtr storage = MakeStorage(first);
  storage->Replace(second, third);
  EXPECT_EQ(storage->value(), first);
  storage->Replace(first, second);
  EXPECT_EQ(storage->value(), second);
}

TEST_F(ExecutorTest, PendingListsStoragesInOrder) {
  tensor::StoragePtr a = MakeStorage(Numbers(3));
  tensor::StoragePtr b = MakeStorage(Expanded(Numbers(3), 2));
  a->Assign(Expanded(Numbers(3), 2));
  EXPECT_EQ(tensor::Storage::Pending(kDevice), (std::vector<tensor::StoragePtr>{b, a}));
  b->Assign(Numbers(3));
  EXPECT_EQ(tensor::Storage::Pending(kDevice), std::vector<tensor::StoragePtr>{a});
}

TEST_F(ExecutorTest, ThreadsUpdateTheirStoragesWhileOthersSync) {
  auto work = [](float* result) {
    tensor::StoragePtr state = MakeStorage(Numbers(4));
    for (int i = 0; i < 300; ++i) {
      state->Assign(Update(state->value()));
      if (i % 3 == 0) SyncDevice(kDevice, /*wait=*/false);
    }
    *result = Read(state)[3].item<float>();
  };
  float first = 0, second = 0;
  std::thread thread(work, &first);
  work(&second);
  thread.join();
  EXPECT_EQ(first, 3);
  EXPECT_EQ(second, 3);
}

// ---------------------------------------------------------------- failures

TEST_F(ExecutorTest, FailureIsReportedOnce) {
  // 4 EB: no allocator has that.
  tensor::StoragePtr huge = MakeStorage(tensor::Expand(Numbers(1), {int64_t{1} << 60}));
  tensor::StoragePtr sibling = MakeStorage(Expanded(Numbers(3), 2));
  SyncDevice(kDevice, /*wait=*/false);
  EXPECT_ANY_THROW(WaitDevice(kDevice));
  EXPECT_NO_THROW(WaitDevice(kDevice));
  EXPECT_ANY_THROW(Read(sibling));
  EXPECT_NO_THROW(SyncDevice(kDevice, /*wait=*/true));
  tensor::StoragePtr next = MakeStorage(Expanded(Numbers(3), 2));
  EXPECT_EQ(Read(next).sum().item<float>(), 6);
}

/// A program that fails: no allocator has that.
tensor::StoragePtr SyncFailing(const ir::Value& x) {
  tensor::StoragePtr storage =
      MakeStorage(tensor::Expand(x, {int64_t{1} << 58, x.shape()->dims.back()}));
  SyncStorages({storage}, /*wait=*/false);
  return storage;
}

TEST_F(ExecutorTest, FailureThatIsReadHidesNoOther) {
  tensor::StoragePtr first = SyncFailing(Numbers(2)), second = SyncFailing(Numbers(4));
  EXPECT_ANY_THROW(tensor::LeafData(second->value())->Wait());
  EXPECT_TRUE(TakeFailure(*tensor::LeafData(second->value())));
  EXPECT_FALSE(TakeFailure(*tensor::LeafData(second->value())));  // It was told.
  EXPECT_ANY_THROW(WaitDevice(kDevice));                          // The first one's.
  EXPECT_NO_THROW(WaitDevice(kDevice));
  EXPECT_ANY_THROW(tensor::LeafData(first->value())->Wait());
}

TEST_F(ExecutorTest, FailureIsForgottenWithWhatItComesOf) {
  tensor::StoragePtr first = SyncFailing(Numbers(2)), other = SyncFailing(Numbers(4));
  tensor::StoragePtr derived = MakeStorage(tensor::Cast(first->value(), at::kInt));
  tensor::StoragePtr also = MakeStorage(tensor::Cast(first->value(), at::kLong));
  for (const tensor::StoragePtr& storage : {derived, also}) SyncStorages({storage}, /*wait=*/false);
  EXPECT_ANY_THROW(tensor::LeafData(derived->value())->Wait());
  EXPECT_TRUE(TakeFailure(*tensor::LeafData(derived->value())));
  EXPECT_ANY_THROW(WaitDevice(kDevice));  // Of the other one.
  EXPECT_NO_THROW(WaitDevice(kDevice));
  EXPECT_ANY_THROW(tensor::LeafData(also->value())->Wait());
  EXPECT_FALSE(TakeFailure(*tensor::LeafData(Numbers(3))));
}

TEST(FailuresTest, TheFirstIsToldThoughItIsNotedLast) {
  auto error = [](const char* text) { return std::make_exception_ptr(std::runtime_error(text)); };
  auto text = [](const std::exception_ptr& told) -> std::string {
    try {
      std::rethrow_exception(told);
    } catch (const std::runtime_error& e) {
      return e.what();
    }
  };
  Failures failures;
  failures.Note(7, {5}, error("derived"));
  failures.Note(5, {}, error("first"));
  EXPECT_EQ(text(failures.TakeAll()), "first");
  EXPECT_TRUE(failures.empty());
  failures.Note(7, {5}, error("derived"));
  failures.Note(6, {}, error("other"));
  failures.Note(5, {}, error("first"));
  EXPECT_EQ(text(failures.Take(7)), "first");
  EXPECT_EQ(text(failures.TakeAll()), "other");
  EXPECT_FALSE(failures.TakeAll());
}

/// The message of what `call` throws.
template <typename Call>
std::string ErrorOf(const Call& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

TEST_F(ExecutorTest, AProgramOfOtherSizesDoesNotRun) {
  auto run = [](int64_t rows) {
    tensor::StoragePtr a = MakeStorage(Expanded(Numbers(5), rows));
    SyncDevice(kDevice, /*wait=*/true);
    return Read(a).sum().item<float>();
  };
  ClearPrograms();
  EXPECT_EQ(run(3), 30);
  const ProgramPtr program = Programs().at(0);
  const Signature right = program->signature;
  const auto forge = [&](Signature forged, const std::string& text) {
    program->signature = std::move(forged);
    const std::string told = ErrorOf([&] { run(3); });
    EXPECT_NE(told.find(text), told.npos) << told;
    EXPECT_NE(told.find(right.ToString()), told.npos) << told;
    program->signature = right;
    EXPECT_EQ(run(3), 30);
  };
  Signature other = right;
  other.results[0] = ir::GetShape(at::kFloat, {4, 5});
  forge(other, "-> (f32[4,5])");
  other = right;
  other.parameters[0] = ir::GetShape(at::kFloat, {4});
  forge(other, "(f32[4], ");
  other = right;
  other.parameters.push_back(other.parameters[0]);
  forge(other, "(f32[5], f32[5], ");
  other = right;
  other.floats = 3;
  forge(other, "3 floats");
  // What the executable gives is looked at, too.
  const std::vector<size_t> bytes = program->result_bytes;
  EXPECT_EQ(bytes, (std::vector<size_t>{60}));
  program->result_bytes = {64};
  EXPECT_NE(ErrorOf([&] { run(3); }).find("gave 60 bytes"), std::string::npos);
  program->result_bytes = bytes;
  EXPECT_EQ(run(3), 30);
}

TEST_F(ExecutorTest, ABufferIsNotReadAsAnotherSize) {
  tensor::StoragePtr a = MakeStorage(Expanded(Numbers(5), 3));
  SyncDevice(kDevice, /*wait=*/true);
  const ir::Value value = a->value();
  const tensor::Buffers& buffers = tensor::LeafData(value)->Wait();
  EXPECT_EQ(tensor::Download(buffers, ir::GetShape(at::kFloat, {5, 3})).numel(), 15);
  EXPECT_NE(ErrorOf([&] {
              tensor::Download(buffers, ir::GetShape(at::kFloat, {2, 3}));
            }).find("60 bytes"),
            std::string::npos);
}

TEST_F(ExecutorTest, ARecordOfAnotherGraphIsNone) {
  std::string pattern = (std::filesystem::temp_directory_path() / "executor_test_XXXXXX").string();
  ASSERT_NE(mkdtemp(pattern.data()), nullptr);
  InitializeDiskCache(pattern, /*read_only=*/false);
  auto run = [](int64_t rows) {
    tensor::StoragePtr a = MakeStorage(tensor::Cast(Expanded(Numbers(7), rows), at::kInt));
    SyncDevice(kDevice, /*wait=*/true);
    FinishStoring();
    return Read(a).sizes().vec();
  };
  ClearPrograms();
  run(2);
  run(6);
  std::vector<DiskCache::Entry> records = DiskCache::List(pattern, /*check=*/true);
  std::erase_if(records, [](const auto& entry) { return entry.content.empty(); });
  ASSERT_EQ(records.size(), 2u);
  GetDiskCache()->Write(records[0].key, records[1].content);
  GetDiskCache()->Write(records[1].key, records[0].content);
  ClearPrograms();
  const int64_t hits = Count("PersistentCacheHit");
  EXPECT_EQ(run(2), (std::vector<int64_t>{2, 7}));
  EXPECT_EQ(run(6), (std::vector<int64_t>{6, 7}));
  EXPECT_EQ(Count("PersistentCacheHit"), hits + 2);  // by their texts
  InitializeDiskCache({}, /*read_only=*/false);
  std::filesystem::remove_all(pattern);
}

TEST_F(ExecutorTest, APlaceThatIsGivenUpHoldsNobodyUp) {
  Worker& worker = GetWorker(kDevice);
  Worker::Place held = worker.Reserve();
  tensor::StoragePtr a = MakeStorage(Expanded(Numbers(3), 2));
  SyncDevice(kDevice, /*wait=*/false);
  {
    const Worker::Place dropped = worker.Reserve();
  }
  tensor::StoragePtr b = MakeStorage(Expanded(Numbers(3), 4));
  SyncDevice(kDevice, /*wait=*/false);
  EXPECT_TRUE(tensor::LeafData(a->value())->pending());
  held = {};
  WaitDevice(kDevice);
  EXPECT_EQ(Read(a).numel() + Read(b).numel(), 18);
}

TEST_F(ExecutorTest, StableHloThatDoesNotCompileIsAnError) {
  Program broken;
  broken.devices = tensor::DevicesOf(kDevice);
  broken.stablehlo = "module { this is no program }";
  CompileProgram(broken);
  EXPECT_FALSE(broken.executable);
  EXPECT_THROW(std::rethrow_exception(broken.failure), runtime::Error);
  Program fine;
  fine.devices = tensor::DevicesOf(kDevice);
  fine.stablehlo =
      "func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> { return %a : tensor<2xf32> }";
  CompileProgram(fine);
  EXPECT_TRUE(fine.executable);
  EXPECT_FALSE(fine.failure);
}

TEST(ProgramCacheTest, FindsWhatWasInserted) {
  ProgramCache cache;
  EXPECT_EQ(cache.Find({1, 2}), nullptr);
  auto program = std::make_shared<Program>();
  EXPECT_EQ(cache.Insert({1, 2}, program), program);
  EXPECT_EQ(cache.Find({1, 2}), program);
  EXPECT_EQ(cache.Find({2, 1}), nullptr);
  // Another thread came second: both go on with the first one's.
  EXPECT_EQ(cache.Insert({1, 2}, std::make_shared<Program>()), program);
  EXPECT_EQ(cache.Find({1, 2}), program);
}

#if defined(__linux__)
/// Over half of the mappings that the system allows a process, for as long as it lives.
class ManyMappings {
 public:
  ManyMappings() {
    std::ifstream("/proc/sys/vm/max_map_count") >> limit_;
    // Neighbours of the same protection would be one mapping.
    for (int64_t i = 0; enough() && i < limit_ / 2; ++i) {
      const int protection = i % 2 ? PROT_READ : PROT_NONE;
      pages_.push_back(mmap(nullptr, 1, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    }
  }
  ~ManyMappings() {
    for (void* page : pages_) munmap(page, 1);
  }
  /// Whether the limit is one that a test can reach.
  bool enough() const { return limit_ > 0 && limit_ <= 1 << 20; }

 private:
  int64_t limit_ = 0;
  std::vector<void*> pages_;
};

TEST(ProgramCacheTest, DropsTheOldestBeforeTheProcessRunsOutOfMappings) {
  ProgramCache cache;
  for (uint64_t i = 1; i <= 8; ++i) cache.Insert({i, 0}, std::make_shared<Program>());
  EXPECT_NE(cache.Find({1, 0}), nullptr);  // Now the second is the oldest.
  const int64_t before = Count("EvictedCompile");
  const ManyMappings many;
  if (!many.enough()) GTEST_SKIP() << "no limit that a test can reach";
  // It does not look each time.
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (Count("EvictedCompile") == before && std::chrono::steady_clock::now() < give_up) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    cache.Insert({8, 0}, std::make_shared<Program>());
  }
  EXPECT_EQ(Count("EvictedCompile"), before + 2);
  EXPECT_EQ(cache.Find({2, 0}), nullptr);
  EXPECT_EQ(cache.Find({3, 0}), nullptr);
  for (const uint64_t kept : {1, 4, 5, 6, 7, 8}) EXPECT_NE(cache.Find({kept, 0}), nullptr);
}
#endif

}  // namespace
}  // namespace torch_xla::exec
