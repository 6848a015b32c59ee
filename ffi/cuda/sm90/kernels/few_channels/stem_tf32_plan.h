// SPDX-License-Identifier: Apache-2.0
// f32 of few input channels, stems above all: fprop, and dgrad of stride 1 as
// the convolution of dy that it is. Which of them stem_tf32.cuh runs. Host
// only.
#pragma once

#include <optional>

#include "cuda/sm90/kernels/few_channels/stem_tf32_tiling.h"
#include "cuda/sm90/problem/conv.h"

namespace jax_convbatch::hopper {

// Whether it is these kernels', and not that of few_channels_tf32.cuh.
bool IsStem(const ConvGeometry& g, bool dgrad);

// Eights of a column that there are kernels for; the least that is enough, or
// 0.
int StemSteps(const ConvGeometry& g);

// The geometry as one of elements of 16 bits.
ConvGeometry InHalves(const ConvGeometry& g);

// Shared memory of a block.
int64_t StemBytes(const ConvGeometry& g, int64_t tile);

// Pixels from a row of a product to the next.
int StemApart(const ConvGeometry& g);

std::optional<Plan> PlanStem(const ConvGeometry& g, bool dgrad,
                             int multiprocessors);

// The kernel of a plan of the path kFewChannels for f32 where IsStem; see
// conv.h.
cudaError_t StemTf32(const ConvCall& call, bool dgrad, Stage stage,
                     cudaStream_t stream);

}  // namespace jax_convbatch::hopper
