// SPDX-License-Identifier: Apache-2.0
// y = conv(act(scale x + shift), w) + bias + residual in one kernel, with sums
// of y by sample and channel. See norm_act_tiles.cuh.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>

#include "activation.h"
#include "conv_geometry.h"
#include "cuda/common/stage.h"
#include "cuda/sm90/problem/conv.h"

namespace jax_convbatch::hopper {

// Of x under a tile: a multiple of 8, as boxes begin at multiples of 1024.
inline constexpr int kMaxNormActHaloPixels = 200;

// Tiles of 128 pixels x tile_n channels on `blocks` thread blocks. An image is
// cut into `chunks` units (halo_shape.h), each of which has sums of its own.
struct NormActPlan {
  int tile_n, blocks, chunks;
  // Whether it is faster than a pass and a convolution. Does not depend on N.
  bool preferred;
};

// Nothing where the kernel does not cover the geometry: it takes 2-D
// convolutions of one group at stride 1, of 16-bit types. Needs no GPU.
std::optional<NormActPlan> PlanNormAct(const ConvGeometry& g, Type type,
                                       int multiprocessors);

// scale, shift: [C], or [N, C] where `by_sample`, in f32. bias [K] and residual
// like the result, in its type, or null. partials: [N, chunks, 2, K] in f32, or
// null: sums of y and of its squares.
struct NormActCall {
  const ConvGeometry& g;
  Type type;
  NormActPlan plan;
  Activation activation;
  bool by_sample;
  const void *x, *w;
  const float *scale, *shift;
  const void *bias, *residual;
  void* y;
  float* partials;
};

// The backward pass through the convolution and the activation: dgrad of dy,
// multiplied by the activation's derivative at scale x + shift, is what
// `gradients` gets, and act(scale x + shift), which wgrad reads, `activated`.
// partials: [N, chunks, 2, C], sums of the gradients and of gradients times x,
// which are those of shift and scale.
struct NormActGradientCall {
  const ConvGeometry& g;  // of fprop
  Type type;
  NormActPlan plan;
  Activation activation;
  bool by_sample;
  const void *dy, *w, *x;
  const float *scale, *shift;
  void *gradients, *activated;
  float* partials;
};

// As PlanNormAct, for kIdentity, kRelu, kGelu and kSilu.
std::optional<NormActPlan> PlanNormActGradient(const ConvGeometry& g, Type type,
                                               Activation activation,
                                               int multiprocessors);

// cudaErrorInvalidValue where the driver refuses a tensor map.
cudaError_t NormActFprop(const NormActCall& call, Stage stage,
                         cudaStream_t stream);
cudaError_t NormActGradient(const NormActGradientCall& call, Stage stage,
                            cudaStream_t stream);

}  // namespace jax_convbatch::hopper
