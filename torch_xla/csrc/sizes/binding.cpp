#include "sizes/binding.h"

#include <algorithm>
#include <unordered_map>

#include "XLAOps.h"
#include "ir/attributes.h"
#include "runtime/platform.h"
#include "tensor/device.h"
#include "tensor/node_factory.h"
#include "tensor/view.h"

namespace torch_xla::sizes {
namespace {

/// Sizes whose inputs have this much padding, in percent, or whose results an accelerator copies to
/// the host to take them apart, get a program of their own after so many runs. So a size that comes
/// now and then costs no compilation, and a loop over many sizes costs few.
constexpr double kMuchPadding = 12.5;
constexpr int kManyRuns = 64;
constexpr int kMaxExact = 4;

ir::Value Strided(const ir::Value& of, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  ir::Words words;
  ir::AttributeWriter writer(words);
  writer.IntList(sizes);
  writer.IntList(strides);
  writer.Int(0);
  return tensor::MakeNode(&ir::ops::as_strided, {of}, std::move(words),
                          ir::GetShape(of.shape()->dtype, sizes));
}

/// The sizes of a layout's factors, and the strides that the factors have in the bounded array.
struct Factors {
  std::vector<int64_t> sizes;
  tensor::Ints strides;
};
Factors FactorsOf(const BoundedLayout& layout) {
  Factors factors;
  std::vector<int64_t> bounds;
  for (const BoundedDim& dim : layout) {
    for (const Factor& factor : dim) {
      factors.sizes.push_back(factor.size);
      bounds.push_back(factor.bound);
    }
  }
  factors.strides = tensor::ContiguousStrides(bounds);
  return factors;
}

/// Where a leaf's number lies among the packed numbers.
struct Place {
  bool is_float;
  int32_t index, count;
};
/// Calls `visit` for each leaf that is a packed number, in the order of CollectGraph. Returns how
/// many floats and integers there are.
template <typename Visit>
std::pair<int32_t, int32_t> VisitNumbers(const tensor::Graph& graph, const Visit& visit) {
  int32_t floats = 0, integers = 0;
  size_t next_data = 0;
  for (size_t i = 0; i < graph.order.size(); ++i) {
    const ir::Node& node = *graph.order[i];
    c10::Scalar value;
    if (&node.op() == &ir::ops::device_data) {
      if (graph.IsParameter(i, next_data)) {
        ++next_data;
        continue;
      }
      value = *static_cast<const tensor::DeviceData*>(node.payload())->fill();
      if (tensor::IsSpecial(value)) continue;
    } else if (&node.op() == &ir::ops::scalar) {
      value = ir::AttributeReader(node.attributes()).Scalar();
    } else {
      continue;
    }
    const bool is_float = value.isComplex() || value.isFloatingPoint();
    const int32_t count = value.isComplex() ? 2 : 1;
    int32_t& next = is_float ? floats : integers;
    visit(node, Place{is_float, next, count});
    next += count;
  }
  return {floats, integers};
}

}  // namespace

template <typename T>
bool Binding::Numbers<T>::Fits(const std::vector<T>& given) const {
  return given.size() == first_attribute + attributes.size() &&
         std::equal(attributes.begin(), attributes.end(),
                    given.begin() + static_cast<std::ptrdiff_t>(first_attribute));
}

template <typename T>
std::vector<T> Binding::Numbers<T>::Of(const std::vector<T>& given) const {
  std::vector<T> result;
  result.reserve(values.size());
  for (const auto& [value, from] : values)
    result.push_back(from < 0 ? value : given[static_cast<size_t>(from)]);
  return result;
}

Binding::Binding(const tensor::Graph& exact, int device, const tensor::DeviceSet* devices,
                 const BoundedGraph& bounded, const tensor::Graph& bulk,
                 c10::Scalar (*padding_of)(c10::ScalarType dtype))
    : padding_(bounded.Padding()), exact_(bounded.exact()) {
  std::unordered_map<const tensor::DeviceData*, int64_t> places;
  for (const tensor::DeviceDataPtr& data : exact.data) {
    places.emplace(data.get(), static_cast<int64_t>(parameters_.size()));
    parameters_.emplace_back(data->shape(), MarkedBounds(*data));
  }
  for (const ir::Value& root : exact.roots) roots_.push_back(root.shape());
  // The host's operations read placeholders, which Apply binds to arrays.
  const auto leaf_of = [&](ir::ShapeRef shape) {
    return tensor::MakeLeaf(tensor::MakePromise(shape, device, devices));
  };
  for (const BoundedGraph::Padded& padded : bounded.padded()) {
    const ir::ShapeRef shape = padded.exact->shape();
    // Each dimension of an input is one factor, so it is padded at its end.
    ir::Words words;
    std::vector<int64_t> pad;
    for (size_t d = shape->rank(); d-- > 0;)
      pad.insert(pad.end(), {0, BoundOf(padded.layout[d]) - shape->dims[d]});
    ir::AttributeWriter(words).IntList(pad);
    Pad one{static_cast<size_t>(places.at(padded.exact.get())), leaf_of(shape), {}};
    one.padded = tensor::MakeNode(
        &ir::ops::constant_pad_nd,
        {one.leaf, tensor::MakeConstant(padding_of(shape->dtype), shape->dtype, true)},
        std::move(words), padded.bounded->shape());
    places.emplace(padded.bounded.get(), ~static_cast<int64_t>(pads_.size()));
    pads_.push_back(std::move(one));
  }
  for (const tensor::DeviceDataPtr& data : bulk.data) inputs_.push_back(places.at(data.get()));
  std::vector<ir::Value> leaves(bulk.roots.size());
  outputs_.assign(bulk.roots.size(), {-1, nullptr});
  for (size_t i = 0; i < bulk.roots.size(); ++i) outputs_[i].second = bulk.roots[i].shape();
  for (size_t i = 0; i < exact.roots.size(); ++i) {
    const BoundedGraph::Result& root = bounded.Of(exact.roots[i]);
    const auto place =
        static_cast<size_t>(std::ranges::find(bulk.roots, root.value) - bulk.roots.begin());
    if (!root.varies) {
      if (outputs_[place].first >= 0) throw SizesRefused{"two results are the same"};
      outputs_[place].first = static_cast<int64_t>(i);
      continue;
    }
    if (!leaves[place]) leaves[place] = leaf_of(root.value.shape());
    const Factors factors = FactorsOf(root.layout);
    const auto& dims = exact.roots[i].shape()->dims;
    Part part{i, place, leaves[place], {}, {}};
    part.part = Strided(part.leaf, factors.sizes, factors.strides);
    part.result = Strided(part.part, dims, tensor::ContiguousStrides(dims));
    parts_.push_back(std::move(part));
  }
  TakeNumbers(exact, bounded, bulk);
}

void Binding::TakeNumbers(const tensor::Graph& exact, const BoundedGraph& bounded,
                          const tensor::Graph& bulk) {
  std::unordered_map<const ir::Node*, Place> places;
  const auto [floats, integers] = VisitNumbers(
      exact, [&](const ir::Node& node, const Place& place) { places.emplace(&node, place); });
  // A fill whose size varies was rewritten to a broadcast of this number.
  for (const auto& [number, leaf] : bounded.fills()) {
    if (const auto place = places.find(leaf); place != places.end())
      places.emplace(number, Place(place->second));
  }
  floats_.first_attribute = static_cast<size_t>(floats);
  integers_.first_attribute = static_cast<size_t>(integers);
  floats_.attributes.assign(exact.floats.begin() + floats, exact.floats.end());
  integers_.attributes.assign(exact.integers.begin() + integers, exact.integers.end());
  for (double value : bulk.floats) floats_.values.emplace_back(value, -1);
  for (int64_t value : bulk.integers) integers_.values.emplace_back(value, -1);
  VisitNumbers(bulk, [&](const ir::Node& node, const Place& place) {
    const auto from = places.find(&node);
    if (from == places.end()) return;
    if (from->second.is_float != place.is_float || from->second.count != place.count)
      throw SizesRefused{"a number has another type"};
    for (int32_t k = 0; k < place.count; ++k) {
      const auto at = static_cast<size_t>(place.index + k);
      (place.is_float ? floats_.values[at].second : integers_.values[at].second) =
          from->second.index + k;
    }
  });
}

bool Binding::Fits(const tensor::Graph& graph) const {
  return std::ranges::equal(graph.data, parameters_,
                            [](const tensor::DeviceDataPtr& data, const auto& parameter) {
                              return data->shape() == parameter.first &&
                                     MarkedBounds(*data) == parameter.second;
                            }) &&
         std::ranges::equal(
             graph.roots, roots_,
             [](const ir::Value& root, ir::ShapeRef shape) { return root.shape() == shape; }) &&
         floats_.Fits(graph.floats) && integers_.Fits(graph.integers);
}

void Binding::Apply(tensor::Arguments& execution, int device,
                    const tensor::DeviceSet* devices) const {
  const auto copies = [&] { return !parts_.empty() && !runtime::IsHost(tensor::Platform()); };
  if (runs_.fetch_add(1, std::memory_order_relaxed) + 1 == kManyRuns &&
      (padding_ >= kMuchPadding || copies()) && exact_->fetch_add(1) < kMaxExact)
    gives_way_.store(true, std::memory_order_relaxed);
  auto host = std::make_unique<tensor::HostEdges>();
  std::vector<tensor::DeviceDataPtr> padded, inputs, outputs;
  for (const Pad& pad : pads_) {
    const tensor::DeviceDataPtr& exact = execution.inputs[pad.input];
    padded.push_back(tensor::MakePromise(pad.padded.shape(), device, devices, exact->location()));
    host->before.Bind(pad.leaf, exact);
    host->before.Add(*pad.padded.node);
    host->before.Promise(pad.padded, padded.back());
  }
  for (int64_t input : inputs_)
    inputs.push_back(input < 0 ? padded[static_cast<size_t>(~input)]
                               : execution.inputs[static_cast<size_t>(input)]);
  for (const auto& [exact, shape] : outputs_)
    outputs.push_back(exact < 0 ? tensor::MakePromise(shape, device, devices)
                                : execution.outputs[static_cast<size_t>(exact)]);
  for (const Part& part : parts_) {
    const tensor::DeviceDataPtr &exact = execution.outputs[part.output],
                                &whole = outputs[part.whole];
    if (!whole->location()) whole->set_location(exact->location());
    host->after.Bind(part.leaf, whole);
    host->after.Add(*part.part.node);
    host->after.Add(*part.result.node);
    host->after.Promise(part.result, exact);
  }
  execution.inputs = std::move(inputs);
  execution.floats = floats_.Of(execution.floats);
  execution.integers = integers_.Of(execution.integers);
  execution.outputs = std::move(outputs);
  execution.host = std::move(host);
}

bool Binding::IsDonated(size_t input, const std::vector<int>& aliases) const {
  for (size_t i = 0; i < aliases.size(); ++i) {
    if (aliases[i] >= 0 && inputs_[i] == static_cast<int64_t>(input)) return true;
  }
  return false;
}

}  // namespace torch_xla::sizes
