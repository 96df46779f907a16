#include "tensor/view.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "XLAOps.h"
#include "exec/executor.h"
#include "exec/transfer.h"
#include "tensor/node_factory.h"

namespace torch_xla::tensor {
namespace {

at::Tensor Ramp(at::IntArrayRef sizes) {
  return at::arange(c10::multiply_integers(sizes), at::kFloat).reshape(sizes);
}

StoragePtr MakeStorage(const at::Tensor& cpu) {
  return c10::make_intrusive<Storage>(MakeLeaf(exec::ToDevice(cpu, 0)), 0);
}

at::Tensor Content(const ir::Value& value) {
  return exec::ToHost(*LeafData(exec::Evaluate(value, 0)));
}

void ExpectEqual(const at::Tensor& found, const at::Tensor& expected) {
  ASSERT_EQ(found.sizes(), expected.sizes());
  EXPECT_TRUE(at::equal(found, expected)) << found << "\nexpected\n" << expected;
}

/// The view that is to a storage what `expected`, a CPU view, is to its contiguous base.
ViewPtr ViewLike(const at::Tensor& expected) {
  return RestrideView(nullptr, {expected.sizes().begin(), expected.sizes().end()},
                      {expected.strides().begin(), expected.strides().end()},
                      expected.storage_offset());
}

struct Case {
  const char* name;
  at::Tensor (*view)(const at::Tensor&);
};

const Case kCases[] = {
    {"slice", [](const at::Tensor& x) { return x.slice(1, 1, 3); }},
    {"step", [](const at::Tensor& x) { return x.slice(2, 0, 6, 2).slice(0, 1, 3); }},
    {"select", [](const at::Tensor& x) { return x.select(1, 2); }},
    {"transpose", [](const at::Tensor& x) { return x.transpose(0, 2); }},
    {"diagonal", [](const at::Tensor& x) { return x.diagonal(1, 1, 2); }},
    {"part of a transpose",
     [](const at::Tensor& x) { return x.permute({2, 0, 1}).slice(0, 2, 5); }},
    {"unsqueeze", [](const at::Tensor& x) { return x.unsqueeze(1); }},
    {"apart", [](const at::Tensor& x) { return x.unfold(2, 2, 3); }},
    {"empty", [](const at::Tensor& x) { return x.slice(1, 2, 2); }},
    {"one", [](const at::Tensor& x) { return x.select(0, 1).select(0, 2).select(0, 3); }},
    {"all", [](const at::Tensor& x) { return x; }},
};

TEST(ViewTest, ContiguousStridesOfEmptyAndRankZero) {
  EXPECT_TRUE(ContiguousStrides({}).empty());
  EXPECT_EQ(ContiguousStrides({2, 3, 4}), (Ints{12, 4, 1}));
  EXPECT_EQ(ContiguousStrides({2, 0, 4}), (Ints{4, 4, 1}));
  EXPECT_EQ(ContiguousStrides({1, 1}), (Ints{1, 1}));
}

TEST(ViewTest, ReadsWhatTheCpuSees) {
  at::Tensor cpu = Ramp({3, 4, 6});
  StoragePtr storage = MakeStorage(cpu);
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.name);
    at::Tensor expected = c.view(cpu);
    ir::Value value = ReadView(*storage, ViewLike(expected).get());
    EXPECT_EQ(value.shape(), ir::GetShape(at::kFloat, expected.sizes()));
    ExpectEqual(Content(value), expected);
  }
}

TEST(ViewTest, WritesWhereTheCpuWrites) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.name);
    at::Tensor cpu = Ramp({3, 4, 6});
    StoragePtr storage = MakeStorage(cpu);
    at::Tensor target = c.view(cpu);
    at::Tensor content = -Ramp(target.sizes()) - 1;
    WriteView(*storage, ViewLike(target).get(), MakeLeaf(exec::ToDevice(content, 0)));
    target.copy_(content);
    ExpectEqual(Content(storage->value()), cpu);
  }
}

TEST(ViewTest, OverlappingAndExpandedReads) {
  at::Tensor cpu = Ramp({10});
  StoragePtr storage = MakeStorage(cpu);
  for (const at::Tensor& expected :
       {cpu.unfold(0, 4, 1), cpu.unfold(0, 3, 2), cpu.slice(0, 2, 3).expand({4}),
        cpu.as_strided({3, 3}, {2, 1}, 1), cpu.as_strided({2, 3, 2}, {3, 0, 2}, 2)}) {
    ExpectEqual(Content(ReadView(*storage, ViewLike(expected).get())), expected);
  }
}

TEST(ViewTest, NoViewIsTheWholeStorage) {
  StoragePtr storage = MakeStorage(Ramp({2, 3}));
  EXPECT_EQ(ReadView(*storage, nullptr), storage->value());
  ir::Value content = MakeLeaf(exec::ToDevice(at::ones({2, 3}), 0));
  WriteView(*storage, nullptr, content);
  EXPECT_EQ(storage->value(), content);
}

TEST(ViewTest, RestridingReplacesTheLastStep) {
  ViewPtr first = RestrideView(nullptr, {2}, {3}, 1);
  ViewPtr second = RestrideView(first.get(), {1}, {5}, 2);
  ASSERT_EQ(second->steps.size(), 1u);
  EXPECT_EQ(second->last().sizes, Ints{1});
  EXPECT_EQ(second->last().strides, Ints{5});
  EXPECT_EQ(second->last().offset, 2);
  EXPECT_EQ(first->last().offset, 1);  // a view never changes
}

TEST(ViewTest, RestridingKeepsTheStepsBelow) {
  ViewPtr transposed = RestrideView(nullptr, {3, 2}, {1, 3}, 0);
  ViewPtr flat = AppendStep(transposed.get(), {{6}, {1}, 0, std::nullopt});
  ViewPtr part = RestrideView(flat.get(), {2}, {2}, 1);
  ASSERT_EQ(part->steps.size(), 2u);
  EXPECT_EQ(part->steps[0].sizes, (Ints{3, 2}));
  EXPECT_EQ(part->last().offset, 1);
}

TEST(ViewTest, RestridingABitcastAddsAStep) {
  ViewPtr bits = AppendStep(nullptr, {{2, 3}, {}, 0, at::kInt});
  ViewPtr row = RestrideView(bits.get(), {3}, {1}, 3);
  ASSERT_EQ(row->steps.size(), 2u);
  EXPECT_TRUE(row->steps[0].bitcast.has_value());
  EXPECT_FALSE(row->last().bitcast.has_value());
}

TEST(ViewTest, WritesThroughAViewOfATranspose) {
  at::Tensor cpu = Ramp({2, 3});
  StoragePtr storage = MakeStorage(cpu);
  ViewPtr transposed = RestrideView(nullptr, {3, 2}, {1, 3}, 0);
  ViewPtr flat = AppendStep(transposed.get(), {{6}, {1}, 0, std::nullopt});
  ViewPtr part = RestrideView(flat.get(), {3}, {1}, 2);  // [1, 4, 2] of [0, 3, 1, 4, 2, 5]
  ExpectEqual(Content(ReadView(*storage, part.get())), at::tensor({1.f, 4.f, 2.f}));
  WriteView(*storage, part.get(), MakeLeaf(exec::ToDevice(at::tensor({-1.f, -4.f, -2.f}), 0)));
  ExpectEqual(Content(storage->value()),
              at::tensor({0.f, -1.f, -2.f, 3.f, -4.f, 5.f}).reshape({2, 3}));
}

TEST(ViewTest, WritesThroughABitcast) {
  StoragePtr storage = MakeStorage(at::tensor({1.f, 2.f}));
  ViewPtr bits = AppendStep(nullptr, {{2}, {}, 0, at::kInt});
  ViewPtr second = RestrideView(bits.get(), {1}, {1}, 1);
  EXPECT_EQ(Content(ReadView(*storage, bits.get())).data_ptr<int>()[0], 0x3F800000);
  WriteView(*storage, second.get(),
            MakeLeaf(exec::ToDevice(at::tensor({0x40400000}, at::kInt), 0)));
  ExpectEqual(Content(storage->value()), at::tensor({1.f, 3.f}));
}

TEST(ViewTest, SiblingsSeeEachOthersWrites) {
  StoragePtr storage = MakeStorage(at::zeros({4}));
  ViewPtr low = RestrideView(nullptr, {3}, {1}, 0), high = RestrideView(nullptr, {3}, {1}, 1);
  WriteView(*storage, low.get(), MakeLeaf(exec::ToDevice(at::tensor({1.f, 2.f, 3.f}), 0)));
  ExpectEqual(Content(ReadView(*storage, high.get())), at::tensor({2.f, 3.f, 0.f}));
  WriteView(*storage, high.get(), ReadView(*storage, low.get()));
  ExpectEqual(Content(ReadView(*storage, low.get())), at::tensor({1.f, 1.f, 2.f}));
}

// ---------------------------------------------------------------- storages

TEST(StorageTest, AValueThatWasReadIsNotChangedByWrites) {
  StoragePtr storage = MakeStorage(at::zeros({2}));
  ir::Value before = storage->value();
  WriteView(*storage, RestrideView(nullptr, {1}, {1}, 0).get(),
            MakeLeaf(exec::ToDevice(at::ones({1}), 0)));
  ExpectEqual(Content(before), at::zeros({2}));
  ExpectEqual(Content(storage->value()), at::tensor({1.f, 0.f}));
}

TEST(StorageTest, PendingHoldsLiveGraphValuesInOrder) {
  exec::SyncDevice(0, /*wait=*/true);
  StoragePtr data = MakeStorage(at::zeros({2}));
  auto negated = [&] {
    return c10::make_intrusive<Storage>(ReadView(*data, RestrideView(nullptr, {1}, {1}, 1).get()),
                                        0);
  };
  StoragePtr first = negated(), second = negated();
  {
    StoragePtr dead = negated();
  }
  EXPECT_EQ(Storage::Pending(0), (std::vector<StoragePtr>{first, second}));
  first->Assign(data->value());  // data again
  EXPECT_EQ(Storage::Pending(0), (std::vector<StoragePtr>{second}));
  exec::SyncDevice(0, /*wait=*/true);
  EXPECT_TRUE(Storage::Pending(0).empty());
  EXPECT_NE(LeafData(second->value()), nullptr);
}

TEST(StorageTest, ReplaceOnlyWhatIsStillThere) {
  StoragePtr storage = MakeStorage(at::zeros({2}));
  ir::Value old = storage->value(), one = MakeLeaf(exec::ToDevice(at::ones({2}), 0));
  storage->Replace(one, one);
  EXPECT_EQ(storage->value(), old);
  storage->Replace(old, one);
  EXPECT_EQ(storage->value(), one);
  storage->Replace(old, old);
  EXPECT_EQ(storage->value(), one);
}

/// The sum of a value with itself, as a node.
ir::Value Twice(const ir::Value& value) {
  return MakeNode(
      &ir::ops::as_strided, {value},
      [&] {
        ir::Words words;
        ir::AttributeWriter writer(words);
        writer.IntList(value.shape()->dims);
        writer.IntList(ContiguousStrides(value.shape()->dims));
        writer.Int(0);
        return words;
      }(),
      value.shape());
}

TEST(StorageTest, ASyncDoesNotDonateWhatAnotherThreadHolds) {
  at::Tensor content = Ramp({3});
  StoragePtr storage = MakeStorage(content);
  // As an op that is being traced elsewhere: it has read the storage, but has no result yet.
  ir::Value in_flight = Twice(storage->value());
  storage->Assign(MakeNode(&ir::ops::bitcast, {storage->value()}, {}, storage->shape()));
  exec::SyncDevice(0, /*wait=*/true);
  ExpectEqual(Content(in_flight), content);
  ExpectEqual(Content(storage->value()), content);
}

TEST(StorageTest, ASyncDoesNotDonateBelowAnIntermediateThatAnotherThreadHolds) {
  at::Tensor content = Ramp({3});
  StoragePtr storage = MakeStorage(content);
  ir::Value middle = Twice(storage->value());
  storage->Assign(Twice(middle));
  exec::SyncDevice(0, /*wait=*/true);
  ExpectEqual(Content(middle), content);
  ExpectEqual(Content(storage->value()), content);
}

TEST(StorageTest, ASyncDonatesWhatNobodyHolds) {
  StoragePtr storage = MakeStorage(Ramp({3}));
  DeviceDataPtr data = DeviceDataPtr::reclaim_copy(LeafData(storage->value()));
  storage->Assign(Twice(storage->value()));
  exec::SyncDevice(0, /*wait=*/true);
  EXPECT_ANY_THROW(data->Get());
  ExpectEqual(Content(storage->value()), Ramp({3}));
}

TEST(StorageTest, WhoOwnsDataDoesNotDependOnWhenAGraphIsFreed) {
  StoragePtr storage = MakeStorage(Ramp({3}));
  for (int i = 0; i < 20; ++i) {
    // Read in one graph, which a worker frees at some time, and overwritten in the next.
    auto reader = c10::make_intrusive<Storage>(Twice(storage->value()), 0);
    exec::SyncStorages({reader}, /*wait=*/false);
    DeviceDataPtr data = DeviceDataPtr::reclaim_copy(LeafData(storage->value()));
    storage->Assign(Twice(storage->value()));
    exec::SyncDevice(0, /*wait=*/false);
    EXPECT_NE(LeafData(exec::Evaluate(storage)), nullptr);
    LeafData(storage->value())->Wait();
    EXPECT_ANY_THROW(data->Get()) << i;
  }
}

}  // namespace
}  // namespace torch_xla::tensor
