// SPDX-License-Identifier: Apache-2.0
// Which 1x1 filters of few channels the kernels of skinny_conv.cuh,
// skinny_wgrad.cuh and skinny_ring.cuh run, and how. Host only.
#pragma once

#include <optional>

#include "cuda/sm90/kernels/skinny/skinny_tiling.h"
#include "cuda/sm90/problem/conv.h"

namespace jax_convbatch::hopper {

// Groups of 64 bytes of an input pixel that there are kernels for, which are
// those of so many at least: the least such number, or 0 for none.
int NarrowGroups(int64_t channels, Type type);

// Of wgrad: rows of a product are channels of operand a, the wider one, and
// columns those of b; and for how many there is a kernel for a small dw that
// takes both, 0 for none.
struct SkinnyWgradShape {
  explicit SkinnyWgradShape(const ConvGeometry& g);

  bool flipped;  // a is dy
  int a_channels, b_channels;
  int a, b;

  bool is_small() const {
    return a > 0 && b > 0 && a * b <= kSkinnySmallFilter;
  }
  // What a block's warps add.
  int shared_bytes() const;
};

// How skinny_ring.cuh lays out its stages, of runs of so many pixels.
struct SkinnyRing {
  SkinnyRing(const SkinnyWgradShape& shape, Type type, int run);

  int run, a_pitch, b_pitch, stage_bytes, ring;
  int a_blocks, columns;

  int pixels() const { return kSkinnyRuns * run; }  // of a stage
  int shared_bytes() const { return ring * stage_bytes; }
  int64_t partial_bytes() const;
};

// For geometries that are IsPlain2d; nothing where the kernels cannot run or
// others are faster.
std::optional<Plan> PlanSkinnyFprop(const ConvGeometry& g, Type type,
                                    int multiprocessors);
std::optional<Plan> PlanSkinnyDgrad(const ConvGeometry& g, Type type,
                                    int multiprocessors);
std::optional<Plan> PlanSkinnyWgrad(const ConvGeometry& g, Type type,
                                    int multiprocessors);

// The kernels of a plan of the path kSmall for 1x1 filters; see conv.h.
cudaError_t SkinnyFprop(const ConvCall& call, Stage stage, cudaStream_t stream);
cudaError_t SkinnyDgrad(const ConvCall& call, Stage stage, cudaStream_t stream);
cudaError_t SkinnyWgrad(const ConvCall& call, Stage stage, cudaStream_t stream);

}  // namespace jax_convbatch::hopper
