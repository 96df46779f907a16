// Indexing with tensors. Integer indices are lowered. The result of a boolean mask has a size that
// depends on the data, so the host reads it, unless the mask is for a write, which becomes a
// select.
#include <ATen/CompositeImplicitAutogradFunctions.h>
#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/native/IndexingUtils.h>
#include <ATen/ops/_embedding_bag_dense_backward.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/masked_fill.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/where.h>

#include "XLANativeFunctions.h"
#include "XLAOps.h"
#include "aten/index_check.h"
#include "aten/node_builder.h"
#include "aten/overlap.h"

namespace torch_xla {
namespace {

using Indices = c10::List<std::optional<at::Tensor>>;

bool IsMask(const at::Tensor& index) {
  return index.scalar_type() == at::kBool || index.scalar_type() == at::kByte;
}

/// Masks as integer indices on the device of `self`. Reads the size of each mask.
Indices IntegerIndices(const at::Tensor& self, const Indices& indices) {
  Indices result;
  for (const std::optional<at::Tensor>& entry : indices) {
    if (!entry || !entry->defined()) {
      result.push_back(std::nullopt);
      continue;
    }
    const auto dim = static_cast<int64_t>(result.size());
    if (dim < self.dim() && !IsMask(*entry)) {
      const int64_t size = self.size(dim);
      // If another dimension is empty, no element is looked up.
      if (size == 0 || self.numel() != 0) {
        aten::CheckCpuIndex("aten::index", *entry, -size, size);
        aten::CheckIndex("aten::index", *entry, -size, size);
      }
    }
    at::Tensor index = aten::IsXla(*entry) ? *entry : entry->to(self.device());
    TORCH_CHECK_INDEX(
        index.scalar_type() == at::kLong || index.scalar_type() == at::kInt || IsMask(index),
        "tensors used as indices must be long, int, byte or bool tensors");
    if (!IsMask(index)) {
      result.push_back(index);
      continue;
    }
    for (int64_t i = 0; i < index.dim(); ++i) {
      TORCH_CHECK_INDEX(dim + i < self.dim() && index.size(i) == self.size(dim + i),
                        "The shape of the mask ", index.sizes(), " at index ", i,
                        " does not match the shape of the indexed tensor ", self.sizes(),
                        " at index ", dim + i);
    }
    // Python's x[mask] adds a dimension to a zero-dimensional mask before it calls this operator.
    TORCH_CHECK_INDEX(index.dim() > 0, "a zero-dim boolean tensor cannot be an index");
    at::Tensor positions = index.nonzero();
    for (int64_t i = 0; i < index.dim(); ++i) result.push_back(positions.select(1, i));
  }
  TORCH_CHECK_INDEX(static_cast<int64_t>(result.size()) <= self.dim(),
                    "too many indices for tensor of dimension ", self.dim(), " (got ",
                    result.size(), ")");
  return result;
}

/// For x[mask] = value with one mask over leading dimensions: the mask, shaped to broadcast.
std::optional<at::Tensor> SingleMask(const at::Tensor& self, const Indices& indices) {
  std::optional<at::Tensor> mask;
  int64_t before = 0;
  for (size_t i = 0; i < indices.size(); ++i) {
    const std::optional<at::Tensor> entry = indices.get(i);
    if (!entry || !entry->defined()) {
      if (!mask) ++before;
      continue;
    }
    if (mask || entry->scalar_type() != at::kBool || !aten::IsXla(*entry)) return std::nullopt;
    mask = *entry;
  }
  if (!mask || before + mask->dim() > self.dim()) return std::nullopt;
  for (int64_t i = 0; i < mask->dim(); ++i) {
    if (mask->size(i) != self.size(before + i)) return std::nullopt;
  }
  at::DimVector sizes(mask->sizes().begin(), mask->sizes().end());
  sizes.resize(self.dim() - before, 1);
  return mask->view(sizes);
}

/// PyTorch's Meta kernel of index_put does not check the values, but the Meta kernel of index gives
/// the shape that they must fit.
void CheckFits(const at::Tensor& values, const at::Tensor& self, const Indices& indices) {
  ir::Node::Operands operands{aten::GetIrValue(self)};
  ir::Words words;
  ir::AttributeWriter writer(words);
  writer.Int(static_cast<int64_t>(indices.size()));
  for (const std::optional<at::Tensor>& index : indices) {
    writer.Int(index.has_value());
    if (index) operands.push_back(aten::GetIrValue(*index));
  }
  ir::NodePtr taken =
      tensor::MakeOpNode(&ir::ops::index_Tensor, std::move(operands), std::move(words));
  TORCH_CHECK(at::is_expandable_to(values.sizes(), taken->shape()->dims),
              "shape mismatch: value tensor of shape ", values.sizes(),
              " cannot be broadcast to indexing result of shape ",
              c10::IntArrayRef(taken->shape()->dims));
}

ir::Value IndexPut(const at::Tensor& self, const Indices& indices, const at::Tensor& values,
                   bool accumulate, bool in_place) {
  if (!accumulate && values.numel() == 1) {
    if (std::optional<at::Tensor> mask = SingleMask(self, indices)) {
      // The CPU's kernel casts the value, too.
      return aten::GetIrValue(at::masked_fill(self, *mask, values.reshape({})));
    }
  }
  TORCH_CHECK(self.scalar_type() == values.scalar_type(),
              "Index put requires the source and destination dtypes match, got ",
              self.scalar_type(), " for the destination and ", values.scalar_type(),
              " for the source.");
  if (in_place) {
    aten::CheckNoOverlap(self, values);
    for (const std::optional<at::Tensor>& index : indices) {
      // PyTorch turns a mask into indices first.
      if (index && !IsMask(*index)) aten::CheckNoOverlap(self, *index);
    }
  }
  Indices integers = IntegerIndices(self, indices);
  CheckFits(values, self, integers);
  aten::NodeBuilder builder(ir::ops::index_put);
  builder.Tensor(self);
  builder.OptionalTensorList(integers);
  builder.Add(values, accumulate);
  return aten::GetIrValue(builder.Single());
}

}  // namespace

at::Tensor XLANativeFunctions::index_Tensor(const at::Tensor& self, const Indices& indices) {
  Indices integers = IntegerIndices(self, indices);
  aten::NodeBuilder builder(ir::ops::index_Tensor);
  builder.Tensor(self);
  builder.OptionalTensorList(integers);
  return builder.Single();
}

at::Tensor XLANativeFunctions::index_put(const at::Tensor& self, const Indices& indices,
                                         const at::Tensor& values, bool accumulate) {
  return aten::MakeTensor(IndexPut(self, indices, values, accumulate, /*in_place=*/false),
                          aten::GetImpl(self)->root()->device());
}

at::Tensor& XLANativeFunctions::index_put_(at::Tensor& self, const Indices& indices,
                                           const at::Tensor& values, bool accumulate) {
  aten::AssignInPlace(self, IndexPut(self, indices, values, accumulate, /*in_place=*/true),
                      "aten::index_put_");
  return self;
}

at::Tensor& XLANativeFunctions::_index_put_impl_(at::Tensor& self, const Indices& indices,
                                                 const at::Tensor& values, bool accumulate, bool) {
  return index_put_(self, indices, values, accumulate);
}

at::Tensor XLANativeFunctions::nonzero(const at::Tensor& self) {
  return aten::FromCpu(aten::ToCpu(self).nonzero(), aten::GetImpl(self)->root()->device());
}

at::Tensor XLANativeFunctions::masked_select(const at::Tensor& self, const at::Tensor& mask) {
  TORCH_CHECK(mask.scalar_type() == at::kBool, "masked_select: expected BoolTensor for mask");
  // Indexing needs at least one dimension.
  auto at_least_1d = [](const at::Tensor& x) { return x.dim() == 0 ? x.unsqueeze(0) : x; };
  const at::Tensor tensor = at_least_1d(self), selected = at_least_1d(mask);
  auto expanded = at::expand_outplace(tensor, selected);
  return std::get<0>(expanded)->index({*std::get<1>(expanded)});
}

at::Tensor autograd::one_hot(const at::Tensor& self, int64_t num_classes) {
  // PyTorch's composition handles the special cases and DTensor. In the other cases it writes zeros
  // and then scatters, so that is done in one step here.
  if (!aten::IsXla(self) || self.scalar_type() != at::kLong || self.numel() == 0) {
    return at::compositeimplicitautograd::one_hot(self, num_classes);
  }
  if (num_classes == -1) num_classes = self.max().item().toLong() + 1;
  TORCH_CHECK(num_classes > 0, "num_classes should be positive");
  aten::CheckIndex("aten::one_hot", self, 0, num_classes, {}, aten::kRuntimeError);
  return self.unsqueeze(-1).eq(at::arange(num_classes, self.options())).to(at::kLong);
}

at::Tensor XLANativeFunctions::repeat_interleave_Tensor(const at::Tensor& repeats,
                                                        std::optional<int64_t> output_size) {
  TORCH_CHECK(repeats.dim() == 1, "repeat_interleave only accept 1D vector as repeat");
  TORCH_CHECK(repeats.scalar_type() == at::kLong || repeats.scalar_type() == at::kInt,
              "repeats has to be Long or Int tensor");
  if (repeats.size(0) == 0) return at::empty({0}, repeats.options());
  if (!output_size) {
    // The size of the result depends on the data, so the host has to read it.
    static auto& counter = debug::GetCounter("aten::repeat_interleave");
    counter.Add();
    const at::Tensor seen = aten::ToCpu(repeats);
    TORCH_CHECK(seen.ge(0).all().item<bool>(), "repeats can not be negative");
    output_size = seen.sum().item<int64_t>();
  } else {
    aten::CheckRepeats(repeats, *output_size);
  }
  aten::NodeBuilder builder(ir::ops::repeat_interleave_Tensor);
  builder.Tensor(repeats);
  builder.OptionalInt(output_size);
  return builder.Single();
}

at::Tensor& XLANativeFunctions::embedding_renorm_(at::Tensor& self, const at::Tensor& indices,
                                                  double max_norm, double norm_type) {
  TORCH_CHECK(self.dim() == 2, "embedding_renorm_ expects a tensor of 2 dimensions, but got ",
              self.dim());
  TORCH_CHECK(indices.scalar_type() == at::kLong || indices.scalar_type() == at::kInt,
              "embedding_renorm_ expects indices of Long or Int, but got ", indices.scalar_type());
  if (indices.numel() == 0) return self;
  // A row that is named twice is written twice with the same values.
  const at::Tensor places = indices.reshape({-1}).to(at::kLong);
  const at::Tensor rows = self.index_select(0, places);
  const at::Tensor norms = rows.norm(norm_type, at::IntArrayRef{1}, /*keepdim=*/true);
  const at::Tensor scale = at::where(norms > max_norm, max_norm / (norms + 1e-7), 1);
  return self.index_copy_(0, places, (rows * scale).to(self.scalar_type()));
}

at::Tensor XLANativeFunctions::_embedding_bag_backward(
    const at::Tensor& grad, const at::Tensor& indices, const at::Tensor& /*offsets*/,
    const at::Tensor& offset2bag, const at::Tensor& bag_size, const at::Tensor& maximum_indices,
    int64_t num_weights, bool scale_grad_by_freq, int64_t mode, bool sparse,
    const std::optional<at::Tensor>& per_sample_weights, int64_t padding_idx) {
  TORCH_CHECK(!sparse, "embedding_bag: sparse gradients are not supported on the xla device");
  return at::_embedding_bag_dense_backward(grad, indices, offset2bag, bag_size, maximum_indices,
                                           num_weights, scale_grad_by_freq, mode,
                                           per_sample_weights, padding_idx);
}

}  // namespace torch_xla
