// SPDX-License-Identifier: Apache-2.0
// 2-D convolutions of many small groups, straight from tiles of the image in
// shared memory: depthwise ones on the ordinary cores, other groups of bf16 and
// f16 on the tensor cores; and f32 of a few channels, of up to three axes. Any
// GPU of compute capability 8.0 or later.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "conv_geometry.h"
#include "cuda/common/stage.h"

namespace jax_convbatch::direct {

using jax_convbatch::Stage;

enum class Op { kFprop, kDgrad, kWgrad };
// kTf32: f32 whose products may be rounded as TF32, where a kernel does that.
enum class Type { kF32, kTf32, kBf16, kF16 };

// How a convolution runs: tiles of tile_h x tile_w outputs (in a strided dgrad,
// of each residue class) by tile_channels, shared by `workers` thread blocks
// for each range of channels. fprop's and dgrad's bits do not depend on it.
// wgrad's do: each worker adds up its tiles, then the workers' sums are added
// in order.
struct Plan {
  int tile_h, tile_w, tile_channels;
  int channel_tiles, workers;
  int64_t workspace;
  // Whether it is at least as fast as columns in memory.
  bool preferred;
  // Whether tiles come and go by TMA, see depthwise_copies.h.
  bool copies = false;
  // Whether runs of outputs are products, see depthwise_planes.h.
  bool planes = false;
  // Whether rows of the filter are Toeplitz matrices, see depthwise_toeplitz.h.
  bool toeplitz = false;
  // Whether threads load what they need, four channels at a time, see quads.h.
  bool quads = false;
  // Whether threads have pixels of a few channels, see scalars.h.
  bool scalars = false;
  // Whether threads walk along the only axis, see depthwise_sequences.h: a tile
  // is so many of their chunks by rows (1: rows by themselves) by channels.
  bool sequences = false;

  int blocks() const { return channel_tiles * workers; }
};

// The plan for a GPU of so many SMs, on Hopper or elsewhere, or nothing where
// the kernels cannot run: they take 2-D convolutions of several groups, other
// than those that are matrix products as they stand (1x1), each group of one
// channel to one channel, or of up to 32 to up to 32: in bf16 and f16 powers of
// two or multiples of 8, with C and K multiples of 8, in f32 multiples of 4; of
// one group long sequences of 16 to 24 channels in bf16 and f16; any padding
// and filter dilation, strides and input dilations up to 8 (dilated inputs not
// in wgrad), where the tiles fit into shared memory; depthwise ones of 2 to 8
// taps and one step along any single axis (not wgrad); and what PlanScalars
// takes. Needs no GPU.
std::optional<Plan> MakePlan(Op op, const ConvGeometry& g, Type type,
                             int multiprocessors, bool hopper);

// "16x16x32" (rows, columns and channels of a tile; see Plan::sequences), and
// in wgrad also the workers, "16x16x32/396": its bits depend on them.
std::string PlanName(Op op, const Plan& plan);

// The plan, or nothing where it has another name; an empty one is any.
std::optional<Plan> FindPlan(Op op, const ConvGeometry& g, Type type,
                             int multiprocessors, bool hopper,
                             std::string_view name);

// fprop: lhs x, rhs w, result y. dgrad: lhs dy, rhs w, result dx. wgrad: lhs x,
// rhs dy, result dw. All channels last (w: HWIO), all aligned to 16 bytes.
struct Call {
  const ConvGeometry& g;
  Type type;
  Plan plan;
  const void *lhs, *rhs;
  void *result, *workspace;
};

cudaError_t Run(Op op, const Call& call, Stage stage, cudaStream_t stream);

}  // namespace jax_convbatch::direct
