// Histograms, composed of lowered operators.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <cmath>

#include "XLANativeFunctions.h"
#include "aten/bridge.h"

namespace torch_xla {
namespace {

using OptionalTensor = std::optional<at::Tensor>;
using Range = std::optional<at::ArrayRef<double>>;

/// The CPU's kernel that finds the range does not take half types.
void CheckDtype(const at::Tensor& points, bool ranged = true) {
  const at::ScalarType dtype = points.scalar_type();
  TORCH_CHECK_NOT_IMPLEMENTED(dtype == at::kFloat || dtype == at::kDouble ||
                                  (ranged && (dtype == at::kHalf || dtype == at::kBFloat16)),
                              ranged ? "\"histogram_cpu\"" : "\"histogramdd\"",
                              " not implemented for '", dtype, "'");
}

void CheckPoints(const at::Tensor& self, size_t bins, const OptionalTensor& weight) {
  CheckDtype(self);
  TORCH_CHECK(self.dim() >= 2, "torch.histogramdd: input tensor should have at least 2 dimensions");
  const int64_t dims = self.size(-1);
  TORCH_CHECK(static_cast<int64_t>(bins) == dims, "torch.histogramdd: expected ", dims,
              " sequences of bin edges for a ", dims, "-dimensional histogram but got ", bins);
  if (!weight || !weight->defined()) return;
  TORCH_CHECK(weight->scalar_type() == self.scalar_type(),
              "torch.histogramdd: if weight tensor is provided, input tensor and weight tensor "
              "should have the same dtype, but got input(",
              self.scalar_type(), "), and weight(", weight->scalar_type(), ")");
  TORCH_CHECK(weight->sizes() == self.sizes().slice(0, self.dim() - 1),
              "torch.histogramdd: if weight tensor is provided it should have the same shape as "
              "the input tensor excluding its innermost dimension, but got input with shape ",
              self.sizes(), " and weight with shape ", weight->sizes());
}

void CheckEdges(const at::Tensor& self, at::TensorList edges) {
  for (size_t i = 0; i < edges.size(); ++i) {
    TORCH_CHECK(edges[i].scalar_type() == self.scalar_type(),
                "torch.histogramdd: input tensor and bins tensors should have the same dtype, but "
                "got input with dtype ",
                self.scalar_type(), " and bins for dimension ", i, " with dtype ",
                edges[i].scalar_type());
    TORCH_CHECK(edges[i].dim() == 1 && edges[i].numel() > 0,
                "torch.histogramdd: bins tensor for dimension ", i,
                " should be one-dimensional and not empty, but got shape ", edges[i].sizes());
  }
}

/// The same numbers as at::linspace(low, high, bins + 1), from bounds on the device.
at::Tensor EvenEdges(const at::Tensor& low, const at::Tensor& high, int64_t bins) {
  const at::Tensor place = at::arange(bins + 1, low.options());
  const at::Tensor step = (high - low) / bins;
  return at::where(place < (bins + 1) / 2, low + step * place, high - step * (bins - place));
}

/// Evenly spaced edges for each column of `points` [N, D]: over `range`, or else from the column's
/// minimum to its maximum.
std::vector<at::Tensor> BinEdges(const at::Tensor& points, at::IntArrayRef bins,
                                 const Range& range) {
  CheckDtype(points, range.has_value());
  const int64_t dims = points.size(1);
  std::vector<at::Tensor> edges;
  if (range) {
    TORCH_CHECK(static_cast<int64_t>(range->size()) == 2 * dims, "torch.histogramdd: for a ", dims,
                "-dimensional histogram range should have ", 2 * dims, " elements, but got ",
                range->size());
  }
  for (int64_t d = 0; d < dims; ++d) {
    TORCH_CHECK(bins[d] > 0, "torch.histogramdd(): bins must be > 0, but got ", bins[d],
                " for dimension ", d);
    at::Tensor low, high;
    if (range) {
      const double from = (*range)[2 * d], to = (*range)[2 * d + 1];
      TORCH_CHECK(std::isfinite(from) && std::isfinite(to), "torch.histogramdd: dimension ", d,
                  "'s range [", from, ", ", to, "] is not finite");
      TORCH_CHECK(from <= to, "torch.histogramdd: min should not exceed max, but got min ", from,
                  " max ", to, " for dimension ", d);
      low = at::scalar_tensor(from, points.options());
      high = at::scalar_tensor(to, points.options());
    } else if (points.size(0) == 0) {
      low = at::scalar_tensor(0, points.options());
      high = at::scalar_tensor(1, points.options());
    } else {
      std::tie(low, high) = at::aminmax(points.select(1, d));
    }
    const at::Tensor point = low == high;
    edges.push_back(
        EvenEdges(at::where(point, low - 0.5, low), at::where(point, high + 0.5, high), bins[d]));
  }
  return edges;
}

/// The histogram of points [N, D] between ascending edges; the last bin includes both its edges.
at::Tensor Histogram(const at::Tensor& points, at::TensorList edges, const OptionalTensor& weight,
                     bool density) {
  std::vector<int64_t> bins;
  at::Tensor place, inside;
  for (size_t d = 0; d < edges.size(); ++d) {
    const at::Tensor x = points.select(1, static_cast<int64_t>(d)), &e = edges[d];
    bins.push_back(e.numel() - 1);
    const at::Tensor first = e.select(0, 0), last = e.select(0, -1);
    const at::Tensor bin = (at::searchsorted(e, x, /*out_int32=*/false, /*right=*/true) - 1)
                               .clamp(0, std::max<int64_t>(bins[d] - 1, 0));
    const at::Tensor within = (x >= first).logical_and(x <= last);
    place = d == 0 ? bin : place * bins[d] + bin;
    inside = d == 0 ? within : inside.logical_and(within);
  }
  const int64_t count = c10::multiply_integers(bins);
  at::Tensor counts = at::zeros({count}, points.options());
  if (count > 0 && points.size(0) > 0) {
    const at::Tensor one = at::ones({}, points.options());
    const at::Tensor value = weight && weight->defined() ? weight->reshape({-1}) : one;
    counts = counts.index_add(0, at::where(inside, place, 0), at::where(inside, value, 0));
  }
  counts = counts.view(bins);
  if (!density) return counts;
  counts = counts / counts.sum();
  for (size_t d = 0; d < edges.size(); ++d) {
    at::DimVector sizes(bins.size(), 1);
    sizes[d] = bins[d];
    counts = counts / edges[d].diff().view(sizes);
  }
  return counts;
}

at::Tensor Points(const at::Tensor& self) { return self.reshape({-1, self.size(-1)}); }

OptionalTensor FlatWeight(const OptionalTensor& weight) {
  return weight && weight->defined() ? OptionalTensor(weight->reshape({-1})) : std::nullopt;
}

}  // namespace

at::Tensor XLANativeFunctions::bincount(const at::Tensor& self, const OptionalTensor& weights,
                                        int64_t minlength) {
  TORCH_CHECK(minlength >= 0, "minlength should be >= 0");
  TORCH_CHECK_NOT_IMPLEMENTED(c10::isIntegralType(self.scalar_type(), /*includeBool=*/true) ||
                                  self.dim() != 1 || self.numel() == 0,
                              "\"bincount_cpu\" not implemented for '", self.scalar_type(), "'");
  TORCH_CHECK(self.dim() == 1 && c10::isIntegralType(self.scalar_type(), /*includeBool=*/false),
              "bincount only supports 1-d non-negative integral inputs.");
  const bool weighted = weights && weights->defined();
  const at::ScalarType dtype = !weighted                              ? at::kLong
                               : weights->scalar_type() == at::kFloat ? at::kFloat
                                                                      : at::kDouble;
  const at::TensorOptions options = self.options().dtype(dtype);
  if (self.numel() == 0) return at::zeros({minlength}, self.options().dtype(at::kLong));
  TORCH_CHECK(!weighted || (weights->dim() == 1 && weights->size(0) == self.size(0)),
              "weights should be 1-d and have the same length as input");
  // The size of the result depends on the data, so the host has to read it.
  auto [low, high] = at::aminmax(self);
  const at::Tensor bounds = aten::ToCpu(at::stack({low, high}).to(at::kLong));
  const int64_t least = bounds[0].item<int64_t>(), greatest = bounds[1].item<int64_t>();
  TORCH_CHECK(least >= 0, "bincount only supports 1-d non-negative integral inputs.");
  const at::Tensor value =
      weighted ? weights->to(dtype) : at::ones({}, options).expand(self.sizes());
  return at::zeros({std::max(greatest + 1, minlength)}, options)
      .index_add(0, self.to(at::kLong), value);
}

std::tuple<at::Tensor, at::Tensor> XLANativeFunctions::histogram_bins_tensor(
    const at::Tensor& self, const at::Tensor& bins, const OptionalTensor& weight, bool density) {
  const at::Tensor points = self.reshape({-1, 1});
  CheckPoints(points, 1, FlatWeight(weight));
  CheckEdges(points, bins);
  return {Histogram(points, bins, FlatWeight(weight), density), bins.clone()};
}

std::tuple<at::Tensor, at::Tensor> XLANativeFunctions::histogram_bin_ct(
    const at::Tensor& self, int64_t bins, Range range, const OptionalTensor& weight, bool density) {
  const at::Tensor points = self.reshape({-1, 1});
  CheckPoints(points, 1, FlatWeight(weight));
  std::vector<at::Tensor> edges = BinEdges(points, bins, range);
  return {Histogram(points, edges, FlatWeight(weight), density), edges[0]};
}

std::vector<at::Tensor> XLANativeFunctions::_histogramdd_bin_edges(const at::Tensor& self,
                                                                   at::IntArrayRef bins,
                                                                   Range range,
                                                                   const OptionalTensor& weight,
                                                                   bool /*density*/) {
  CheckPoints(self, bins.size(), weight);
  return BinEdges(Points(self), bins, range);
}

at::Tensor XLANativeFunctions::_histogramdd_from_bin_cts(const at::Tensor& self,
                                                         at::IntArrayRef bins, Range range,
                                                         const OptionalTensor& weight,
                                                         bool density) {
  CheckPoints(self, bins.size(), weight);
  return Histogram(Points(self), BinEdges(Points(self), bins, range), weight, density);
}

at::Tensor XLANativeFunctions::_histogramdd_from_bin_tensors(const at::Tensor& self,
                                                             at::TensorList bins,
                                                             const OptionalTensor& weight,
                                                             bool density) {
  CheckPoints(self, bins.size(), weight);
  CheckEdges(self, bins);
  return Histogram(Points(self), bins, weight, density);
}

}  // namespace torch_xla
