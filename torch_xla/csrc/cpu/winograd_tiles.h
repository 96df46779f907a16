// The transforms of Winograd's convolutions (Lavin and Gray, Fast Algorithms for Convolutional
// Neural Networks, 2015): 2 x 2 outputs of a 3 x 3 kernel, F(2 x 2, 3 x 3), by 16 multiplications
// instead of 36, and of a 2 x 2 kernel, F(2 x 2, 2 x 2), by 9 instead of 16; each is a product of
// matrices over channels. With
//
//   B' = 1  0 -1  0   G = 1    0   0     A' = 1  1  1  0
//        0  1  1  0       1/2  1/2 1/2        0  1 -1 -1
//        0 -1  1  0       1/2 -1/2 1/2
//        0  1  0 -1       0    0   1
//
// and
//
//   B' = 1 -1  0      G = 1    0         A' = 1  1  0
//        0  1  0          1    1              0  1 -1
//        0  1 -1          0    1
//
// outputs are A' ((G w G') * (B' x B)) A; weights' gradients G' ((B' x B) * (A dy A')) G.
//
// A kernel of 4 x 4 with a stride of 2 is four of 2 x 2, each of the taps that see inputs of even
// or odd rows and columns.
#pragma once

#include <cstdint>

namespace torch_xla::cpu::winograd {

/// Some rows of the tiles of a map. Pixel (i, j) that the tiles read or write is pixel
/// (top + step * i, left + step * j) of the map; pixels outside of the map are zero.
struct Strip {
  /// The size of the map.
  int64_t height, width;
  int64_t step, top, left;
  int64_t first_row, rows, columns;
};

/// Transformed tiles or weights [terms, tiles or weights, channels] in vectors of channels.
struct Terms {
  float* data;
  int64_t stride;       // of terms
  int64_t item_stride;  // of tiles or weights
};

/// The first taps of `count` kernels, whose channels are `channel_stride` floats apart.
struct Kernels {
  int64_t channels, channel_stride;
  int64_t count, stride;
};

/// The transforms for one size of kernel. `maps` has the maps of up to a vector of `channels`; the
/// rest of the vector is zero.
struct Transforms {
  /// The distance between two taps in the weights, and between two pixels that a tile reads in the
  /// larger maps.
  int64_t step;
  /// How many products a tile takes.
  int64_t terms;

  /// Writes B' x B of each tile's inputs.
  void (*inputs)(const float* maps, int64_t channels, const Strip& strip, const Terms& to);
  /// Writes A dy A' of its 2 x 2 outputs' gradients.
  void (*gradients)(const float* maps, int64_t channels, const Strip& strip, const Terms& to);
  /// Writes outputs A' m A, plus each channel's `bias` if that is not null. Returns whether all are
  /// finite.
  bool (*outputs)(const Terms& from, const float* bias, int64_t channels, const Strip& strip,
                  float* maps);
  /// Writes G w G', of the weights in reverse if `flipped`.
  void (*weights)(const float* weights, const Kernels& kernels, bool flipped, const Terms& to);
  /// Writes G' m G. Returns whether all are finite.
  bool (*weight_gradients)(const Terms& from, const Kernels& kernels, float* weights);
};

/// For 3 x 3 kernels with a stride of 1.
const Transforms& TransformsOf3x3();
/// For every second tap of 4 x 4 kernels with a stride of 2.
const Transforms& TransformsOf4x4();

}  // namespace torch_xla::cpu::winograd
