#include "lowering/strided_view.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "runtime/client.h"

namespace torch_xla::lowering {
namespace {

using stablehlo::Builder;
using stablehlo::Dims;
using stablehlo::ElementType;
using stablehlo::Type;
using stablehlo::Value;

struct View {
  Dims root, sizes, strides;
  int64_t offset = 0;
};

int64_t Count(const Dims& dims) {
  return std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>());
}

std::string Text(const Dims& dims) {
  std::string text;
  for (int64_t d : dims) text += (text.empty() ? "" : ",") + std::to_string(d);
  return "[" + text + "]";
}

std::string Text(const View& view) {
  return Text(view.root) + " as " + Text(view.sizes) + " strides " + Text(view.strides) + " + " +
         std::to_string(view.offset);
}

/// The place in the flat root of each element of the view, row by row.
std::vector<int64_t> Places(const View& view) {
  std::vector<int64_t> places{view.offset};
  for (size_t i = 0; i < view.sizes.size(); ++i) {
    std::vector<int64_t> next;
    for (int64_t place : places) {
      for (int64_t k = 0; k < view.sizes[i]; ++k) next.push_back(place + k * view.strides[i]);
    }
    places = std::move(next);
  }
  return places;
}

View Whole(Dims root) {
  View view{root, root, Dims(root.size())};
  int64_t stride = 1;
  for (size_t i = root.size(); i-- > 0; stride *= std::max<int64_t>(root[i], 1)) {
    view.strides[i] = stride;
  }
  return view;
}

class StridedViewTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { client_ = runtime::Client::Create("CPU").release(); }
  static void TearDownTestSuite() { delete client_; }

  /// Reads and writes every view in one program and compares with the definition.
  void Check(const std::vector<View>& views) {
    Builder builder;
    std::vector<Value> outputs;
    std::vector<std::vector<int32_t>> arguments;
    std::vector<std::unique_ptr<runtime::Buffer>> buffers;
    std::vector<runtime::Buffer*> handles;
    auto parameter = [&](const Dims& dims, int32_t first) {
      std::vector<int32_t>& data = arguments.emplace_back(std::max<int64_t>(Count(dims), 1));
      std::iota(data.begin(), data.end(), first);
      buffers.push_back(client_->BufferFromHost(data.data(), ElementType::kS32, dims, 0));
      handles.push_back(buffers.back().get());
      return builder.Parameter(Type(ElementType::kS32, dims));
    };
    for (const View& view : views) {
      Value root = parameter(view.root, 0), update = parameter(view.sizes, kNew);
      outputs.push_back(ReadStrided(root, view.sizes, view.strides, view.offset));
      outputs.push_back(WriteStrided(root, update, view.sizes, view.strides, view.offset));
      ASSERT_EQ(outputs.end()[-2].dims(), view.sizes) << Text(view);
      ASSERT_EQ(outputs.back().dims(), view.root) << Text(view);
    }
    auto executable = client_->Compile(builder.Finish(outputs), {});
    runtime::ExecuteResult result = executable->Execute(handles);
    for (size_t i = 0; i < views.size(); ++i) {
      std::vector<int64_t> places = Places(views[i]);
      std::vector<int32_t> read(places.size() + 1), written(Count(views[i].root) + 1);
      result.outputs[2 * i]->CopyToHost(read.data()).Await();
      result.outputs[2 * i + 1]->CopyToHost(written.data()).Await();
      read.pop_back();
      written.pop_back();
      EXPECT_EQ(read, std::vector<int32_t>(places.begin(), places.end())) << Text(views[i]);
      std::vector<std::set<int32_t>> allowed(written.size());
      for (size_t k = 0; k < places.size(); ++k) allowed[places[k]].insert(kNew + k);
      for (size_t k = 0; k < written.size(); ++k) {
        if (allowed[k].empty()) allowed[k].insert(k);
        EXPECT_TRUE(allowed[k].contains(written[k])) << Text(views[i]) << " at " << k;
      }
    }
  }

  static std::string ReadText(const View& view) {
    Builder builder;
    Value root = builder.Parameter(Type(ElementType::kF32, view.root));
    return builder.Finish({ReadStrided(root, view.sizes, view.strides, view.offset)});
  }
  static std::string WriteText(const View& view) {
    Builder builder;
    Value root = builder.Parameter(Type(ElementType::kF32, view.root));
    Value update = builder.Parameter(Type(ElementType::kF32, view.sizes));
    return builder.Finish({WriteStrided(root, update, view.sizes, view.strides, view.offset)});
  }
  /// The names of the StableHLO ops (but constants) of a module, in order.
  static std::string Ops(const std::string& text) {
    std::string ops;
    for (size_t at = 0; (at = text.find("stablehlo.", at)) != std::string::npos;) {
      at += 10;
      std::string name = text.substr(at, text.find_first_of("\" (", at) - at);
      if (name != "constant") ops += (ops.empty() ? "" : " ") + name;
    }
    return ops;
  }

  static constexpr int32_t kNew = 10000;
  static inline runtime::Client* client_ = nullptr;
};

/// A random chain of PyTorch's views of a random root.
class RandomView {
 public:
  explicit RandomView(std::mt19937& random) : random_(random) {}

  View Make(bool overlapping) {
    Dims root(Draw(0, 4));
    for (int64_t& size : root) size = Draw(0, 19) == 0 ? 0 : Draw(1, 7);
    View view = Whole(root);
    for (int64_t steps = Draw(0, 5); steps > 0; --steps) Step(view, overlapping);
    return view;
  }

 private:
  int64_t Draw(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }

  void Step(View& view, bool overlapping) {
    if (view.sizes.empty()) {
      Insert(view, 0, 1, 1);
      return;
    }
    auto rank = static_cast<int64_t>(view.sizes.size());
    int64_t i = Draw(0, rank - 1), j = Draw(0, rank - 1);
    int64_t &size = view.sizes[i], &stride = view.strides[i];
    switch (Draw(0, overlapping ? 8 : 6)) {
      case 0:  // transpose
        std::swap(view.sizes[i], view.sizes[j]);
        std::swap(view.strides[i], view.strides[j]);
        break;
      case 1: {  // slice
        int64_t start = Draw(0, size), end = Draw(start, size), step = Draw(1, 3);
        view.offset += start < end ? start * stride : 0;
        size = (end - start + step - 1) / step;
        stride *= step;
        break;
      }
      case 2:  // select
        if (size == 0) break;
        view.offset += Draw(0, size - 1) * stride;
        Erase(view, i);
        break;
      case 3:  // unsqueeze, expand
        Insert(view, i, overlapping && Draw(0, 1) ? 2 : 1, 0);
        break;
      case 4:  // unflatten
        for (int64_t inner : {2, 3}) {
          if (size == 0 || size % inner != 0) continue;
          size /= inner;
          int64_t inner_stride = stride;
          stride *= inner;
          Insert(view, i + 1, inner, inner_stride);
          break;
        }
        break;
      case 5:  // flatten
        if (i + 1 == rank || stride != view.sizes[i + 1] * view.strides[i + 1]) break;
        view.sizes[i + 1] *= size;
        Erase(view, i);
        break;
      case 6: {  // diagonal
        if (i == j || size == 0 || view.sizes[j] == 0) break;
        int64_t first = Draw(0, size - 1);
        view.offset += first * stride;
        int64_t length = std::min(size - first, view.sizes[j]);
        int64_t sum = stride + view.strides[j];
        Erase(view, std::max(i, j));
        Erase(view, std::min(i, j));
        Insert(view, static_cast<int64_t>(view.sizes.size()), length, sum);
        break;
      }
      default: {  // unfold
        if (size == 0) break;
        int64_t window = Draw(1, size), step = Draw(1, 3), inner_stride = stride;
        size = (size - window) / step + 1;
        stride *= step;
        Insert(view, rank, window, inner_stride);
      }
    }
  }

  static void Insert(View& view, int64_t at, int64_t size, int64_t stride) {
    view.sizes.insert(view.sizes.begin() + at, size);
    view.strides.insert(view.strides.begin() + at, stride);
  }
  static void Erase(View& view, int64_t at) {
    view.sizes.erase(view.sizes.begin() + at);
    view.strides.erase(view.strides.begin() + at);
  }

  std::mt19937& random_;
};

TEST_F(StridedViewTest, ChainsOfViews) {
  std::mt19937 random(7);
  RandomView generator(random);
  for (int round = 0; round < 4; ++round) {
    std::vector<View> views;
    for (int i = 0; i < 80; ++i) views.push_back(generator.Make(round % 2 == 1));
    Check(views);
  }
}

TEST_F(StridedViewTest, AnyStrides) {
  std::mt19937 random(11);
  auto draw = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int round = 0; round < 2; ++round) {
    std::vector<View> views;
    while (views.size() < 60) {
      View view{{draw(1, 6), draw(1, 6), draw(1, 6)}, Dims(draw(0, 4)), {}, draw(0, 12)};
      int64_t last = view.offset;
      for (int64_t& size : view.sizes) {
        size = draw(1, 4);
        view.strides.push_back(draw(0, 9));
        last += (size - 1) * view.strides.back();
      }
      if (last < Count(view.root)) views.push_back(view);
    }
    Check(views);
  }
}

TEST_F(StridedViewTest, OutOfBounds) {
  EXPECT_THROW(ReadText({{2, 3}, {2, 4}, {3, 1}, 0}), stablehlo::Error);
  EXPECT_THROW(ReadText({{2, 3}, {2}, {1}, 5}), stablehlo::Error);
  EXPECT_THROW(WriteText({{0}, {1}, {1}, 0}), stablehlo::Error);
}

// What common views become: nothing that could be said more simply.
TEST_F(StridedViewTest, CommonViewsAreCheap) {
  auto read = [](const View& view) { return Ops(ReadText(view)); };
  auto write = [](const View& view) { return Ops(WriteText(view)); };
  EXPECT_EQ(read(Whole({2, 3})), "");
  EXPECT_EQ(read({{2, 3}, {6}, {1}}), "reshape");
  EXPECT_EQ(read({{2, 3}, {3, 1, 2}, {1, 6, 3}}), "transpose reshape");
  EXPECT_EQ(read({{2, 3, 4}, {4, 2, 3}, {1, 12, 4}}), "transpose");
  EXPECT_EQ(read({{2, 3, 4}, {2, 2, 4}, {12, 4, 1}, 4}), "slice");    // x[:, 1:]
  EXPECT_EQ(read({{2, 3, 4}, {3, 4}, {4, 1}, 12}), "slice reshape");  // x[1]
  EXPECT_EQ(read({{4, 7}, {4, 4}, {7, 2}}), "slice");                 // x[:, ::2]
  EXPECT_EQ(read({{10}, {4}, {3}}), "slice");                         // x[::3]
  EXPECT_EQ(read({{3}, {5, 3}, {0, 1}}), "broadcast_in_dim");         // expand
  EXPECT_EQ(read({{5, 5}, {5}, {6}}), "reshape slice");               // diagonal
  // A head of the query part of a fused projection [batch, time, 3 * heads * width].
  EXPECT_EQ(read({{2, 3, 24}, {2, 4, 3, 2}, {72, 2, 24, 1}, 8}), "slice reshape transpose");
  // Frames of 4 at a distance of 2.
  EXPECT_EQ(read({{2, 10}, {2, 4, 4}, {10, 2, 1}}), "slice reshape slice reshape concatenate");

  EXPECT_EQ(write(Whole({2, 3})), "");
  EXPECT_EQ(write({{2, 3, 4}, {4, 2, 3}, {1, 12, 4}}), "transpose");
  EXPECT_EQ(write({{2, 3, 4}, {2, 2, 4}, {12, 4, 1}, 4}), "dynamic_update_slice");
  EXPECT_EQ(write({{2, 3, 4}, {3, 4}, {4, 1}, 12}), "reshape dynamic_update_slice");
  EXPECT_EQ(write({{4, 6}, {4, 3}, {6, 2}, 1}), "reshape reshape dynamic_update_slice reshape");
}

}  // namespace
}  // namespace torch_xla::lowering
