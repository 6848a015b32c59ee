// SPDX-License-Identifier: Apache-2.0
// What the host tells the kernels of wgrad_short_kernel.cuh.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/common/fast_divmod.h"
#include "cuda/sm90/problem/wgrad_problem.h"

namespace jax_convbatch::hopper {

// Every block has one share of one tile: splits is not 0. What a block needs
// before its first copy lies together: constants come in lines, too.
struct WgradShortProblem : WgradProblem {
  FastDivmod<uint32_t> by_cluster;
  // Steps of a block; the first `longer` of a tile's blocks have one more.
  int least_steps, longer;
  int rest_split;   // whose last step has few pixels; -1: none
  int minor_tiles;  // of the launch's grid, see WgradShare
  int tile_rows;    // of dw, from a tile to the next along filter rows
};

// Where the three taps of a filter row share their pixels: a step is a strip of
// a row of some images. x: [H, W, N, C], a strip and 2 pixels a box; dy:
// [P, Q, N, K], a strip a box. by_rows: P; by_cols: strips of a row.
struct WgradRowProblem : WgradShortProblem {
  int height;
};

}  // namespace jax_convbatch::hopper
