// The transforms of Winograd's convolution F(2 x 2, 3 x 3) (Lavin and Gray, Fast Algorithms for
// Convolutional Neural Networks, 2015): 2 x 2 outputs of a 3 x 3 kernel by 16 multiplications, of
// which each is a product of matrices over channels, instead of 36. With
//
//   B' = 1  0 -1  0   G = 1    0   0     A' = 1  1  1  0
//        0  1  1  0       1/2  1/2 1/2        0  1 -1 -1
//        0 -1  1  0       1/2 -1/2 1/2
//        0  1  0 -1       0    0   1
//
// outputs are A' ((G w G') * (B' x B)) A; weights' gradients G' ((B' x B) * (A dy A')) G.
#pragma once

#include <cstdint>

namespace torch_xla::lowering::winograd {

/// Products of a tile.
inline constexpr int64_t kTerms = 16;
inline constexpr int64_t kKernel = 3, kTaps = kKernel * kKernel;

/// Some rows of a map's tiles.
struct Strip {
  /// Of the map.
  int64_t height, width;
  /// Rows and columns that are missing before the first inputs of all tiles.
  int64_t padding;
  int64_t first_row, rows, columns;

  int64_t tiles() const { return rows * columns; }
};

/// What is transformed, of vectors of ProductLanes() channels: [kTerms, tiles or weights,
/// channels].
struct Terms {
  float* data;
  int64_t stride;       // of terms
  int64_t item_stride;  // of tiles or weights
};

/// Writes B' x B of the 4 x 4 inputs of each tile. `maps` are `channels` maps, up to a vector of
/// them; the rest of the vector is zero.
void TransformInputs(const float* maps, int64_t channels, const Strip& strip, const Terms& to);
/// Writes A dy A' of its 2 x 2 outputs' gradients.
void TransformGradients(const float* maps, int64_t channels, const Strip& strip, const Terms& to);
/// Writes outputs A' m A; `bias`, [channels], may be null. Returns whether all are finite.
bool TransformOutputs(const Terms& from, const float* bias, int64_t channels, const Strip& strip,
                      float* maps);

/// Some 3 x 3 kernels, those of a vector's channels `channel_stride` floats apart.
struct Kernels {
  int64_t channels, channel_stride;
  int64_t count, stride;
};

/// Writes G w G', of the weights in reverse if `flipped`.
void TransformWeights(const float* weights, const Kernels& kernels, bool flipped, const Terms& to);
/// Writes G' m G. Returns whether all are finite.
bool TransformWeightGradients(const Terms& from, const Kernels& kernels, float* weights);

}  // namespace torch_xla::lowering::winograd
