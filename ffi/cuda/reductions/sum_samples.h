// SPDX-License-Identifier: Apache-2.0
// The reduction of wgrad over the samples.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "xla/ffi/api/ffi.h"

namespace jax_convbatch {

// Adds partials[samples, size] to accumulator[size], one sample after another.
// The first slice of a batch starts from zeros, whatever the accumulator
// holds; the last one writes the sum to dw[size] instead. dw has the given
// dtype, the other two its accumulator.
cudaError_t SumSamples(cudaStream_t stream, xla::ffi::DataType dtype,
                       int64_t samples, int64_t size, bool first, bool last,
                       const void* partials, void* accumulator, void* dw);

}  // namespace jax_convbatch
