// SPDX-License-Identifier: Apache-2.0
// Unrolling of samples into columns, and its transpose.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "conv_geometry.h"
#include "xla/ffi/api/ffi.h"

namespace jax_convbatch {

// cols[groups, samples, O, P, Q, T, R, S, C / groups] from
// x[samples, D, H, W, C]: what each tap of each output pixel reads, zeros where
// that is padding. A copy, so only the size of an element matters.
cudaError_t Im2Col(cudaStream_t stream, const ConvGeometry& g, int64_t samples,
                   int64_t element_bytes, const void* x, void* cols);

// dx[samples, D, H, W, C] from dcols, laid out like cols: each pixel is the sum
// of the columns' entries that read it, taps in ascending order. dx has the
// given dtype and dcols its accumulator.
cudaError_t Col2Im(cudaStream_t stream, const ConvGeometry& g, int64_t samples,
                   xla::ffi::DataType dtype, const void* dcols, void* dx);

}  // namespace jax_convbatch
