#include "lowering/internal_ops.h"

#include "lowering/arg_reader.h"
#include "lowering/elementwise.h"
#include "lowering/random.h"
#include "lowering/strided_view.h"
#include "stablehlo/text.h"

namespace torch_xla {
namespace lowering {
namespace {

[[noreturn]] void LowerLeaf(LoweringContext&, const ir::Node& node) {
  // The executor binds leaves to parameters before it lowers anything.
  throw std::logic_error(std::string(node.op().name) + " is a leaf");
}

void LowerConstant(LoweringContext& cx, const ir::Node& node) {
  c10::Scalar value = ir::AttributeReader(node.attributes()).Scalar();
  stablehlo::Literal literal =
      value.isComplex()         ? stablehlo::Literal(std::complex<double>(value.toComplexDouble()))
      : value.isFloatingPoint() ? stablehlo::Literal(value.toDouble())
                                : stablehlo::Literal(value.toLong());
  cx.SetOutputs(node, stablehlo::Constant(cx.builder(), literal, cx.output_type()));
}

void LowerToOutput(LoweringContext& cx, const ir::Node& node) {
  cx.SetOutputs(node, ToOutput(cx, cx.Lowered(node.operands()[0])));
}

/// The last of a view's attributes.
ViewOffset Offset(LoweringContext& cx, ir::AttributeReader& attributes) {
  auto parameter = cx.NumberParameter(attributes.position());
  return {attributes.Int(), parameter};
}

void LowerView(LoweringContext& cx, const ir::Node& node) {
  ir::AttributeReader attributes(node.attributes());
  auto sizes = attributes.IntList(), strides = attributes.IntList();
  cx.SetOutputs(
      node, ReadStrided(cx.Lowered(node.operands()[0]), sizes, strides, Offset(cx, attributes)));
}

void LowerViewUpdate(LoweringContext& cx, const ir::Node& node) {
  ir::AttributeReader attributes(node.attributes());
  auto sizes = attributes.IntList(), strides = attributes.IntList();
  cx.SetOutputs(node, WriteStrided(cx.Lowered(node.operands()[0]), cx.Lowered(node.operands()[1]),
                                   sizes, strides, Offset(cx, attributes)));
}

/// Real and imaginary parts side by side in a new last dimension.
Value SplitComplex(Value x) {
  Dims dims = x.dims();
  dims.push_back(1);
  return stablehlo::Concatenate(
      {stablehlo::Reshape(stablehlo::Real(x), dims), stablehlo::Reshape(stablehlo::Imag(x), dims)},
      x.rank());
}

Value JoinComplex(Value x, Dims dims) {
  dims.push_back(2);
  x = stablehlo::Reshape(x, dims);
  auto part = [&](int64_t i) {
    Dims starts(dims.size(), 0), limits = dims;
    starts.back() = i;
    limits.back() = i + 1;
    Dims squeezed(dims.begin(), dims.end() - 1);
    return stablehlo::Reshape(stablehlo::Slice(x, starts, limits), squeezed);
  };
  return stablehlo::Complex(part(0), part(1));
}

/// Reinterprets bits; a ratio of widths splits or joins the last dimension.
Value BitcastTo(Value x, const stablehlo::Type& to) {
  if (x.element() == ElementType::kPred || to.element == ElementType::kPred) {
    // A bool is a byte to torch and a bit to XLA.
    Value byte = x.element() == ElementType::kPred ? stablehlo::Convert(x, ElementType::kU8) : x;
    return to.element == ElementType::kPred ? stablehlo::Convert(byte, ElementType::kPred)
                                            : BitcastTo(byte, to);
  }
  if (x.type() == to) return x;
  if (runtime::IsComplex(x.element())) {
    Value parts = SplitComplex(x);
    Dims flat = x.dims();
    (flat.empty() ? flat.emplace_back(1) : flat.back()) *= 2;
    return BitcastTo(stablehlo::Reshape(parts, flat), to);
  }
  if (runtime::IsComplex(to.element)) {
    Dims parts = to.dims;
    parts.push_back(2);
    return JoinComplex(BitcastTo(x, {stablehlo::RealOf(to.element), parts}), to.dims);
  }
  const auto from_width = static_cast<int64_t>(runtime::ByteWidth(x.element()));
  const auto to_width = static_cast<int64_t>(runtime::ByteWidth(to.element));
  if (from_width < to_width) {
    Dims dims = to.dims;
    dims.push_back(to_width / from_width);
    x = stablehlo::Reshape(x, dims);
  }
  return stablehlo::Reshape(stablehlo::BitcastConvert(x, to.element), to.dims);
}

void LowerBitcast(LoweringContext& cx, const ir::Node& node) {
  cx.SetOutputs(node, BitcastTo(cx.Lowered(node.operands()[0]), cx.output_type()));
}

void LowerArange(LoweringContext& cx, const ir::Node& node) {
  Value start = cx.Lowered(node.operands()[0]), step = cx.Lowered(node.operands()[1]);
  // In double as PyTorch does, or in integers where all are.
  ElementType element = runtime::IsFloat(start.element()) || runtime::IsFloat(step.element()) ||
                                runtime::IsFloat(cx.output_element())
                            ? cx.Physical(c10::ScalarType::Double)
                            : ElementType::kS64;
  Dims dims = cx.output_dims();
  Value index = stablehlo::Iota(cx.builder(), {element, dims}, 0);
  Value x =
      stablehlo::Add(To(start, element, dims), stablehlo::Multiply(index, To(step, element, dims)));
  cx.SetOutputs(node, ToOutputElement(cx, x));
}

void LowerEye(LoweringContext& cx, const ir::Node& node) {
  stablehlo::Type index{ElementType::kS64, cx.output_dims()};
  Value diagonal = stablehlo::Compare(stablehlo::Iota(cx.builder(), index, 0),
                                      stablehlo::Iota(cx.builder(), index, 1), Direction::kEq);
  cx.SetOutputs(node, ToOutputElement(cx, diagonal));
}

/// Which candidates stay when each one that stays removes those it overlaps further down the
/// order. Round k settles the first k candidates, so the fixed point is the greedy result;
/// it comes after as many rounds as the longest chain of removals has links.
void LowerSuppress(LoweringContext& cx, const ir::Node& node) {
  Value overlaps = cx.Lowered(node.operands()[0]), valid = cx.Lowered(node.operands()[1]);
  const Dims dims = overlaps.dims();
  const stablehlo::Type index{ElementType::kS64, dims};
  Value above = stablehlo::Compare(stablehlo::Iota(cx.builder(), index, 0),
                                   stablehlo::Iota(cx.builder(), index, 1), Direction::kLt);
  Value removes = stablehlo::And(overlaps, above);  // [i, j]: i removes j
  auto next = [&](std::span<const Value> state) -> std::vector<Value> {
    Value active = stablehlo::And(removes, stablehlo::BroadcastInDim(state[0], dims, {0}));
    Value removed = stablehlo::Reduce(active, {0}, ReduceOp::kOr);
    return {stablehlo::And(valid, stablehlo::Not(removed)), state[0]};
  };
  auto changed = [](std::span<const Value> state) -> std::vector<Value> {
    Value differs = stablehlo::Compare(state[0], state[1], Direction::kNe);
    return {stablehlo::Reduce(differs, {0}, ReduceOp::kOr)};
  };
  cx.SetOutputs(node, stablehlo::While({valid, stablehlo::Not(valid)}, changed, next)[0]);
}

/// A call of the user's functions, which see the types that the user does.
void LowerStableHloText(LoweringContext& cx, const ir::Node& node) {
  ArgReader args(cx, node);
  const std::string symbol = cx.builder().AddFunctions(args.String());
  std::vector<Value> operands = args.TensorList();
  for (size_t i = 0; i < operands.size(); ++i) {
    operands[i] = stablehlo::Convert(operands[i], NaturalType(cx.operand_shape(i)->dtype));
  }
  std::vector<Value> results = cx.builder().Call(symbol, operands);
  for (size_t i = 0; i < results.size(); ++i) {
    results[i] = stablehlo::Convert(results[i], cx.output_element(i));
  }
  cx.SetOutputs(node, results);
}

}  // namespace
}  // namespace lowering

namespace ir::ops {
namespace {

constexpr ArgSpec kValue[] = {{"value", ArgKind::kConstantScalar}};
constexpr ArgSpec kOneTensor[] = {{"self", ArgKind::kTensor}};
constexpr ArgSpec kSuppress[] = {{"overlaps", ArgKind::kTensor}, {"valid", ArgKind::kTensor}};
constexpr ArgSpec kView[] = {{"self", ArgKind::kTensor},
                             {"size", ArgKind::kIntList},
                             {"stride", ArgKind::kIntList},
                             {"storage_offset", ArgKind::kInt}};
constexpr ArgSpec kViewUpdate[] = {{"self", ArgKind::kTensor},
                                   {"value", ArgKind::kTensor},
                                   {"size", ArgKind::kIntList},
                                   {"stride", ArgKind::kIntList},
                                   {"storage_offset", ArgKind::kInt}};
constexpr ArgSpec kStableHlo[] = {{"text", ArgKind::kString}, {"inputs", ArgKind::kTensorList}};
constexpr ArgSpec kMultinomial[] = {
    {"seed", ArgKind::kTensor}, {"self", ArgKind::kTensor}, {"replacement", ArgKind::kBool}};

OpSpec Internal(const char* name, std::span<const ArgSpec> args, LowerFunction lower,
                const char* counter) {
  return {name, "", args, lower, &debug::GetCounter(counter)};
}

}  // namespace

const OpSpec device_data =
    Internal("xla::device_data", {}, lowering::LowerLeaf, "xla::device_data");
const OpSpec scalar = Internal("xla::scalar", kValue, lowering::LowerLeaf, "xla::scalar");
const OpSpec constant =
    Internal("prim::Constant", kValue, lowering::LowerConstant, "prim::Constant");
const OpSpec fill = Internal("xla::fill", kOneTensor, lowering::LowerToOutput, "xla::fill");
const OpSpec cast = Internal("xla::cast", kOneTensor, lowering::LowerToOutput, "xla::cast");
const OpSpec expand =
    Internal("aten::expand", kOneTensor, lowering::LowerToOutput, "xla::expand_value");
const OpSpec view = Internal("aten::as_strided", kView, lowering::LowerView, "xla::view_read");
const OpSpec view_update = Internal("xla::as_strided_view_update", kViewUpdate,
                                    lowering::LowerViewUpdate, "xla::view_update");
const OpSpec bitcast = Internal("xla::bitcast", kOneTensor, lowering::LowerBitcast, "xla::bitcast");
const OpSpec arange = Internal("aten::arange", {}, lowering::LowerArange, "xla::arange_value");
const OpSpec eye = Internal("aten::eye", {}, lowering::LowerEye, "xla::eye");
const OpSpec suppress = Internal("xla::suppress", kSuppress, lowering::LowerSuppress, "xla::nms");
const OpSpec stablehlo_text =
    Internal("torch_xla::stablehlo", kStableHlo, lowering::LowerStableHloText, "xla::stablehlo");

const OpSpec random_uniform =
    Internal("aten::uniform", {}, lowering::LowerRandomUniform, "xla::uniform_");
const OpSpec random_normal =
    Internal("aten::normal", {}, lowering::LowerRandomNormal, "xla::normal_");
const OpSpec random_integer =
    Internal("aten::random", {}, lowering::LowerRandomInteger, "xla::random_");
const OpSpec random_bernoulli =
    Internal("aten::bernoulli", {}, lowering::LowerRandomBernoulli, "xla::bernoulli");
const OpSpec random_exponential =
    Internal("aten::exponential", {}, lowering::LowerRandomExponential, "xla::exponential_");
const OpSpec random_poisson =
    Internal("aten::poisson", {}, lowering::LowerRandomPoisson, "xla::poisson");
const OpSpec random_binomial =
    Internal("aten::binomial", {}, lowering::LowerRandomBinomial, "xla::binomial");
const OpSpec random_gamma =
    Internal("aten::_standard_gamma", {}, lowering::LowerRandomGamma, "xla::_standard_gamma");
const OpSpec random_permutation =
    Internal("aten::randperm", {}, lowering::LowerRandomPermutation, "xla::randperm");
const OpSpec random_multinomial = Internal("aten::multinomial", kMultinomial,
                                           lowering::LowerRandomMultinomial, "xla::multinomial");

}  // namespace ir::ops
}  // namespace torch_xla
