// How an array of varying sizes lies in an array of bounded sizes.
//
// A dimension is a product of factors, outermost first: [batch, length, 8] seen as [batch * length,
// 8] has a dimension with two factors. Each factor that varies is padded at its end, so the
// elements that count have coordinates below the factors' sizes. What the other elements contain is
// unknown, NaN included.
#pragma once

#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <string>
#include <vector>

namespace torch_xla::sizes {

struct Factor {
  int64_t size;   // in this graph
  int64_t bound;  // in the program; equal to the size if it does not vary
  int64_t first;  // in the first graph of this structure; names the size
  bool varies;
};

/// Without factors of size 1 that do not vary, and without two neighbours that do not vary.
using BoundedDim = c10::SmallVector<Factor, 2>;
using BoundedLayout = std::vector<BoundedDim>;

BoundedDim FixedDim(int64_t size);
BoundedLayout FixedLayout(c10::IntArrayRef sizes);
/// Adds an inner factor.
void AddFactor(BoundedDim& dim, const Factor& factor);

/// All factors of an array as one dimension.
BoundedDim AllFactors(const BoundedLayout& layout);

int64_t SizeOf(const BoundedDim& dim);
int64_t BoundOf(const BoundedDim& dim);
std::vector<int64_t> BoundsOf(const BoundedLayout& layout);
bool Varies(const BoundedDim& dim);
bool Varies(const BoundedLayout& layout);
/// Whether the elements lie at the same places.
bool Same(const BoundedDim& a, const BoundedDim& b);

/// Why a graph cannot take its sizes as arguments.
struct SizesRefused {
  std::string reason;
};

struct StridedView {
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0;
};
struct BoundedView {
  BoundedLayout layout;
  StridedView view;
};
/// The view of the bounded array that has the elements of `view`, which is a view of the contiguous
/// array without padding. `made[i]` is what dimension i is if it is a part of a factor that varies,
/// or a repetition (stride 0). Throws SizesRefused if the elements are at no regular places.
BoundedView ViewOf(const BoundedLayout& layout, const StridedView& view, const BoundedLayout& made,
                   c10::ArrayRef<bool> varies, c10::IntArrayRef first);

/// The least of 4, 16, 32, 48, 64, 96, 128, 192, … that is not below `size`. With
/// XLA_DYNAMIC_BUCKETS=pow2 the least power of two from 4 on, with `all` also of 1.5 times them. Of
/// a size that grows the least of 64, 256, 1024, …
int64_t BucketOf(int64_t size, bool grows);

}  // namespace torch_xla::sizes
