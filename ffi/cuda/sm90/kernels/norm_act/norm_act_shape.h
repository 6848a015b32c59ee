// SPDX-License-Identifier: Apache-2.0
// How the tiles of norm_act_kernel.cuh lie, and what they read of x.
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_NORM_ACT_NORM_ACT_SHAPE_H_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_NORM_ACT_NORM_ACT_SHAPE_H_

#include "conv_geometry.h"

namespace jax_convbatch::hopper {

// A tile is two blocks of 64 pixels: squares of 8 x 8, one below the other or,
// where an image has no more than 8 rows, of two images; or of an image of one
// row 64 pixels each, side by side.
enum class NormActTile { kBelow, kImages, kRow };

inline constexpr int kNormActTilePixels = 128;
// Of x under a tile: a multiple of 8, as boxes begin at multiples of 1024.
inline constexpr int kMaxHaloPixels = 200;

// How tiles lie, and the pixels of x that one reads: its halo.
struct NormActShape {
  NormActTile tile;
  int cols, rows, images;    // of a tile
  int halo_cols, halo_rows;  // of one image
  int tiles_w, tiles_h, tiles_n;

  int halo_pixels() const { return images * halo_rows * halo_cols; }
};

inline NormActShape NormActShapeOf(const ConvGeometry& g) {
  NormActShape s{};
  s.tile = g.P == 1   ? NormActTile::kRow
           : g.P <= 8 ? NormActTile::kImages
                      : NormActTile::kBelow;
  s.cols = s.tile == NormActTile::kRow ? 128 : 8;
  s.rows = s.tile == NormActTile::kRow      ? 1
           : s.tile == NormActTile::kImages ? 8
                                            : 16;
  s.images = s.tile == NormActTile::kImages ? 2 : 1;
  s.halo_cols = s.cols + static_cast<int>((g.S - 1) * g.filter_dilation.w);
  s.halo_rows = s.rows + static_cast<int>((g.R - 1) * g.filter_dilation.h);
  s.tiles_w = static_cast<int>((g.Q + s.cols - 1) / s.cols);
  s.tiles_h = static_cast<int>((g.P + s.rows - 1) / s.rows);
  s.tiles_n = static_cast<int>((g.N + s.images - 1) / s.images);
  return s;
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_NORM_ACT_NORM_ACT_SHAPE_H_
