// SPDX-License-Identifier: Apache-2.0
// The tiles that fprop and dgrad may have. Host only.
#ifndef JAX_CONVBATCH_CUDA_SELECT_CONV_TILES_H_
#define JAX_CONVBATCH_CUDA_SELECT_CONV_TILES_H_

#include <vector>

#include "cuda/sm90/problem/conv.h"
#include "cuda/sm90/problem/op.h"

namespace jax_convbatch::hopper {

// How the warpgroups of a block share its tiles: each has its own, and stores
// it while the other multiplies; all multiply one; or a block has one tile.
enum class TileKernel { kPingPong, kCooperative, kSingleWave };

struct Tile {
  int m, n;  // pixels and channels
  TileKernel kernel = TileKernel::kPingPong;
  bool transposed = false;  // the filter, before fprop in f32
};

// Those of the kernels of conv_launch.cuh, conv_tf32_launch.cuh and
// single_wave/ that run a convolution of one group whose sums are whole. All of
// them have the same bits.
std::vector<Tile> ConvTiles(Op op, const ConvGeometry& g, Type type);

// Whether they are not, in 16 bits: see subproblems.h.
bool SumsInKSlices(Op op, const ConvGeometry& g, Type type);

// What the time of a tile depends on.
struct TileWork {
  TileKernel kernel;
  // Of one tile and stage, in those of 128x128: products; pixels and channels
  // that are copied. A stage is 128 bytes of input channels of one tap.
  double products, boxes;
  double tiles, stages;
  double bytes;       // x, w and y
  double transposed;  // bytes of a filter that is transposed first, or 0
};

TileWork WorkOf(Op op, const ConvGeometry& g, Type type, const Tile& tile);

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SELECT_CONV_TILES_H_
