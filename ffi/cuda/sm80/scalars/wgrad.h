// SPDX-License-Identifier: Apache-2.0
// wgrad of scalars.h: how blocks and warps share dw, and the pixels.
#ifndef JAX_CONVBATCH_CUDA_SM80_SCALARS_WGRAD_H_
#define JAX_CONVBATCH_CUDA_SM80_SCALARS_WGRAD_H_

#include <cstdint>
#include <optional>

#include "cuda/sm80/direct/direct.h"

namespace jax_convbatch::direct {

inline constexpr int kScalarWgradWarps = 8;
// Two blocks on an SM.
inline constexpr int kScalarWgradBlocks = 2;
inline constexpr int64_t kScalarWgradMostBytes = 100 << 10;

// A thread goes down a column of outputs, with the rows of x that kWindow taps
// read in registers. Of these taps it has so many columns (taps of a row, and
// inputs), each for kOutputs outputs: as many sums as leave two blocks their
// registers, and divisors of what 3x3 and 5x5 taps have.
constexpr int ScalarWgradColumns(int window, int outputs) {
  constexpr int kOne[] = {9, 18, 14, 15, 13, 11, 9, 8};
  constexpr int kThree[] = {9, 6, 5, 5, 5, 4, 4, 3};
  constexpr int kFive[] = {5, 5, 4, 3, 3, 2, 2};  // up to seven outputs
  return (window == 1 ? kOne : window == 3 ? kThree : kFive)[outputs - 1];
}
template <int kWindow, int kOutputs>
inline constexpr int kScalarWgradColumns =
    ScalarWgradColumns(kWindow, kOutputs);

// Rows of an operand in shared memory.
struct ScalarRowShape {
  int pixel;    // floats from pixel to pixel: odd, so that they differ in bank
  int vector;   // floats that are copied at once
  int64_t row;  // floats from row to row
  ScalarRowShape() = default;
  // Of so many pixels, of rows of `width`; `chunk` of their channels.
  ScalarRowShape(int64_t channels, int64_t chunk, int64_t width,
                 int64_t pixels);
};

struct ScalarWgradShape {
  ConvGeometry g;
  int window, columns, outputs;  // of a thread's part of dw
  int64_t filter_rows, chunk;    // of a block: rows of taps, inputs
  int64_t parts_k, parts;        // of K, and of a block's rows of taps in all
  int64_t part_groups;           // blocks that share these parts
  int block_parts, slices;  // a block's parts, and warps that share the pixels
  int64_t tile_rows, tile_cols, down, across;
  int64_t run;  // rows that a thread goes down
  ScalarRowShape x, dy;
  int64_t workers;

  ScalarWgradShape(const ConvGeometry& given, int multiprocessors);

  int64_t row_groups() const { return (g.R + filter_rows - 1) / filter_rows; }
  int64_t chunks() const { return (g.C + chunk - 1) / chunk; }
  // Blocks side by side, each of which has another part of dw.
  int64_t groups() const { return g.T * row_groups() * chunks() * part_groups; }
  int64_t tiles() const { return g.N * g.O * down * across; }
  int threads() const { return block_parts * slices * 32; }
  int64_t windows() const { return (filter_rows + window - 1) / window; }
  // Of x, what a tile reads.
  int64_t x_rows() const {
    return (tile_rows - 1) * g.stride.h +
           (windows() * window - 1) * g.filter_dilation.h + 1;
  }
  int64_t x_cols() const {
    return (tile_cols - 1) * g.stride.w + (g.S - 1) * g.filter_dilation.w + 1;
  }
  int64_t x_floats() const { return x_rows() * x.row; }
  // The last pixel is read as if it had all outputs of a thread.
  int64_t stage_floats() const { return x_floats() + tile_rows * dy.row + 8; }
  int64_t shared_bytes() const { return 2 * stage_floats() * 4; }

 private:
  void Share();
  void Tile(int64_t pixels);
};

std::optional<Plan> PlanScalarWgrad(const ConvGeometry& g, int multiprocessors);
cudaError_t RunScalarWgrad(const Call& call, Stage stage, cudaStream_t stream);

}  // namespace jax_convbatch::direct

#endif  // JAX_CONVBATCH_CUDA_SM80_SCALARS_WGRAD_H_
