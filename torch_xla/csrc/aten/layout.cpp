#include "aten/layout.h"

#include <algorithm>
#include <utility>

namespace torch_xla::aten {
namespace {

/// A dimension of a view: its size, and its stride in the storage in bytes.
struct Dim {
  int64_t size, stride;
};
using Dims = c10::SmallVector<Dim, 5>;

/// The same elements in the same order, in the least number of dimensions.
Dims Merged(const Dims& dims) {
  Dims merged;
  for (const Dim& dim : dims) {
    if (dim.size == 1) continue;
    if (!merged.empty() && merged.back().stride == dim.size * dim.stride) {
      merged.back() = {merged.back().size * dim.size, dim.stride};
    } else {
      merged.push_back(dim);
    }
  }
  return merged;
}

/// The dimensions of a strided view of a view, which counts the elements of `base` row by row.
/// `begin` moves to its first element. Nothing if one of its dimensions leaves its row.
std::optional<Dims> Restrided(const Dims& base, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                              int64_t offset, int64_t& begin) {
  constexpr int64_t kOpen = -1;
  const bool empty = std::find(sizes.begin(), sizes.end(), 0) != sizes.end();
  const int64_t innermost = base.empty() ? 1 : base.back().stride;
  Dims result;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const bool moves = sizes[i] > 1 && strides[i] != 0;
    result.push_back({sizes[i], moves ? kOpen : strides[i] * innermost});
  }
  int64_t row = 1;  // Elements of `base` for one step along its dimension j.
  for (size_t j = base.size(); j-- > 0;) {
    int64_t place = offset / row % base[j].size;
    begin += place * base[j].stride;
    const int64_t next = row * base[j].size;
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (result[i].stride != kOpen || strides[i] >= next) continue;
      if (strides[i] % row != 0) return std::nullopt;
      result[i].stride = strides[i] / row * base[j].stride;
      place += strides[i] / row * (sizes[i] - 1);
    }
    if (!empty && place >= base[j].size) return std::nullopt;
    row = next;
  }
  for (const Dim& dim : result) {
    if (dim.stride == kOpen) return std::nullopt;
  }
  return result;
}

}  // namespace

std::optional<Layout> LayoutOf(const tensor::View* view, c10::ScalarType root,
                               c10::IntArrayRef sizes) {
  Layout layout{tensor::ContiguousStrides(sizes), 0};
  if (!view) return layout;
  auto size = static_cast<int64_t>(c10::elementSize(root));
  if (view->steps.size() == 1 && !view->last().bitcast) {
    return Layout{view->last().strides, view->last().offset * size};
  }
  constexpr int64_t kEndless = int64_t{1} << 48;
  Dims dims{{kEndless, size}};
  auto restride = [&](c10::IntArrayRef to, c10::IntArrayRef strides, int64_t offset) {
    auto found = Restrided(Merged(dims), to, strides, offset, layout.begin);
    if (found) dims = *std::move(found);
    return found.has_value();
  };
  for (const tensor::ViewStep& step : view->steps) {
    if (!step.bitcast) {
      if (!restride(step.sizes, step.strides, step.offset)) return std::nullopt;
      if (std::find(step.sizes.begin(), step.sizes.end(), 0) != step.sizes.end()) return layout;
      continue;
    }
    const auto before = std::exchange(size, static_cast<int64_t>(c10::elementSize(*step.bitcast)));
    if (before > size) {
      dims.push_back({before / size, size});
    } else if (before < size) {
      dims = Merged(dims);
      const int64_t parts = size / before;
      if (dims.empty() || dims.back().stride != before || dims.back().size % parts != 0) {
        return std::nullopt;
      }
      dims.back() = {dims.back().size / parts, size};
    }
  }
  if (view->last().bitcast && !restride(sizes, layout.strides, 0)) return std::nullopt;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (dims[i].stride % size != 0) return std::nullopt;
    layout.strides[i] = dims[i].stride / size;
  }
  return layout;
}

}  // namespace torch_xla::aten
