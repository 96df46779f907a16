// Products of groups of rows or columns with one matrix per group: a mixture of experts.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/where.h>

#include "XLANativeFunctions.h"

namespace torch_xla {
namespace {

constexpr const char* kOp = "_grouped_mm: ";

/// [size]: the group of each place; offs.size(0) for places after the last group. Group g is the
/// places from the end of the group before it up to offs[g].
at::Tensor GroupOf(const at::Tensor& offs, int64_t size) {
  const at::Tensor place = at::arange(size, offs.options());
  return (place.unsqueeze(1) >= offs.unsqueeze(0)).sum(1);
}

/// [groups, size]: whether a place belongs to a group.
at::Tensor Members(const at::Tensor& offs, int64_t size) {
  const at::Tensor group = at::arange(offs.size(0), offs.options().dtype(at::kLong));
  return group.unsqueeze(1) == GroupOf(offs, size).unsqueeze(0);
}

at::Tensor Keep(const at::Tensor& mask, const at::Tensor& value) {
  return at::where(mask, value, at::Scalar(0));
}

void CheckMatrix(const char* name, const at::Tensor& matrix) {
  const at::ScalarType dtype = matrix.scalar_type();
  TORCH_CHECK(dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf, kOp,
              "expected `", name, "` of float32, bfloat16 or float16, but got ", dtype);
  TORCH_CHECK(matrix.dim() == 2 || matrix.dim() == 3, kOp, "expected `", name,
              "` of 2 or 3 dimensions, but got sizes ", matrix.sizes());
}

}  // namespace

at::Tensor XLANativeFunctions::_grouped_mm(const at::Tensor& self, const at::Tensor& mat2,
                                           const std::optional<at::Tensor>& offs,
                                           const std::optional<at::Tensor>& bias,
                                           std::optional<at::ScalarType> out_dtype) {
  CheckMatrix("self", self);
  CheckMatrix("mat2", mat2);
  TORCH_CHECK(self.scalar_type() == mat2.scalar_type(), kOp, "expected matrices of one dtype, but ",
              "got ", self.scalar_type(), " and ", mat2.scalar_type());
  TORCH_CHECK(self.size(-1) == mat2.size(-2), kOp, "matrices of sizes ", self.sizes(), " and ",
              mat2.sizes(), " cannot be multiplied");
  TORCH_CHECK(!bias || !bias->defined(), kOp, "a bias is not supported by PyTorch yet");
  TORCH_CHECK(!out_dtype || *out_dtype == self.scalar_type(), kOp, "expected `out_dtype` ",
              self.scalar_type(), " of the matrices, but got ", out_dtype.value_or(at::kFloat));
  const bool rows = self.dim() == 2, columns = mat2.dim() == 2;
  const bool has_offs = offs && offs->defined();
  TORCH_CHECK(has_offs == (rows || columns), kOp,
              "expected `offs` where a matrix has 2 dimensions ", "and only there, but got sizes ",
              self.sizes(), " and ", mat2.sizes(), has_offs ? " with it" : " without it");
  if (!has_offs) return at::bmm(self, mat2);

  TORCH_CHECK(offs->dim() == 1 && offs->scalar_type() == at::kInt, kOp,
              "expected `offs` of 1 dimension and int32, but got sizes ", offs->sizes(), " of ",
              offs->scalar_type());
  const int64_t groups = offs->size(0);
  TORCH_CHECK(rows == columns || groups == (rows ? mat2 : self).size(0), kOp,
              "expected one end in ", "`offs` for each matrix, but got ", groups, " for sizes ",
              self.sizes(), " and ", mat2.sizes());

  // A program has fixed shapes, but the sizes of groups vary. So each group is multiplied with all
  // places, and the places of other groups are selected away. (A product with zero would let an
  // infinity in one expert reach the other experts.)
  if (rows && columns) {
    const at::Tensor mine = Members(*offs, self.size(1));
    return at::bmm(Keep(mine.unsqueeze(1), self.unsqueeze(0)),
                   Keep(mine.unsqueeze(2), mat2.unsqueeze(0)));
  }
  if (columns) {
    const at::Tensor mine = Members(*offs, mat2.size(1));
    return Keep(mine.unsqueeze(1), at::matmul(self, mat2)).sum(0);
  }
  if (self.size(0) > groups) {
    const at::Tensor mine = Members(*offs, self.size(0));
    return Keep(mine.unsqueeze(2), at::matmul(self, mat2)).sum(0);
  }
  // Few rows, as in generation: copy one matrix per row instead of using all groups.
  const at::Tensor group = GroupOf(*offs, self.size(0));
  const at::Tensor matrices = mat2.index_select(0, group.clamp_max(groups - 1));
  return Keep((group < groups).unsqueeze(1), at::bmm(self.unsqueeze(1), matrices).squeeze(1));
}

}  // namespace torch_xla
