// SPDX-License-Identifier: Apache-2.0
// Convolutions of two or three axes on Hopper tensor cores, without columns in
// memory: implicit GEMM. The kernels exist for compute capability 9.0 alone.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>

#include "conv_geometry.h"
#include "cuda/common/stage.h"
#include "cuda/sm90/problem/epilogue.h"

namespace jax_convbatch::hopper {

// What operands and result are in memory and in the multiplier; f32 is
// multiplied as TF32.
enum class Type { kBf16, kF16, kTf32 };

constexpr int ElementBytes(Type type) { return type == Type::kTf32 ? 4 : 2; }

// How operands come to the multiplier: by TMA; by it after their channels were
// rounded up in the workspace; for few input channels from bands of image rows
// in shared memory; for few output channels row by row, see row_streaming.cuh;
// or by ordinary loads, for few channels of f32 and for skinny 1x1 layers, see
// small_tf32.cuh and skinny_conv.cuh.
enum class Path { kCopies, kPads, kFewChannels, kRowStreaming, kSmall };

// Two blocks of wgrad in a cluster that multiply the same x, or the same dy.
enum class Pair { kNone, kX, kDy };

// How the tiles of fprop and dgrad are multiplied: each by one warpgroup, which
// stores it while the other multiplies; all by both together; one a block
// (single_wave/); as the first, of f32 whose filter is transposed before, so
// that it does not go through registers; as the first, where a tile's pixels
// are copied once for all taps (halo/), and fprop's filter of f32 is
// transposed; or rows of an image that stay in shared memory (row_band/).
enum class TileKernel {
  kPingPong,
  kCooperative,
  kSingleWave,
  kTransposed,
  kHalo,
  kRowBand
};

// How a convolution runs: output tiles of tile_m x tile_n on `blocks` thread
// blocks, with `workspace` bytes of workspace. fprop and dgrad have tiles of
// pixels x channels, and no choice changes their bits. wgrad has tiles of
// filter rows (taps x C, each tap rounded up to 64 channels) x output channels,
// and every choice but the pair changes the order of its sums.
struct Plan {
  int tile_m, tile_n, blocks;
  int64_t workspace;
  Path path = Path::kCopies;
  // Whether it is at least as fast as columns in memory. Like the path, it does
  // not depend on N.
  bool preferred = true;
  // Of wgrad: blocks of one tile, in a cluster, that add their sums before they
  // write; and what two blocks of neighbouring tiles copy for each other.
  int cluster = 1;
  Pair pair = Pair::kNone;
  // Of fprop and dgrad, where the path is kCopies or kPads.
  TileKernel kernel = TileKernel::kPingPong;
  // Of fprop and dgrad of f32: in how many K slices each sum is formed,
  // whatever the tile. They are added from the workspace or, where there is
  // none, by the block.
  int k_slices = 1;
};

inline Plan WithKernel(Plan plan, TileKernel kernel) {
  plan.kernel = kernel;
  return plan;
}

// The plan for a GPU of so many SMs (select/conv_plan.cc,
// select/wgrad_plan.cc), or nothing where the kernels of the path kCopies
// cannot run: they take convolutions of two or three axes and one group without
// input dilation, C and K multiples of 16 bytes, and strides, paddings and
// dilations that TMA can express. Needs no GPU.
std::optional<Plan> PlanFprop(const ConvGeometry& g, Type type,
                              int multiprocessors);
std::optional<Plan> PlanDgrad(const ConvGeometry& g, Type type,
                              int multiprocessors);
std::optional<Plan> PlanWgrad(const ConvGeometry& g, Type type,
                              int multiprocessors);

// fprop: lhs x, rhs w, result y. dgrad: lhs dy, rhs w, result dx. wgrad: lhs x,
// rhs dy, result dw. All channels last (w: HWIO), all aligned to 16 bytes.
struct ConvCall {
  const ConvGeometry& g;
  Type type;
  Plan plan;
  const void *lhs, *rhs;
  void *result, *workspace;
  const Epilogue* epilogue = nullptr;  // of fprop, where HasEpilogue
};

// cudaErrorInvalidValue where there is no kernel for the plan or the driver
// refuses a tensor map.
cudaError_t Fprop(const ConvCall& call, Stage stage, cudaStream_t stream);
// Fprop with an epilogue; with a plain one, of 16-bit types and whole sums.
cudaError_t FpropAct(const ConvCall& call, Stage stage, cudaStream_t stream);
cudaError_t FpropPlain(const ConvCall& call, Stage stage, cudaStream_t stream);
cudaError_t Dgrad(const ConvCall& call, Stage stage, cudaStream_t stream);
cudaError_t Wgrad(const ConvCall& call, Stage stage, cudaStream_t stream);

}  // namespace jax_convbatch::hopper
