// SPDX-License-Identifier: Apache-2.0
// Sums by channel, or by sample and group of channels, from those of parts of
// samples.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/common/stage.h"

namespace jax_convbatch {

// partials: [samples, chunks, 2, groups, channels]; s1, s2: [samples, groups].
// In an order that follows from the other sizes.
struct ChannelSumsShape {
  int64_t samples, chunks, groups, channels = 1;
};

// Follows a kernel that wrote `partials`, and may start before it has ended.
cudaError_t AddChannelSums(cudaStream_t stream, const ChannelSumsShape& shape,
                           const float* partials, float* s1, float* s2,
                           Stage stage = Stage::kLaunch);

}  // namespace jax_convbatch
