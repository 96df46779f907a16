#include "aten/overlap.h"

#include <optional>

#include "aten/bridge.h"

namespace torch_xla::aten {
namespace {

/// A block of a storage without holes, in bytes, and the order of its elements.
struct Block {
  int64_t begin, end;
  tensor::Ints strides;

  bool operator==(const Block&) const = default;
};

std::optional<Block> BlockOf(const XLATensorImpl& tensor) {
  Block block{0, 0, tensor::ContiguousStrides(tensor.sizes())};
  auto size = static_cast<int64_t>(c10::elementSize(tensor.root()->shape()->dtype));
  if (const tensor::View* view = tensor.view()) {
    for (const tensor::ViewStep& step : view->steps) {
      if (step.bitcast) {
        size = static_cast<int64_t>(c10::elementSize(*step.bitcast));
        continue;
      }
      const bool is_last = &step == &view->last();
      if (is_last ? !tensor::FillsBlock(step.sizes, step.strides)
                  : !tensor::IsDense(step.sizes, step.strides))
        return std::nullopt;
      block.begin += step.offset * size;
      if (is_last) block.strides = step.strides;
    }
  }
  block.end = block.begin + tensor.numel() * size;
  return block;
}

}  // namespace

Overlap OverlapOf(const XLATensorImpl& a, const XLATensorImpl& b) {
  if (a.root() != b.root()) return Overlap::kNone;
  if (&a == &b) return Overlap::kFull;
  const std::optional<Block> first = BlockOf(a), second = BlockOf(b);
  if (!first || !second || first->begin >= second->end || second->begin >= first->end)
    return Overlap::kNone;
  return *first == *second ? Overlap::kFull : Overlap::kPartial;
}

void ThrowOverlap() {
  TORCH_CHECK(false,
              "unsupported operation: some elements of the input tensor and the written-to tensor "
              "refer to a single memory location. Please clone() the tensor before performing the "
              "operation.");
}

void CheckNoOverlap(const at::Tensor& written, const at::Tensor& read) {
  if (IsXla(read) && OverlapOf(*GetImpl(written), *GetImpl(read)) != Overlap::kNone) ThrowOverlap();
}

void CheckNoPartialOverlap(const at::Tensor& written, const at::Tensor& read) {
  if (IsXla(read) && OverlapOf(*GetImpl(written), *GetImpl(read)) == Overlap::kPartial)
    ThrowOverlap();
}

}  // namespace torch_xla::aten
