#include "aten/dot_general.h"

#include <algorithm>

#include "aten/bridge.h"
#include "ir/attributes.h"
#include "lowering/internal_ops.h"

namespace torch_xla::aten {
namespace {

std::vector<int64_t> Pick(c10::IntArrayRef sizes, const std::vector<int64_t>& dims) {
  std::vector<int64_t> picked;
  for (int64_t dim : dims) {
    TORCH_CHECK_INDEX(dim >= 0 && dim < static_cast<int64_t>(sizes.size()),
                      "dot_general: there is no dimension ", dim, " in ", sizes);
    picked.push_back(sizes[dim]);
  }
  return picked;
}

std::vector<int64_t> Others(c10::IntArrayRef sizes, const std::vector<int64_t>& dims) {
  std::vector<int64_t> others;
  for (int64_t i = 0; i < static_cast<int64_t>(sizes.size()); ++i) {
    if (std::find(dims.begin(), dims.end(), i) == dims.end()) others.push_back(sizes[i]);
  }
  return others;
}

}  // namespace

at::Tensor DotGeneral(const at::Tensor& a, const at::Tensor& b, const std::vector<int64_t>& a_dims,
                      const std::vector<int64_t>& b_dims) {
  const XLATensorImpl* lhs = GetImpl(a, "dot_general");
  const XLATensorImpl* rhs = GetImpl(b, "dot_general");
  TORCH_CHECK(a.scalar_type() == b.scalar_type(), "dot_general: expected one dtype, got ",
              a.scalar_type(), " and ", b.scalar_type());
  const std::vector<int64_t> a_sizes = Pick(a.sizes(), a_dims), b_sizes = Pick(b.sizes(), b_dims);
  TORCH_CHECK(a_sizes == b_sizes, "dot_general: expected equal sizes of dimensions ",
              c10::IntArrayRef(a_dims), " of ", a.sizes(), " and ", c10::IntArrayRef(b_dims),
              " of ", b.sizes());
  std::vector<int64_t> dims = Others(a.sizes(), a_dims);
  const std::vector<int64_t> last = Others(b.sizes(), b_dims);
  dims.insert(dims.end(), last.begin(), last.end());
  ir::Words words;
  ir::AttributeWriter writer(words);
  writer.IntList(a_dims);
  writer.IntList(b_dims);
  ir::ops::dot_general.counter->Add();
  return MakeTensor(lazy::MakeNode(&ir::ops::dot_general, {lhs->Read(), rhs->Read()},
                                   std::move(words), ir::GetShape(a.scalar_type(), dims)),
                    lhs->root()->device());
}

}  // namespace torch_xla::aten
