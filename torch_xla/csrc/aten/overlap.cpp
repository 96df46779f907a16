#include "aten/overlap.h"

#include "aten/bridge.h"
#include "aten/layout.h"

namespace torch_xla::aten {
namespace {

/// A block of a storage without holes, in bytes, and the order of its elements.
struct Block {
  int64_t begin, end;
  tensor::Ints strides;

  bool operator==(const Block&) const = default;
};

std::optional<Block> BlockOf(const XLATensorImpl& tensor) {
  std::optional<Layout> layout =
      LayoutOf(tensor.view(), tensor.root()->shape()->dtype, tensor.sizes());
  if (!layout || !tensor::FillsBlock(tensor.sizes(), layout->strides)) return std::nullopt;
  const auto size = static_cast<int64_t>(tensor.dtype().itemsize());
  return Block{layout->begin, layout->begin + tensor.numel() * size, std::move(layout->strides)};
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
