#include "sizes/layout.h"

#include <algorithm>
#include <cstdlib>

namespace torch_xla::sizes {

BoundedDim FixedDim(int64_t size) {
  BoundedDim dim;
  AddFactor(dim, {size, size, size, false});
  return dim;
}

BoundedLayout FixedLayout(c10::IntArrayRef sizes) {
  BoundedLayout layout;
  for (int64_t size : sizes) layout.push_back(FixedDim(size));
  return layout;
}

void AddFactor(BoundedDim& dim, const Factor& factor) {
  if (!factor.varies && factor.size == 1) return;
  if (!factor.varies && !dim.empty() && !dim.back().varies) {
    Factor& outer = dim.back();
    outer.size *= factor.size;
    outer.bound = outer.first = outer.size;
    return;
  }
  dim.push_back(factor);
}

BoundedDim AllFactors(const BoundedLayout& layout) {
  BoundedDim all;
  for (const BoundedDim& dim : layout) {
    for (const Factor& factor : dim) AddFactor(all, factor);
  }
  return all;
}

int64_t SizeOf(const BoundedDim& dim) {
  int64_t size = 1;
  for (const Factor& factor : dim) size *= factor.size;
  return size;
}

int64_t BoundOf(const BoundedDim& dim) {
  int64_t bound = 1;
  for (const Factor& factor : dim) bound *= factor.bound;
  return bound;
}

std::vector<int64_t> BoundsOf(const BoundedLayout& layout) {
  std::vector<int64_t> bounds;
  for (const BoundedDim& dim : layout) bounds.push_back(BoundOf(dim));
  return bounds;
}

bool Varies(const BoundedDim& dim) {
  return std::ranges::any_of(dim, [](const Factor& factor) { return factor.varies; });
}

bool Varies(const BoundedLayout& layout) {
  return std::ranges::any_of(layout, [](const BoundedDim& dim) { return Varies(dim); });
}

bool Same(const BoundedDim& a, const BoundedDim& b) {
  return std::ranges::equal(a, b, [](const Factor& x, const Factor& y) {
    return x.size == y.size && x.bound == y.bound && x.varies == y.varies;
  });
}

BoundedView ViewOf(const BoundedLayout& layout, const StridedView& view, const BoundedLayout& made,
                   c10::ArrayRef<bool> varies, c10::IntArrayRef first) {
  struct Place {
    Factor factor;
    int64_t stride = 0, bound_stride = 0;  // of the array without padding, and of the bounded one
    int64_t index = 0;                     // where the view begins
    int64_t last = 0;                      // for a fixed factor: how far the view goes from `index`
    bool taken = false;                    // for a varying factor: whether the view moves along it
  };
  std::vector<Place> places;
  for (const Factor& factor : AllFactors(layout)) {
    if (factor.size == 0) throw SizesRefused{"it is empty"};
    places.push_back({factor});
  }
  int64_t stride = 1, bound_stride = 1;
  for (size_t i = places.size(); i-- > 0;) {
    places[i].stride = stride, places[i].bound_stride = bound_stride;
    stride *= places[i].factor.size, bound_stride *= places[i].factor.bound;
  }
  int64_t rest = view.offset;
  for (Place& place : places) {
    place.index = rest / place.stride;
    rest %= place.stride;
    if (place.index >= place.factor.size) throw SizesRefused{"a view begins behind its end"};
  }
  if (rest != 0) throw SizesRefused{"a view begins behind its end"};
  const auto irregular = [] { throw SizesRefused{"a view is not regular along a varying size"}; };
  const auto take = [&](Place& place) {
    if (place.taken || place.index != 0) irregular();
    place.taken = true;
  };
  BoundedView result;
  for (size_t i = 0; i < view.sizes.size(); ++i) {
    const int64_t size = view.sizes[i], step = view.strides[i];
    if (size == 0) throw SizesRefused{"it is empty"};
    if (size == 1 || step == 0) {
      result.layout.push_back(size == 1 ? BoundedDim{} : made[i]);
      result.view.strides.push_back(size == 1 ? 1 : 0);
      continue;
    }
    size_t j = 0;
    while (j < places.size() && places[j].stride > step) ++j;
    if (j == places.size() || step % places[j].stride != 0) irregular();
    int64_t times = step / places[j].stride, left = size;
    result.view.strides.push_back(times * places[j].bound_stride);
    std::vector<Factor> factors;  // innermost first
    while (true) {
      Place& place = places[j];
      const Factor& factor = place.factor;
      if (times >= factor.size || (factor.varies && times != 1)) irregular();
      const int64_t there = (factor.size + times - 1) / times;
      if (factor.varies && left >= there) {
        take(place);
        factors.push_back(factor);
      } else if (factor.varies) {
        if (place.taken || place.index + left > factor.size) irregular();
        place.taken = true;
        if (varies[i] && factors.empty()) {
          factors.push_back({left, factor.bound - (factor.size - left), first[i], true});
        } else {
          factors.push_back({left, left, left, false});
        }
      } else {
        const int64_t part = std::min(left, there);
        // A prefix of a fixed dimension (a table of positions) that is as long as a varying size.
        if (part < there && factors.empty() && varies[i] && Varies(made[i]) &&
            made[i].size() == 1 && SizeOf(made[i]) == part &&
            place.index + place.last + (made[i][0].bound - 1) * times < factor.size) {
          place.last += (made[i][0].bound - 1) * times;
          factors.push_back(made[i][0]);
          break;
        }
        place.last += (part - 1) * times;
        factors.push_back({part, part, part, false});
      }
      if (left <= there) break;
      if (factor.size % times != 0 || left % there != 0 || j == 0) irregular();
      left /= there;
      times = 1;
      --j;
    }
    BoundedDim dim;
    for (size_t k = factors.size(); k-- > 0;) AddFactor(dim, factors[k]);
    result.layout.push_back(std::move(dim));
  }
  for (const Place& place : places) {
    if (!place.factor.varies && place.index + place.last >= place.factor.size) irregular();
    result.view.offset += place.index * place.bound_stride;
  }
  result.view.sizes = BoundsOf(result.layout);
  return result;
}

int64_t BucketOf(int64_t size, bool grows) {
  static const std::string given = [] {
    const char* text = std::getenv("XLA_DYNAMIC_BUCKETS");
    return std::string(text ? text : "");
  }();
  // For small sizes padding costs less than one more program, so there are fewer buckets.
  const bool few = given != "all" && given != "pow2";
  int64_t bound = grows ? 64 : 4;
  while (grows && bound < size) bound *= 4;
  while (bound < size) {
    const bool halves = given == "all" || (few && bound >= 32);
    if (halves && bound + bound / 2 >= size) return bound + bound / 2;
    bound *= few && bound == 4 ? 4 : 2;
  }
  return bound;
}

}  // namespace torch_xla::sizes
