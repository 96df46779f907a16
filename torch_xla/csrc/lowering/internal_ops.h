// Operations of the graph that are no PyTorch operators: leaves, and what views,
// fills and casts become.
#pragma once

#include "ir/op.h"

namespace torch_xla::ir::ops {

/// A buffer on the device: a parameter of the program.
extern const OpSpec device_data;
/// A number that may differ from step to step: its value is no part of the hash.
/// Attributes: the constant-scalar words of attributes.h.
extern const OpSpec scalar;
/// A number that is part of the program.
extern const OpSpec constant;
/// Operand: a scalar. The output shape is the node's.
extern const OpSpec fill;
/// Operand: any tensor. Converts to the node's dtype.
extern const OpSpec cast;
/// Operand: any tensor. Broadcasts to the node's dimensions.
extern const OpSpec expand;
/// Operand: an alias root. Attributes: sizes, strides, offset (elements).
extern const OpSpec view;
/// Operands: an alias root, the view's new content. Attributes as for view.
extern const OpSpec view_update;
/// Operand: any tensor, reinterpreted as the node's dtype and dimensions (view.dtype,
/// view_as_real, view_as_complex and their inverses).
extern const OpSpec bitcast;
/// Operands: start, step. The node's shape is the result's: start + i * step.
extern const OpSpec arange;
/// Operands: a, b. Attributes: which dimensions of each are summed over; the others of a, then
/// those of b, are the result's.
extern const OpSpec dot_general;
/// Ones on the diagonal.
extern const OpSpec eye;
/// Non-maximum suppression of candidates in falling order. Operands, bool: [n, n] which pairs
/// overlap, [n] which are candidates at all. Result: [n] which stay.
extern const OpSpec suppress;
/// Functions written as StableHLO text (aten/stablehlo_op.cpp). Operands: the arguments of the
/// first. Attribute: the text.
extern const OpSpec stablehlo_text;

// Random numbers. Operand 0 is a seed (an integer scalar); each says its own others.
/// Operands: from, to; the node's dtype is a float. Uniform in [from, to).
extern const OpSpec random_uniform;
/// Operands: mean, standard deviation (both broadcast to the node's shape).
extern const OpSpec random_normal;
/// Operands: from, to (int64). Uniform integers in [from, to).
extern const OpSpec random_integer;
/// Operands: probability (broadcast to the node's shape).
extern const OpSpec random_bernoulli;
/// Operands: lambda.
extern const OpSpec random_exponential;
/// Operands: rate.
extern const OpSpec random_poisson;
/// Operands: count, probability (both broadcast to the node's shape).
extern const OpSpec random_binomial;
/// Operands: alpha (the concentration; the scale is 1).
extern const OpSpec random_gamma;
/// A permutation of 0 … n - 1.
extern const OpSpec random_permutation;
/// Operands: weights [n] or [m, n]. Attribute: replacement. Shape [k] or [m, k].
extern const OpSpec random_multinomial;

}  // namespace torch_xla::ir::ops
