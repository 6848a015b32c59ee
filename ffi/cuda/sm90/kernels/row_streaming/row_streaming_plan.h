// SPDX-License-Identifier: Apache-2.0
// Which convolutions the row-streaming kernels run, and how. Host only.
#pragma once

#include <optional>

#include "cuda/sm90/problem/conv.h"

namespace jax_convbatch::hopper {

// The pixels of a stage: those of 64 patches and what their taps reach beyond.
inline constexpr int kRowStreamingPixels = 72;
inline constexpr int kRowStreamingStageBytes = kRowStreamingPixels * 128;
// Warpgroups that multiply, and stages of each: fewer where the filter is
// large.
inline constexpr int kRowStreamingConsumers = 4;
inline constexpr int kRowStreamingStages = 4, kRowStreamingFewStages = 2;

// For geometries of FitsIn32Bits, in bf16 and f16; nothing where the
// kernels cannot run.
std::optional<Plan> PlanRowStreamingFprop(const ConvGeometry& g,
                                          int multiprocessors);
std::optional<Plan> PlanRowStreamingDgrad(const ConvGeometry& g,
                                          int multiprocessors);

// The kernels of a plan of the path kRowStreaming; see conv.h.
cudaError_t RowStreamingFprop(const ConvCall& call, Stage stage,
                              cudaStream_t stream);
cudaError_t RowStreamingDgrad(const ConvCall& call, Stage stage,
                              cudaStream_t stream);

}  // namespace jax_convbatch::hopper
