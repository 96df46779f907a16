// Complex functions with the zeros, infinities and NaN of C99's Annex G, which the C library and
// PyTorch follow. Compilers of StableHLO differ from it in the signs of zeros, in the half plane of
// numbers on a branch cut, and for parts that are NaN or infinite.
#pragma once

#include "stablehlo/builder.h"

namespace torch_xla::stablehlo::complex_functions {

Value Abs(Value z);
Value Acos(Value z);
Value Acosh(Value z);
Value Asin(Value z);
Value Asinh(Value z);
Value Atan(Value z);
Value Atanh(Value z);
Value Cosh(Value z);
Value Cosine(Value z);
Value Divide(Value x, Value y);
Value Exponential(Value z);
Value Log(Value z);
Value Logistic(Value z);
Value Power(Value x, Value y);  // exp(y log(x)) for all x and y
Value Reciprocal(Value z);
Value Sign(Value z);
Value Sine(Value z);
Value Sinh(Value z);
Value Sqrt(Value z);
Value Tan(Value z);
Value Tanh(Value z);

}  // namespace torch_xla::stablehlo::complex_functions
