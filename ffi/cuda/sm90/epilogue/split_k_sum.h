// SPDX-License-Identifier: Apache-2.0
// A sum that was formed in partials: adds them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/sm90/problem/conv.h"

namespace jax_convbatch::hopper {

// result[size] = partials[count, size] added in an order that follows from
// count; up to eight from 0, one after the other. partials are f32, result is
// of `type` (f32 where that is kTf32), size is a multiple of four. Launched as
// a dependent of the kernel before it in the stream.
cudaError_t SplitKSum(Type type, int64_t count, int64_t size,
                      const void* partials, void* result, Stage stage,
                      cudaStream_t stream);

}  // namespace jax_convbatch::hopper
