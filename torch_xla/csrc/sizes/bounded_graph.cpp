#include "sizes/bounded_graph.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "XLAOps.h"
#include "ir/attributes.h"
#include "tensor/node_factory.h"
#include "tensor/view.h"

namespace torch_xla::sizes {
namespace {

ir::NodePtr PointerTo(const ir::Node& node) { return ir::NodePtr(const_cast<ir::Node*>(&node)); }

/// A size above this is not padded beyond the first size of its structure. A batch that is a little
/// shorter than the others, which fill the memory, so takes no more than they do.
constexpr int64_t kAlwaysBuckets = 64;

/// Whether a view has each element of its base exactly once.
bool IsWhole(const ir::Node& view) {
  ir::AttributeReader attributes(view.attributes());
  const auto sizes = attributes.IntList(), strides = attributes.IntList();
  return view.shape()->numel == view.operands()[0].shape()->numel &&
         tensor::FillsBlock(sizes, strides);
}

}  // namespace

ResultShapes ShapesOf(const tensor::Graph& graph) {
  ResultShapes shapes{.nodes = graph.order, .loops = {}, .shapes = {}, .begin = {}};
  for (size_t k = 0; k < shapes.nodes.size(); ++k) {
    const ir::Node* node = shapes.nodes[k];
    shapes.begin.push_back(static_cast<uint32_t>(shapes.shapes.size()));
    for (size_t i = 0; i < node->num_outputs(); ++i) shapes.shapes.push_back(node->shape(i));
    const std::shared_ptr<const Loop> loop = FindLoop(*node);
    if (!loop) continue;
    shapes.loops.emplace(node, ResultShapes::LoopAt{loop, shapes.nodes.size()});
    for (const auto& function : loop->functions)
      shapes.nodes.insert(shapes.nodes.end(), function->nodes.begin(), function->nodes.end());
  }
  return shapes;
}

BoundedGraph::BoundedGraph(const tensor::Graph& graph, ResultShapes shapes, VaryingSizes varying,
                           int device, const tensor::DeviceSet* devices)
    : graph_(graph),
      varying_(std::move(varying)),
      shapes_(std::move(shapes)),
      device_(device),
      devices_(devices),
      zeroed_(varying_.zeroed) {}

void BoundedGraph::Rewrite(FindBoundedRule rule_of) {
  rule_of_ = rule_of;
  FindMarks();
  size_t known = zeroed_.size();  // of an earlier rewriting of the structure
  const auto again = [&] {
    results_.clear(), numbers_.clear(), masks_.clear();
    padded_.clear(), fills_.clear(), missing_.clear();
    RewriteOnce();
  };
  // A size may be another one and a constant more, as that of x[1:] is.
  const auto guess = [&](const std::pair<int64_t, int64_t>& asked) {
    const auto found = std::ranges::find_if(made_, [&](const auto& made) {
      return made.second.size() == 1 &&
             made.first.first - asked.first == made.first.second - asked.second;
    });
    if (found == made_.end()) return false;
    const int64_t bound = BoundOf(found->second) + asked.second - found->first.second;
    if (bound < asked.second) return false;
    made_.emplace(asked, BoundedDim{{asked.second, bound, asked.first, true}});
    return true;
  };
  // A size may be asked for before the node that makes it: a gradient's graph begins at its end.
  constexpr int kMaxTries = 4;
  for (int tries = 1;; ++tries) {
    try {
      again();
      break;
    } catch (const SizesRefused&) {
      const bool is_known = std::ranges::any_of(
          missing_, [&](const auto& size) { return made_.contains(size) || guess(size); });
      if (!is_known || tries == kMaxTries) throw;
    }
  }
  while (zeroed_.size() != known) {
    known = zeroed_.size();
    again();
  }
}

void BoundedGraph::RewriteOnce() {
  // Visit the inputs first: the other nodes take the bounds of their sizes from them.
  bool chooses = false;  // a number of elements that a mask says
  for (position_ = 0; position_ < graph_.order.size(); ++position_) {
    node_ = graph_.order[position_];
    if (&node_->op() == &ir::ops::device_data) VisitLeaf();
    chooses |= &node_->op() == &ir::ops::nonzero_static && ResultVaries(0, 0);
  }
  node_ = nullptr;
  const auto is_fixed = [&] { return padded_.empty() && fills_.empty() && made_.empty(); };
  constexpr const char* kFixed = "the sizes that vary are 0 or 1, or the first of their family";
  if (is_fixed() && !chooses && !makes()) throw SizesRefused{kFixed};
  for (size_t position = 0; position < graph_.order.size(); ++position) {
    if (&graph_.order[position]->op() != &ir::ops::device_data) RewriteNode(position);
  }
  node_ = nullptr;
  if (is_fixed() && !chooses) throw SizesRefused{kFixed};
}

void BoundedGraph::RewriteNode(size_t position) {
  position_ = position;
  node_ = shapes_.nodes[position];
  bool varies = false, makes = false;
  for (const ir::Value& operand : node_->operands()) varies |= Of(operand).varies;
  for (size_t i = 0; i < node_->num_outputs(); ++i)
    makes |= varying_.varies[shapes_.begin[position] + i] != 0;
  const BoundedRule rule = varies || makes ? rule_of_(node_->op(), /*makes=*/!varies) : nullptr;
  results_[node_].clear();
  if (!varies && !rule) return Keep();
  if (!rule) throw SizesRefused{"no rule says what it does with padding"};
  results_[node_].resize(node_->num_outputs());
  arguments_ = ArgumentsOf(*node_);
  rule(*this);
}

const ResultShapes::LoopAt* BoundedGraph::loop() const {
  const auto found = shapes_.loops.find(node_);
  return found == shapes_.loops.end() ? nullptr : &found->second;
}

std::vector<BoundedGraph::Result> BoundedGraph::Inside(const LoopFunction& function, size_t begin,
                                                       const std::vector<Result>& parameters) {
  const auto outside = std::tuple(node_, position_, arguments_);
  for (size_t i = 0; i < parameters.size(); ++i) {
    Result& parameter = (results_[function.nodes[i]] = {parameters[i]})[0];
    parameter.source = {begin + i, 0};
    MaskIfAsked(parameter);
  }
  for (size_t i = parameters.size(); i < function.nodes.size(); ++i) RewriteNode(begin + i);
  std::tie(node_, position_, arguments_) = outside;
  std::vector<Result> results;
  for (const ir::Value& output : function.outputs) results.push_back(Of(output));
  return results;
}

const BoundedGraph::Result& BoundedGraph::Of(const ir::Value& value) const {
  return results_.at(value.node.get())[value.index];
}

template <typename Visit>
void BoundedGraph::VisitSizes(const Visit& visit) const {
  std::set<std::pair<int64_t, int64_t>> seen;
  for (const Padded& padded : padded_) {
    const auto input = std::ranges::find(graph_.data, padded.exact) - graph_.data.begin();
    for (size_t d = 0; d < padded.layout.size(); ++d) {
      for (const Factor& factor : padded.layout[d]) {
        if (factor.varies && seen.emplace(factor.first, factor.size).second)
          visit(std::to_string(input), std::to_string(d), factor);
      }
    }
  }
}

std::string BoundedGraph::Description() const {
  std::string text;
  VisitSizes([&](const std::string& input, const std::string& dim, const Factor& factor) {
    text += "dimension " + dim + " of input " + input + " is " + std::to_string(factor.size) +
            ", its bound " + std::to_string(factor.bound) + "; ";
  });
  return text + std::to_string(std::lround(Padding())) + " % of the inputs is padding";
}

std::string BoundedGraph::Bounds() const {
  std::string text;
  VisitSizes([&](const std::string& input, const std::string& dim, const Factor& factor) {
    text += (text.empty() ? "" : ",") + input + "." + dim + "<=" + std::to_string(factor.bound);
  });
  return text;
}

double BoundedGraph::Padding() const {
  int64_t exact = 0, bounded = 0;
  for (const Padded& padded : padded_) {
    exact += padded.exact->shape()->numel;
    bounded += padded.bounded->shape()->numel;
  }
  if (padded_.empty()) {
    for (const auto& [size, dim] : made_) exact += SizeOf(dim), bounded += BoundOf(dim);
  }
  return bounded > 0 ? 100 - 100 * static_cast<double>(exact) / static_cast<double>(bounded) : 0;
}

std::vector<Argument> ArgumentsOf(const ir::Node& node) {
  std::vector<Argument> arguments;
  const ir::Words& words = node.attributes();
  size_t word = 0, operand = 0;
  const auto next = [&] {
    if (word >= words.size()) throw SizesRefused{"its attributes cannot be read"};
    return words[word++];
  };
  using ir::ArgKind;
  for (const ir::ArgSpec& spec : node.op().args) {
    Argument argument{.name = spec.name, .operand = operand};
    size_t words_of = 0;
    const auto list = [&] { words_of = next(); };
    switch (spec.kind) {
      case ArgKind::kTensor:
      case ArgKind::kScalar:
        argument.operands = 1;
        break;
      case ArgKind::kOptionalTensor:
      case ArgKind::kOptionalScalar:
        argument.given = next() != 0;
        argument.operands = argument.given;
        break;
      case ArgKind::kTensorList:
      case ArgKind::kScalarList:
        argument.operands = next();
        break;
      case ArgKind::kOptionalTensorList:
        for (uint64_t rest = next(); rest > 0; --rest) {
          argument.present.push_back(next() != 0);
          argument.operands += argument.present.back();
        }
        break;
      case ArgKind::kConstantScalar:
        words_of = 3;
        break;
      case ArgKind::kOptionalConstantScalar:
        argument.given = next() != 0;
        words_of = argument.given ? 3 : 0;
        break;
      case ArgKind::kInt:
      case ArgKind::kBool:
      case ArgKind::kDouble:
      case ArgKind::kDtype:
        words_of = 1;
        break;
      case ArgKind::kOptionalInt:
      case ArgKind::kOptionalBool:
      case ArgKind::kOptionalDouble:
      case ArgKind::kOptionalDtype:
        argument.given = next() != 0;
        words_of = argument.given;
        break;
      case ArgKind::kIntList:
      case ArgKind::kBoolList:
      case ArgKind::kDoubleList:
        list();
        break;
      case ArgKind::kOptionalIntList:
      case ArgKind::kOptionalDoubleList:
        argument.given = next() != 0;
        if (argument.given) list();
        break;
      case ArgKind::kString:
        words_of = (next() + 7) / 8;
        break;
      case ArgKind::kOptionalString:
        argument.given = next() != 0;
        if (argument.given) words_of = (next() + 7) / 8;
        break;
      case ArgKind::kIgnored:
        break;
    }
    argument.word = word;
    argument.words = words_of;
    word += words_of;
    operand += argument.operands;
    if (word > words.size()) throw SizesRefused{"its attributes cannot be read"};
    arguments.push_back(std::move(argument));
  }
  // An extra word records a default dtype other than float32.
  if (word != words.size() || operand != node.operands().size())
    throw SizesRefused{"its attributes cannot be read"};
  return arguments;
}

bool BoundedGraph::Has(std::string_view name) const {
  return std::ranges::any_of(arguments_, [&](const Argument& a) { return a.name == name; });
}

const Argument& BoundedGraph::Named(std::string_view name) const {
  const auto found =
      std::ranges::find_if(arguments_, [&](const Argument& a) { return a.name == name; });
  if (found == arguments_.end()) throw SizesRefused{"it has no argument " + std::string(name)};
  return *found;
}

int64_t BoundedGraph::Int(std::string_view name) const {
  return static_cast<int64_t>(node_->attributes()[Named(name).word]);
}

c10::IntArrayRef BoundedGraph::Ints(std::string_view name) const {
  const Argument& argument = Named(name);
  if (!argument.given) return {};
  const auto* words = reinterpret_cast<const int64_t*>(node_->attributes().data() + argument.word);
  return {words, argument.words};
}

const BoundedGraph::Result* BoundedGraph::Tensor(std::string_view name) const {
  const Argument& argument = Named(name);
  return argument.operands == 1 ? &In(argument.operand) : nullptr;
}

int64_t BoundedGraph::Dim(int64_t dim, size_t rank) const {
  return dim < 0 ? dim + static_cast<int64_t>(rank) : dim;
}

void BoundedGraph::FindMarks() {
  for (size_t i = 0; i < graph_.data.size(); ++i) {
    const tensor::DeviceData& data = *graph_.data[i];
    const ir::ShapeRef bounds = MarkedBounds(data);
    const uint32_t result = shapes_.begin[graph_.data_positions[i]];
    const ir::ShapeRef first = varying_.first[result];
    for (size_t d = 0; varying_.varies[result] != 0 && d < first->rank(); ++d) {
      const int64_t size = data.shape()->dims[d], least = first->dims[d];
      if (least < size || least <= kAlwaysBuckets || varying_.grows) continue;
      const auto [it, is_new] = least_.emplace(size, least);
      if (!is_new) it->second = std::min(it->second, least);
    }
    for (size_t d = 0; bounds && d < bounds->rank(); ++d) {
      if (bounds->dims[d] > 0)
        marked_.emplace(std::pair(first->dims[d], data.shape()->dims[d]), bounds->dims[d]);
    }
  }
  if (!varying_.grows) return;
  // Tokens, and a cache that is one token shorter, would outgrow a bucket in different steps. All
  // sizes near the largest one share its bucket, so that they change buckets in the same step.
  constexpr int64_t kNear = 8;
  std::set<std::pair<int64_t, int64_t>> sizes;
  int64_t largest = 0;
  for (uint32_t position : graph_.data_positions) {
    const uint32_t result = shapes_.begin[position];
    const ir::ShapeRef shape = shapes_.shapes[result];
    for (size_t d = 0; d < shape->rank() && d < 64; ++d) {
      if ((varying_.varies[result] >> d & 1) == 0) continue;
      sizes.emplace(varying_.first[result]->dims[d], shape->dims[d]);
      largest = std::max(largest, shape->dims[d]);
    }
  }
  for (const auto& size : sizes) {
    if (size.second >= largest - kNear) marked_.emplace(size, BucketOf(largest, /*grows=*/true));
  }
}

void BoundedGraph::VisitLeaf() {
  auto* data = static_cast<tensor::DeviceData*>(node_->payload());
  c10::SmallVector<Result, 1>& results = results_[node_];
  results.resize(1);
  const uint32_t result = shapes_.begin[position_];
  const ir::ShapeRef shape = node_->shape();
  BoundedLayout layout = FixedLayout(shape->dims);
  for (size_t d = 0; d < layout.size(); ++d) {
    if (!ResultVaries(0, d)) continue;
    const int64_t size = shape->dims[d], first = varying_.first[result]->dims[d];
    if (size < 2) continue;  // a size of its own: such arrays are empty, or are broadcast
    const auto marked = marked_.find({first, size});
    int64_t bound = BucketOf(size, varying_.grows);
    if (const auto least = least_.find(size); least != least_.end())
      bound = std::min(bound, least->second);
    if (marked != marked_.end()) bound = marked->second;
    layout[d] = {{size, bound, first, true}};
    made_.emplace(std::pair(first, size), layout[d]);
  }
  if (!Varies(layout)) {
    results[0] = {{PointerTo(*node_), 0}, std::move(layout), false};
    return;
  }
  const ir::ShapeRef bounded = ir::GetShape(shape->dtype, BoundsOf(layout));
  if (tensor::IsProgramFill(*data)) {
    results[0] = {tensor::Fill(*data->fill(), bounded), std::move(layout), true};
    results[0].uniform = true;
    fills_.emplace_back(results[0].value.node->operands()[0].node.get(), node_);
    return;
  }
  tensor::DeviceDataPtr promise = tensor::MakePromise(bounded, device_, devices_, data->location());
  results[0] = {tensor::MakeLeaf(promise), layout, true};
  results[0].source = {position_, 0};
  MaskIfAsked(results[0]);
  padded_.push_back(
      {node_, tensor::DeviceDataPtr::reclaim_copy(data), std::move(promise), std::move(layout)});
}

void BoundedGraph::Keep() {
  c10::SmallVector<Result, 1>& results = results_[node_];
  bool same = true;
  ir::Node::Operands operands;
  for (const ir::Value& operand : node_->operands()) {
    operands.push_back(Of(operand).value);
    same &= operands.back() == operand;
  }
  ir::NodePtr node = PointerTo(*node_);
  if (!same) node = WithOperands(*node_, std::move(operands));
  for (size_t i = 0; i < node_->num_outputs(); ++i) {
    const ir::ShapeRef shape = node_->shape(i);
    results.push_back({{node, static_cast<uint32_t>(i)},
                       shape ? FixedLayout(shape->dims) : BoundedLayout{},
                       false});
  }
}

bool BoundedGraph::ResultVaries(size_t result, size_t dim) const {
  return dim < 64 && (varying_.varies[shapes_.begin[position_] + result] >> dim & 1) != 0;
}

BoundedDim BoundedGraph::MadeAs(const std::pair<int64_t, int64_t>& size, int64_t most) {
  if (const auto found = made_.find(size); found != made_.end()) return found->second;
  if (makes() && size.second > 1) {
    const int64_t bound = std::min(BucketOf(size.second, varying_.grows), most);
    return made_[size] = {{size.second, bound, size.first, true}};
  }
  missing_.insert(size);
  return FixedDim(size.second);
}

BoundedDim BoundedGraph::Made(size_t result, size_t dim, int64_t most) {
  const int64_t size = node_->shape(result)->dims[dim];
  if (!ResultVaries(result, dim)) return FixedDim(size);
  return MadeAs({varying_.first[shapes_.begin[position_] + result]->dims[dim], size}, most);
}

BoundedLayout BoundedGraph::MadeLayout(size_t result) {
  BoundedLayout layout;
  for (size_t d = 0; d < node_->shape(result)->rank(); ++d) layout.push_back(Made(result, d));
  return layout;
}

ir::Value BoundedGraph::Make(const ir::OpSpec& op, ir::Node::Operands operands,
                             ir::Words words) const {
  ir::NodePtr node = tensor::MakeOpNode(&op, std::move(operands), std::move(words));
  node->set_location(node_->location());
  return {std::move(node), 0};
}

ir::Value BoundedGraph::View(const ir::Value& of, std::vector<int64_t> sizes,
                             std::vector<int64_t> strides) const {
  ir::Words words;
  ir::AttributeWriter writer(words);
  writer.IntList(sizes);
  writer.IntList(strides);
  writer.IntNumber(0);
  return tensor::MakeNode(&ir::ops::as_strided, {of}, std::move(words),
                          ir::GetShape(of.shape()->dtype, sizes));
}

ir::Value BoundedGraph::SizeOfFactor(const Factor& factor) {
  ir::Value& number = numbers_[{factor.first, factor.size}];
  if (!number) number = tensor::MakeScalarParameter(factor.size, c10::ScalarType::Long, false);
  return number;
}

ir::Value BoundedGraph::Count(const BoundedLayout& layout, const std::vector<bool>& dims) {
  int64_t count = 1;
  for (size_t d = 0; d < layout.size(); ++d) {
    if (dims[d]) count *= SizeOf(layout[d]);
  }
  return tensor::MakeScalarParameter(static_cast<double>(count), c10::ScalarType::Double, true);
}

ir::Value BoundedGraph::Iota(int64_t size) const {
  return tensor::MakeNode(&ir::ops::arange,
                          {tensor::MakeScalar(int64_t{0}, c10::ScalarType::Long, false),
                           tensor::MakeScalar(int64_t{1}, c10::ScalarType::Long, false)},
                          {}, ir::GetShape(c10::ScalarType::Long, {size}));
}

ir::Value BoundedGraph::IsWithin(const BoundedDim& dim) {
  std::vector<int64_t> key;
  for (const Factor& f : dim) key.insert(key.end(), {f.size, f.bound, f.first, f.varies});
  ir::Value& mask = masks_[key];
  if (mask) return mask;
  if (dim.size() == 1) {
    return mask = Make(ir::ops::lt_Tensor, {Iota(dim[0].bound), SizeOfFactor(dim[0])});
  }
  std::vector<int64_t> bounds;
  for (const Factor& factor : dim) bounds.push_back(factor.bound);
  ir::Value all;
  for (size_t i = 0; i < dim.size(); ++i) {
    if (!dim[i].varies) continue;
    std::vector<int64_t> sizes(dim.size(), 1), strides(dim.size(), 1);
    sizes[i] = dim[i].bound;
    const ir::Value one = View(IsWithin({dim[i]}), sizes, strides);
    all = all ? Make(ir::ops::logical_and, {all, one}) : one;
  }
  // The recursion may have added masks, but a std::map keeps `mask` valid.
  return mask = View(tensor::Expand(all, bounds), {BoundOf(dim)}, {1});
}

ir::Value BoundedGraph::Masked(const Result& of, const c10::Scalar& by,
                               const std::vector<bool>& dims) {
  const bool is_zero = by.isFloatingPoint() ? by.toDouble() == 0 : by.toLong() == 0;
  if (is_zero && of.zero) return of.value;
  ir::Value masked = Where(of, tensor::MakeConstant(by, of.value.shape()->dtype, false), dims);
  if (is_zero && of.source && !(masked == of.value)) zeroed_.emplace(*of.source, by);
  return masked;
}

ir::Value BoundedGraph::Within(const BoundedLayout& layout, const std::vector<bool>& dims) {
  ir::Value all;
  for (size_t d = 0; d < layout.size(); ++d) {
    if (!dims[d] || !Varies(layout[d])) continue;
    ir::Value one = IsWithin(layout[d]);
    std::vector<int64_t> sizes(layout.size(), 1), strides(layout.size(), 1);
    sizes[d] = BoundOf(layout[d]);
    if (layout.size() != 1) one = View(one, sizes, strides);
    all = all ? Make(ir::ops::logical_and, {all, one}) : one;
  }
  return all;
}

ir::Value BoundedGraph::Where(const Result& of, const ir::Value& by,
                              const std::vector<bool>& dims) {
  const ir::Value within = Within(of.layout, dims);
  return within ? Make(ir::ops::where_self, {within, of.value, by}) : of.value;
}

ir::Value BoundedGraph::Masked(const Result& of, const c10::Scalar& by) {
  return Masked(of, by, std::vector<bool>(of.layout.size(), true));
}

void BoundedGraph::Set(size_t result, ir::Value value, BoundedLayout layout) {
  const ir::ShapeRef exact = node_->shape(result), shape = value.shape();
  bool fits = shape && shape->dtype == exact->dtype && layout.size() == exact->rank() &&
              c10::IntArrayRef(shape->dims) == c10::IntArrayRef(BoundsOf(layout));
  for (size_t d = 0; fits && d < layout.size(); ++d) {
    fits = SizeOf(layout[d]) == exact->dims[d];
    if (!Varies(layout[d]) || !ResultVaries(result, d)) continue;
    BoundedDim& known =
        made_[{varying_.first[shapes_.begin[position_] + result]->dims[d], exact->dims[d]}];
    if (known.size() < layout[d].size()) known = layout[d];  // of a fill it may be one size
  }
  if (!fits) throw SizesRefused{"its padded result would be " + (shape ? shape->ToString() : "")};
  const bool varies = Varies(layout);
  Result& made = results_[node_][result];
  made = {std::move(value), std::move(layout), varies};
  made.source = {position_, result};
  if (&node_->op() == &ir::ops::as_strided && IsWhole(*node_)) {
    made.source = In(0).source;
    made.zero = In(0).zero;
  }
  MaskIfAsked(made);
}

void BoundedGraph::MaskIfAsked(Result& made) {
  if (!made.varies || made.zero || !made.source) return;
  const auto asked = zeroed_.find(*made.source);
  if (asked == zeroed_.end()) return;
  made.value = Where(made, tensor::MakeConstant(asked->second, made.value.shape()->dtype, false),
                     std::vector<bool>(made.layout.size(), true));
  made.zero = true;
}

void BoundedGraph::Emit(ir::Node::Operands operands, ir::Words words,
                        const std::vector<BoundedLayout>& layouts, const ir::OpSpec* op) {
  const ir::NodePtr node =
      tensor::MakeOpNode(op ? op : &node_->op(), std::move(operands), std::move(words));
  node->set_location(node_->location());
  if (node->num_outputs() != node_->num_outputs() || layouts.size() != node_->num_outputs())
    throw SizesRefused{"it would have other results"};
  for (size_t i = 0; i < layouts.size(); ++i) {
    if (!node_->shape(i)) continue;
    Set(i, {node, static_cast<uint32_t>(i)}, layouts[i]);
  }
}

void BoundedGraph::EmitShaped(ir::Node::Operands operands, ir::Words words,
                              const BoundedLayout& layout) {
  ir::Value value = tensor::MakeNode(&node_->op(), std::move(operands), std::move(words),
                                     ir::GetShape(node_->shape()->dtype, BoundsOf(layout)));
  value.node->set_location(node_->location());
  Set(0, std::move(value), layout);
}

ir::Node::Operands BoundedGraph::Values() const {
  ir::Node::Operands operands;
  for (const ir::Value& operand : node_->operands()) operands.push_back(Of(operand).value);
  return operands;
}

}  // namespace torch_xla::sizes
