// Convolutions, pools and other operations on images, whose sizes may vary in some.
#include <algorithm>

#include "sizes/rules_common.h"

namespace torch_xla::sizes::bounded {
namespace {

void RequireBatch(const BoundedLayout& layout, size_t from = 1) {
  for (size_t d = from; d < layout.size(); ++d)
    RequireFixed(layout[d], "the size of images varies");
}

/// Neighbours in the padded array are neighbours only along single sizes.
void RequireSingle(const BoundedLayout& layout, size_t from) {
  for (size_t d = from; d < layout.size(); ++d) {
    if (Varies(layout[d]) && layout[d].size() > 1) Refuse("it goes along several sizes");
  }
}

/// The dimensions of images, which are the last ones.
Dims Spatial(const BoundedLayout& layout, size_t from) {
  Dims dims(layout.size());
  std::fill(dims.begin() + static_cast<std::ptrdiff_t>(from), dims.end(), true);
  return dims;
}

/// The layout of windows over images of varying sizes: their number in images that are bounded is
/// the bound.
BoundedLayout Windows(const G& g, const ir::Value& made, BoundedLayout layout, size_t from) {
  const ir::ShapeRef exact = g.node().shape(), bounded = made.shape();
  for (size_t d = from; d < layout.size(); ++d) {
    if (!Varies(layout[d])) {
      layout[d] = FixedDim(exact->dims[d]);
      continue;
    }
    layout[d] = Longer(g, layout[d], d, 0);
    layout[d][0].size = exact->dims[d], layout[d][0].bound = bounded->dims[d];
  }
  return layout;
}

void Convolution(G& g) {
  const Result& in = g.In(0);
  RequireFixed(g.In(1).layout, "the kernel's size varies");
  if (in.layout.size() < 3) Refuse("it has no batch");
  RequireFixed(in.layout[1], "the number of channels varies");
  ir::Node::Operands operands = g.Values();
  operands[0] = g.Masked(in, 0.0, Spatial(in.layout, 2));
  const ir::Value made = g.Make(g.node().op(), std::move(operands), g.node().attributes());
  BoundedLayout layout = Windows(g, made, in.layout, 2);
  layout[1] = FixedDim(g.node().shape()->dims[1]);
  g.Set(0, made, layout);
}

void ConvolutionBackward(G& g) {
  const Result &grad = g.In(0), &in = g.In(1);
  RequireFixed(g.In(2).layout, "the kernel's size varies");
  RequireFixed(in.layout.at(1), "the number of channels varies");
  if (!Same(grad.layout.at(0), in.layout[0])) Refuse("its operands have different sizes that vary");
  RequireSingle(grad.layout, 2), RequireSingle(in.layout, 2);
  // The gradient has to lie as the forward's result.
  const ir::Words& words = g.node().attributes();
  ir::Words forward{0};  // no bias
  for (size_t i = g.Named("stride").word - 1; i <= g.Named("groups").word; ++i)
    forward.push_back(words[i]);
  const ir::Value made =
      g.Make(ir::ops::convolution, {in.value, g.In(2).value}, std::move(forward));
  if (made.shape() != grad.value.shape()) Refuse("its operands have different sizes that vary");
  ir::Node::Operands operands = g.Values();
  operands[0] = g.Masked(grad, 0.0);
  operands[1] = g.Masked(in, 0.0);
  std::vector<BoundedLayout> layouts{in.layout};
  for (size_t i = 1; i < g.node().num_outputs(); ++i) {
    const ir::ShapeRef shape = g.node().shape(i);
    layouts.push_back(shape ? FixedLayout(shape->dims) : BoundedLayout{});
  }
  g.Emit(std::move(operands), words, layouts);
}

/// Operations on each image, channel by channel.
template <size_t spatial>
void EachImage(G& g) {
  const size_t rank = g.In(0).layout.size();
  if (rank <= spatial || rank > spatial + 2) Refuse("it has no batch");
  // A grid has no channels, and its gradient is a sum over them.
  const size_t lead = g.Has("grid") ? 1 : rank - spatial;
  BoundedLayout batch(lead);
  for (size_t i = 0; i < g.node().operands().size(); ++i) {
    const BoundedLayout& in = g.In(i).layout;
    if (in.size() != rank) Refuse("it has no batch");
    RequireBatch(in, lead);
    for (size_t d = 0; d < lead; ++d) batch[d] = Joined(batch[d], in[d]);
  }
  std::vector<BoundedLayout> layouts;
  for (size_t i = 0; i < g.node().num_outputs(); ++i) {
    const ir::ShapeRef shape = g.node().shape(i);
    layouts.push_back(shape ? FixedLayout(shape->dims) : BoundedLayout{});
    if (shape) std::ranges::copy(batch, layouts[i].begin());
  }
  ir::Node::Operands operands = g.Values();
  if (g.Has("indices")) {
    const size_t indices = g.Named("indices").operand;
    operands[indices] = g.Masked(g.In(indices), int64_t{0});
  }
  ir::Words words = g.node().attributes();
  for (size_t d = 0; g.Has("input_size") && d < lead; ++d)
    words[g.Named("input_size").word + d] = static_cast<uint64_t>(BoundOf(batch[d]));
  g.Emit(std::move(operands), std::move(words), layouts);
}

/// Pools, and their gradients; images may have varying sizes, but for an index that counts along
/// several dimensions.
template <size_t spatial, Neutral neutral, const ir::OpSpec& forward>
void Pool(G& g) {
  const Result& in = *g.Tensor("self");
  const size_t from = in.layout.size() - spatial;
  const BoundedLayout images(in.layout.begin() + static_cast<std::ptrdiff_t>(from),
                             in.layout.end());
  if (!Varies(images)) return EachImage<spatial>(g);
  if (neutral == Neutral::kZero) {
    // Elsewhere the count of elements depends on where the image ends.
    const bool pads = std::ranges::any_of(g.Ints("padding"), [](int64_t p) { return p != 0; });
    if (!g.Named("divisor_override").given &&
        (g.Int("ceil_mode") != 0 || (pads && g.Int("count_include_pad") == 0)))
      Refuse("it counts the elements of windows at a varying size");
  } else {
    for (size_t d = 1; d < spatial; ++d) {
      if (Varies(images[d]) && SizeOf(images[d - 1]) != 1)
        Refuse("its indices count elements of a varying size");
    }
  }
  const ir::Value masked =
      g.Masked(in, NumberOf(neutral, in.value.shape()->dtype), Spatial(in.layout, from));
  const ir::NodePtr made = tensor::MakeOpNode(&forward, {masked}, g.node().attributes());
  made->set_location(g.node().location());
  if (g.Has("grad_output")) {
    RequireSingle(g.In(0).layout, from), RequireSingle(in.layout, from);
    // The gradient has to lie as the forward's result.
    if (made->shape(0) != g.In(0).value.shape())
      Refuse("its operands have different sizes that vary");
    ir::Node::Operands operands = g.Values();
    for (size_t i = 0; i < operands.size(); ++i) {
      if (&g.In(i) != &in)
        operands[i] = g.Masked(g.In(i), NumberOf(Neutral::kZero, operands[i].shape()->dtype));
    }
    g.Emit(std::move(operands), g.node().attributes(), {in.layout});
    return;
  }
  const BoundedLayout layout = Windows(g, {made, 0}, in.layout, from);
  for (size_t i = 0; i < g.node().num_outputs(); ++i)
    g.Set(i, {made, static_cast<uint32_t>(i)}, layout);
}

/// Blocks of images as columns, and the reverse.
void Columns(G& g) {
  const BoundedLayout& in = g.In(0).layout;
  if (in.size() + g.node().shape()->rank() != 7) Refuse("it has no batch");
  RequireBatch(in);
  g.Emit(g.Values(), g.node().attributes(), {WithBatch(g, 0, in[0])});
}

}  // namespace

Table ImageRules() {
  return {
      {&Columns, {"aten::im2col", "aten::col2im"}},
      {&Convolution, {"aten::convolution"}},
      {&ConvolutionBackward, {"aten::convolution_backward"}},
      {&Pool<2, Neutral::kLeast, ir::ops::max_pool2d_with_indices>,
       {"aten::max_pool2d_with_indices", "aten::max_pool2d_with_indices_backward"}},
      {&Pool<2, Neutral::kZero, ir::ops::avg_pool2d>,
       {"aten::avg_pool2d", "aten::avg_pool2d_backward"}},
      {&EachImage<2>,
       {"aten::_adaptive_avg_pool2d",
        "aten::_adaptive_avg_pool2d_backward",
        "aten::adaptive_max_pool2d",
        "aten::adaptive_max_pool2d_backward",
        "aten::grid_sampler_2d",
        "aten::upsample_nearest2d",
        "aten::_upsample_nearest_exact2d",
        "aten::upsample_bilinear2d",
        "aten::upsample_bicubic2d",
        "aten::reflection_pad2d",
        "aten::replication_pad2d",
        "aten::grid_sampler_2d_backward",
        "aten::upsample_nearest2d_backward",
        "aten::upsample_bilinear2d_backward",
        "aten::upsample_bicubic2d_backward",
        "aten::_upsample_nearest_exact2d_backward",
        "aten::_upsample_bilinear2d_aa",
        "aten::_upsample_bilinear2d_aa_backward",
        "aten::_upsample_bicubic2d_aa",
        "aten::_upsample_bicubic2d_aa_backward",
        "aten::_upsample_lanczos2d_aa",
        "aten::_upsample_lanczos2d_aa_backward",
        "aten::reflection_pad2d_backward",
        "aten::replication_pad2d_backward"}},
      {&EachImage<1>,
       {"aten::upsample_nearest1d", "aten::_upsample_nearest_exact1d", "aten::upsample_linear1d",
        "aten::reflection_pad1d", "aten::replication_pad1d", "aten::upsample_nearest1d_backward",
        "aten::upsample_linear1d_backward", "aten::_upsample_nearest_exact1d_backward",
        "aten::reflection_pad1d_backward", "aten::replication_pad1d_backward"}},
      {&Pool<3, Neutral::kZero, ir::ops::avg_pool3d>,
       {"aten::avg_pool3d", "aten::avg_pool3d_backward"}},
      {&Pool<3, Neutral::kLeast, ir::ops::max_pool3d_with_indices>,
       {"aten::max_pool3d_with_indices", "aten::max_pool3d_with_indices_backward"}},
      {&EachImage<3>,
       {"aten::_adaptive_avg_pool3d", "aten::_adaptive_avg_pool3d_backward",
        "aten::adaptive_max_pool3d", "aten::adaptive_max_pool3d_backward", "aten::grid_sampler_3d",
        "aten::grid_sampler_3d_backward", "aten::upsample_trilinear3d_backward",
        "aten::upsample_nearest3d_backward", "aten::upsample_nearest3d",
        "aten::upsample_trilinear3d", "aten::_upsample_nearest_exact3d_backward",
        "aten::_upsample_nearest_exact3d", "aten::reflection_pad3d",
        "aten::reflection_pad3d_backward", "aten::replication_pad3d",
        "aten::replication_pad3d_backward"}},
  };
}

}  // namespace torch_xla::sizes::bounded
