// SPDX-License-Identifier: Apache-2.0
// The tiles that fprop and dgrad may have. Host only.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/sm90/problem/conv.h"
#include "cuda/sm90/problem/op.h"
#include "cuda/sm90/problem/subproblems.h"

namespace jax_convbatch::hopper {

struct Tile {
  int m, n;  // pixels and channels
  TileKernel kernel = TileKernel::kPingPong;

  bool halo() const { return kernel == TileKernel::kHalo; }
};

// fprop or dgrad of one group, as its kernels see it.
struct TiledConv {
  TiledConv(Op op, const ConvGeometry& g, Type type);

  Op op;
  ConvGeometry g;
  Type type;
  Activations in, out;
  std::vector<SubproblemAxes> subs;

  // Whether sums are whole, and not in K slices; of f32, in how many.
  bool sums_whole() const;
  int tf32_k_slices() const;
};

// Those of the kernels of conv_launch.cuh, conv_tf32_launch.cuh, single_wave/
// and halo/ that run it. In 16 bits only where sums_whole(). All of them have
// the same bits.
std::vector<Tile> ConvTiles(const TiledConv& conv);

// Bytes of workspace of a tile: a filter that is transposed first, or partial
// sums.
int64_t WorkspaceOf(const TiledConv& conv, const Tile& tile);

// What the time of a tile depends on.
struct TileWork {
  // Of one tile and stage, in those of 128x128: products; pixels and channels
  // that are copied. A stage is 128 bytes of input channels of one tap.
  double products, boxes;
  double tiles;
  double stages, longest;  // of a tile, in the mean and at most
  double bytes;            // x, w and y, fewer where weights stay
  double workspace;        // bytes of WorkspaceOf
  double later;            // us, than other tiles, beside all else
  int k_slices;            // of f32
  // Whether weights stay in shared memory (resident_plan.h).
  bool keeps_weights;
};

TileWork WorkOf(const TiledConv& conv, const Tile& tile, int multiprocessors);

// Whether the filter is transposed first: of fprop of f32.
inline bool Transposes(Op op, Type type, const Tile& tile) {
  return op == Op::kFprop && type == Type::kTf32 &&
         (tile.kernel == TileKernel::kTransposed || tile.halo());
}

}  // namespace jax_convbatch::hopper
