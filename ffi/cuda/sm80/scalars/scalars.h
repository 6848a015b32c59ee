// SPDX-License-Identifier: Apache-2.0
// fprop, and dgrad of stride 1, of one group and few channels, of any number,
// in f32 on the ordinary cores: tensor cores would multiply zeros for the most
// part. wgrad is in wgrad.h.
#ifndef JAX_CONVBATCH_CUDA_SM80_SCALARS_SCALARS_H_
#define JAX_CONVBATCH_CUDA_SM80_SCALARS_SCALARS_H_

#include <algorithm>
#include <cstdint>
#include <optional>

#include "cuda/sm80/direct/direct.h"

namespace jax_convbatch::direct {

inline constexpr int kScalarMostWarps = 8;
// Input channels of a stage, at most.
inline constexpr int kScalarChunk = 8;
inline constexpr int kScalarMostBytes = 48 << 10;

// Output channels that a thread computes, of so many pixels.
constexpr int ScalarOutputs(int64_t channels) {
  return channels == 1   ? 1
         : channels == 2 ? 2
         : channels <= 4 ? 4
         : channels <= 8 ? 8
                         : (channels <= 4 * kScalarMostWarps ? 4 : 8);
}
template <int kOutputs>
inline constexpr int kScalarPixels = kOutputs <= 2 ? 8 : 4;
constexpr int ScalarPixels(int outputs) {
  return outputs <= 2 ? kScalarPixels<2> : kScalarPixels<4>;
}

// The convolution of fprop, or dgrad of one step as the fprop that it is, but
// for the order of the taps. A tile is rows of outputs, whichever sample's and
// slice's they are, and a part of each.
struct ScalarShape {
  ConvGeometry g;
  int chunk, pitch;      // channels of a stage, floats of its pixels
  int outputs, k_warps;  // of a thread; warps side by side in a tile's channels
  int pixel_warps;
  int64_t tile_rows, tile_cols, across;

  // Of so many pixels at most.
  ScalarShape(const ConvGeometry& given, bool dgrad, int warps);

  int64_t rows() const { return g.N * g.O * g.P; }
  int64_t tiles() const {
    return (rows() + tile_rows - 1) / tile_rows * across;
  }
  int threads() const { return k_warps * pixel_warps * 32; }
  int outputs_padded() const { return outputs * k_warps; }
  // Pixels of a row that a tile's outputs read.
  int64_t reach() const {
    return (tile_cols - 1) * g.stride.w + (g.S - 1) * g.filter_dilation.w + 1;
  }
  // Floats of a stage: x, and the filter's.
  int64_t x_floats() const { return (tile_rows * reach() * pitch + 3) / 4 * 4; }
  int64_t w_floats() const { return g.S * chunk * outputs_padded(); }
  int64_t shared_bytes() const {
    return 2 * (x_floats() + w_floats()) * 4 + tile_rows * 16;
  }
};

// Many inputs to few outputs, of one step along a row. A thread has a run of
// neighbouring outputs of a row, so that a number of x serves all taps of a row
// of the filter, and one of the filter the run. The warps of a block share the
// input channels. A tile is rows and columns of a slice; x comes once for all
// rows of taps.
inline constexpr int kScalarRun = 12;
inline constexpr int kScalarRunParts = 4;  // of the channels of a stage
inline constexpr int kScalarRunMostOutputs = 4;
inline constexpr int kScalarRunWarps = 8;

struct ScalarRunShape {
  ConvGeometry g;
  int pixel_warps;
  int64_t runs, across;  // of a tile's row; tiles of a row
  int64_t tile_rows, down;

  ScalarRunShape(const ConvGeometry& given, bool dgrad, int warps);

  // Whether there is such a kernel. The number of channels from which on it is
  // ahead is reckoned.
  bool exists() const {
    return g.K <= kScalarRunMostOutputs && g.C >= 16 && g.stride.w == 1 &&
           g.filter_dilation.w == 1 && (g.S == 3 || g.S == 5 || g.S == 7);
  }
  int64_t tile_cols() const { return runs * kScalarRun; }
  int64_t tiles() const { return g.N * g.O * down * across; }
  int threads() const { return pixel_warps * kScalarRunParts * 32; }
  int64_t x_rows() const {
    return (tile_rows - 1) * g.stride.h + (g.R - 1) * g.filter_dilation.h + 1;
  }
  // Floats from row to row, of what a run reads in fours, and from channel to
  // channel: the eight of a stage, of four pixels, are in different banks.
  int64_t row() const { return tile_cols() + (g.S + 2) / 4 * 4; }
  int64_t plane() const { return (x_rows() * row() + 27) / 32 * 32 + 4; }
  int64_t x_floats() const { return plane() * kScalarChunk; }
  // Of a row of taps, of one input.
  int64_t filter_row() const { return (g.S * g.K + 3) / 4 * 4; }
  int64_t w_floats() const { return kScalarChunk * g.R * filter_row(); }
  int64_t shared_bytes() const {
    const int64_t sums = kScalarRunParts * tile_rows * tile_cols() * g.K;
    return std::max(2 * (x_floats() + w_floats()), sums) * 4;
  }
};

cudaError_t RunScalarRuns(Op op, const Call& call, Stage stage,
                          cudaStream_t stream);

std::optional<Plan> PlanScalars(Op op, const ConvGeometry& g,
                                int multiprocessors);
cudaError_t RunScalars(Op op, const Call& call, Stage stage,
                       cudaStream_t stream);

}  // namespace jax_convbatch::direct

#endif  // JAX_CONVBATCH_CUDA_SM80_SCALARS_SCALARS_H_
