#include "stablehlo/constants.h"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <optional>
#include <type_traits>

#include "stablehlo/text.h"

namespace torch_xla::stablehlo {
namespace {

/// The layout of a float type narrower than double.
struct FloatFormat {
  enum Specials {
    kIeee,           // the largest exponent is for infinity and NaN
    kFiniteNan,      // only the all-ones pattern of either sign is special: NaN
    kUnsignedZero,   // only the pattern of -0 is special: NaN
    kExponentsOnly,  // no sign, no fraction; all ones is NaN
  };
  int exponent_bits, fraction_bits, bias;
  Specials specials;

  int width() const { return exponent_bits + fraction_bits + (specials == kExponentsOnly ? 0 : 1); }
};

std::optional<FloatFormat> FormatOf(ElementType element) {
  switch (element) {
    case ElementType::kF8E4M3FN:
      return FloatFormat{4, 3, 7, FloatFormat::kFiniteNan};
    case ElementType::kF8E4M3FNUZ:
      return FloatFormat{4, 3, 8, FloatFormat::kUnsignedZero};
    case ElementType::kF8E5M2:
      return FloatFormat{5, 2, 15, FloatFormat::kIeee};
    case ElementType::kF8E5M2FNUZ:
      return FloatFormat{5, 2, 16, FloatFormat::kUnsignedZero};
    case ElementType::kF8E8M0FNU:
      return FloatFormat{8, 0, 127, FloatFormat::kExponentsOnly};
    case ElementType::kF16:
      return FloatFormat{5, 10, 15, FloatFormat::kIeee};
    case ElementType::kBF16:
      return FloatFormat{8, 7, 127, FloatFormat::kIeee};
    case ElementType::kF32:
      return FloatFormat{8, 23, 127, FloatFormat::kIeee};
    default:
      return std::nullopt;
  }
}

/// The largest finite bit pattern without its sign.
uint64_t MaxFiniteBits(const FloatFormat& f) {
  uint64_t all = (uint64_t{1} << (f.exponent_bits + f.fraction_bits)) - 1;
  switch (f.specials) {
    case FloatFormat::kIeee:
      return all - (uint64_t{1} << f.fraction_bits);
    case FloatFormat::kUnsignedZero:
      return all;
    default:
      return all - 1;
  }
}

/// `value` rounded to nearest even. A value that is too large becomes infinity, or NaN in a format
/// without infinity.
uint64_t Encode(const FloatFormat& f, double value) {
  uint64_t sign = uint64_t{1} << (f.exponent_bits + f.fraction_bits);
  uint64_t infinity_or_nan = MaxFiniteBits(f) + 1;
  if (f.specials == FloatFormat::kExponentsOnly) {
    if (!(value > 0) || std::isinf(value)) return value == 0 ? 0 : 0xFF;
    int exponent;
    // [0.5, 1): the tie at 0.75 goes to the even exponent field.
    double fraction = std::frexp(value, &exponent);
    int field = exponent - 1 + f.bias;
    if (fraction > 0.75 || (fraction == 0.75 && field % 2 != 0)) ++field;
    return field < 0 ? 0 : field > 0xFE ? 0xFF : static_cast<uint64_t>(field);
  }
  bool negative = std::signbit(value);
  uint64_t sign_bits = negative ? sign : 0;
  if (std::isnan(value)) {
    if (f.specials == FloatFormat::kUnsignedZero) return sign;
    uint64_t quiet = f.specials == FloatFormat::kIeee ? uint64_t{1} << (f.fraction_bits - 1) : 0;
    return sign_bits | infinity_or_nan | quiet;
  }
  auto overflow = [&]() -> uint64_t {
    return f.specials == FloatFormat::kUnsignedZero ? sign : sign_bits | infinity_or_nan;
  };
  if (std::isinf(value)) return overflow();
  double magnitude = std::fabs(value);
  uint64_t bits = 0;
  if (magnitude > 0) {
    int exponent;
    std::frexp(magnitude, &exponent);
    exponent = std::max(exponent - 1, 1 - f.bias);
    // Counts units in the last place; the carry of a round-up runs into the exponent.
    uint64_t units =
        static_cast<uint64_t>(std::nearbyint(std::ldexp(magnitude, f.fraction_bits - exponent)));
    bits = (static_cast<uint64_t>(exponent + f.bias - 1) << f.fraction_bits) + units;
    if (bits > MaxFiniteBits(f)) return overflow();
  }
  if (bits == 0 && f.specials == FloatFormat::kUnsignedZero) return 0;
  return sign_bits | bits;
}

double Decode(const FloatFormat& f, uint64_t bits) {
  if (f.specials == FloatFormat::kExponentsOnly) {
    return bits == 0xFF ? std::nan("") : std::ldexp(1.0, static_cast<int>(bits) - f.bias);
  }
  uint64_t sign = uint64_t{1} << (f.exponent_bits + f.fraction_bits);
  uint64_t magnitude = bits & (sign - 1);
  bool negative = (bits & sign) != 0;
  double value;
  if (f.specials == FloatFormat::kUnsignedZero && bits == sign) {
    value = std::nan("");
  } else if (magnitude > MaxFiniteBits(f)) {
    bool infinite = f.specials == FloatFormat::kIeee && magnitude == MaxFiniteBits(f) + 1;
    value = infinite ? std::numeric_limits<double>::infinity() : std::nan("");
  } else {
    int field = static_cast<int>(magnitude >> f.fraction_bits);
    uint64_t fraction = magnitude & ((uint64_t{1} << f.fraction_bits) - 1);
    if (field > 0) {
      fraction |= uint64_t{1} << f.fraction_bits;
      --field;
    }
    value = std::ldexp(static_cast<double>(fraction), field + 1 - f.bias - f.fraction_bits);
  }
  return negative ? -value : value;
}

std::string HexBits(uint64_t bits, int width) {
  constexpr char kHex[] = "0123456789ABCDEF";
  std::string out = "0x";
  for (int shift = width - 4; shift >= 0; shift -= 4) out += kHex[(bits >> shift) & 15];
  return out;
}

/// The shortest decimal that reads back as `value`, with the dot that MLIR requires.
template <typename T>
std::string Decimal(T value) {
  char buffer[64];
  std::string text(buffer, std::to_chars(buffer, buffer + sizeof buffer, value).ptr);
  if (text.find('.') == std::string::npos) {
    size_t exponent = text.find('e');
    text.insert(exponent == std::string::npos ? text.size() : exponent, ".0");
  }
  return text;
}

std::string FloatText(double value, ElementType element) {
  std::optional<FloatFormat> format = FormatOf(element);
  if (!format) {
    if (std::isfinite(value)) return Decimal(value);
    uint64_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return HexBits(bits, 64);
  }
  uint64_t bits = Encode(*format, value);
  double rounded = Decode(*format, bits);
  if (std::isfinite(rounded)) {
    std::string text = Decimal(static_cast<float>(rounded));
    // MLIR parses the text as a double and rounds that.
    if (text.size() <= 10 && Encode(*format, std::strtod(text.c_str(), nullptr)) == bits) {
      return text;
    }
  }
  return HexBits(bits, format->width());
}

/// The value of a C++ cast. Integers wrap; floats saturate.
template <typename T, typename From>
T ToInteger(From from) {
  if constexpr (std::is_floating_point_v<From>) {
    if (std::isnan(from)) return 0;
    double low = static_cast<double>(std::numeric_limits<T>::min());
    double high = static_cast<double>(std::numeric_limits<T>::max());
    if (from <= low) return std::numeric_limits<T>::min();
    if (from >= high) return std::numeric_limits<T>::max();
  }
  return static_cast<T>(from);
}

template <typename From>
std::string IntegerText(From from, ElementType element) {
  switch (element) {
    case ElementType::kS8:
      return std::to_string(ToInteger<int8_t>(from));
    case ElementType::kS16:
      return std::to_string(ToInteger<int16_t>(from));
    case ElementType::kS32:
      return std::to_string(ToInteger<int32_t>(from));
    case ElementType::kS64:
      return std::to_string(ToInteger<int64_t>(from));
    case ElementType::kU8:
      return std::to_string(ToInteger<uint8_t>(from));
    case ElementType::kU16:
      return std::to_string(ToInteger<uint16_t>(from));
    case ElementType::kU32:
      return std::to_string(ToInteger<uint32_t>(from));
    case ElementType::kU64:
      return std::to_string(ToInteger<uint64_t>(from));
    default:
      throw Error("stablehlo.constant: expected a valid element type");
  }
}

template <typename From>
std::string RealText(From from, ElementType element) {
  if (element == ElementType::kPred) return from != From(0) ? "true" : "false";
  if (!runtime::IsFloat(element)) return IntegerText(from, element);
  if (std::is_integral_v<From> && element == ElementType::kF32) {
    return FloatText(static_cast<float>(from), element);  // rounded once
  }
  return FloatText(static_cast<double>(from), element);
}

void AppendBools(std::span<const std::byte>& bytes, const Dims& dims, size_t dimension,
                 std::string& out) {
  if (dimension == dims.size()) {
    out += bytes[0] != std::byte{0} ? "true" : "false";
    bytes = bytes.subspan(1);
    return;
  }
  out += '[';
  for (int64_t i = 0; i < dims[dimension]; ++i) {
    if (i > 0) out += ", ";
    AppendBools(bytes, dims, dimension + 1, out);
  }
  out += ']';
}

Value DenseConstant(Builder& builder, std::string_view dense, const Type& type) {
  Value constant = builder.UniqueOp("stablehlo.constant", type,
                                    Cat("value = dense<", dense, "> : ", type.ToString()));
  const bool is_array = dense.starts_with('[') || dense.starts_with('"');
  if (!is_array) builder.SetVaries(constant, 0);
  return constant;
}

/// The extreme values of an integer type as text.
std::string IntegerLimit(ElementType element, bool high) {
  double infinity = std::numeric_limits<double>::infinity();
  return IntegerText(high ? infinity : -infinity, element);
}

Value Extreme(Builder& builder, ElementType element, bool high, bool infinite) {
  Type type = ScalarType(element);
  if (runtime::IsInteger(element)) {
    return DenseConstant(builder, IntegerLimit(element, high), type);
  }
  if (element == ElementType::kPred) return Constant(builder, high, type);
  if (!runtime::IsFloat(element)) {
    throw Error(Cat("stablehlo.constant: expected an ordered element type, got ", type.ToString()));
  }
  std::optional<FloatFormat> format = FormatOf(element);
  if (infinite && (!format || format->specials == FloatFormat::kIeee)) {
    double infinity = std::numeric_limits<double>::infinity();
    return Constant(builder, high ? infinity : -infinity, type);
  }
  double largest =
      format ? Decode(*format, MaxFiniteBits(*format)) : std::numeric_limits<double>::max();
  if (!high && format && format->specials == FloatFormat::kExponentsOnly) {
    return Constant(builder, Decode(*format, 0), type);
  }
  return Constant(builder, high ? largest : -largest, type);
}

}  // namespace

std::string Literal::ToMlir(ElementType type) const {
  if (type == ElementType::kInvalid) {
    throw Error("stablehlo.constant: expected a valid element type");
  }
  if (runtime::IsComplex(type)) {
    ElementType real = RealOf(type);
    if (const auto* c = std::get_if<std::complex<double>>(&value_)) {
      return Cat("(", FloatText(c->real(), real), ", ", FloatText(c->imag(), real), ")");
    }
    return Cat("(", ToMlir(real), ", 0.0)");
  }
  return std::visit(
      [&](auto v) -> std::string {
        if constexpr (std::is_same_v<decltype(v), std::complex<double>>) {
          if (type == ElementType::kPred) return v != 0.0 ? "true" : "false";
          return RealText(v.real(), type);
        } else if constexpr (std::is_same_v<decltype(v), bool>) {
          return RealText(static_cast<int64_t>(v), type);
        } else {
          return RealText(v, type);
        }
      },
      value_);
}

Value Constant(Builder& builder, Literal value, const Type& type) {
  return DenseConstant(builder, value.ToMlir(type.element), type);
}

Value Scalar(Builder& builder, Literal value, ElementType element) {
  return Constant(builder, value, ScalarType(element));
}

Value Scalar(Value like, Literal value, ElementType element) {
  return Scalar(like.builder(), value, element);
}

Value ScalarLike(Value like, Literal value) {
  return Scalar(like.builder(), value, like.element());
}

Value FullLike(Value x, Literal value) { return Constant(x.builder(), value, x.type()); }

Value ZerosLike(Value x) { return FullLike(x, 0); }

Value OnesLike(Value x) { return FullLike(x, 1); }

Value ConstantFromBytes(Builder& builder, const Type& type, std::span<const std::byte> bytes) {
  size_t expected = static_cast<size_t>(type.num_elements()) * runtime::ByteWidth(type.element);
  if (bytes.size() != expected) {
    throw Error(Cat("stablehlo.constant: expected ", expected, " bytes for ", type.ToString(),
                    ", got ", bytes.size()));
  }
  if (bytes.empty()) return DenseConstant(builder, "", type);
  std::string text;
  if (type.element == ElementType::kPred) {  // how MLIR packs raw bools depends on its version
    AppendBools(bytes, type.dims, 0, text);
  } else {
    constexpr char kHex[] = "0123456789ABCDEF";
    text.reserve(bytes.size() * 2 + 4);
    text = "\"0x";
    for (std::byte b : bytes) {
      text += kHex[static_cast<unsigned>(b) >> 4];
      text += kHex[static_cast<unsigned>(b) & 15];
    }
    text += '"';
  }
  return DenseConstant(builder, text, type);
}

Value ConstantS64(Builder& builder, std::span<const int64_t> values) {
  return ConstantFromBytes(builder, Type(ElementType::kS64, {static_cast<int64_t>(values.size())}),
                           std::as_bytes(values));
}

Value MaxFinite(Builder& builder, ElementType element) {
  return Extreme(builder, element, true, false);
}

Value MinFinite(Builder& builder, ElementType element) {
  return Extreme(builder, element, false, false);
}

Value LowestOrNegInf(Builder& builder, ElementType element) {
  return Extreme(builder, element, false, true);
}

Value HighestOrInf(Builder& builder, ElementType element) {
  return Extreme(builder, element, true, true);
}

}  // namespace torch_xla::stablehlo
