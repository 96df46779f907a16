#include "aten/layout.h"

namespace torch_xla::aten {

std::optional<Layout> LayoutOf(const tensor::View* view, c10::ScalarType root,
                               c10::IntArrayRef sizes) {
  Layout layout{tensor::ContiguousStrides(sizes), 0};
  if (!view) return layout;
  auto size = static_cast<int64_t>(c10::elementSize(root));
  for (const tensor::ViewStep& step : view->steps) {
    if (step.bitcast) {
      size = static_cast<int64_t>(c10::elementSize(*step.bitcast));
      continue;
    }
    layout.begin += step.offset * size;
    if (&step == &view->last()) {
      layout.strides = step.strides;
    } else if (!tensor::IsDense(step.sizes, step.strides)) {
      return std::nullopt;  // The next step counts its elements in another order.
    }
  }
  return layout;
}

}  // namespace torch_xla::aten
