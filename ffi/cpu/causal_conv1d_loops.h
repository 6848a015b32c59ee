// SPDX-License-Identifier: Apache-2.0
// The inner loops of the causal convolution, over rows that fit the L1 cache.
#pragma once

#include <cstdint>

#include "half.h"

namespace jax_convbatch {

// out[i] = init[i] + the sum over taps of w[t * stride + i] rows[t][i], tap
// after tap, with each product and each sum rounded.
void SumTaps(const float* init, const float* w, int64_t stride,
             const float* const* rows, int64_t taps, float* out, int64_t count);
void SumTaps(const double* init, const double* w, int64_t stride,
             const double* const* rows, int64_t taps, double* out,
             int64_t count);

// sums[t * stride + i] += dz[i] rows[t][i], and sums[taps * stride + i] +=
// dz[i].
void AddProducts(const float* dz, const float* const* rows, int64_t taps,
                 float* sums, int64_t stride, int64_t count);
void AddProducts(const double* dz, const double* const* rows, int64_t taps,
                 double* sums, int64_t stride, int64_t count);

// Copies where there is nothing to convert.
void WidenRow(const float* in, float* out, int64_t count);
void WidenRow(const double* in, double* out, int64_t count);
void WidenRow(const Half* in, float* out, int64_t count);
void WidenRow(const BFloat16* in, float* out, int64_t count);
void NarrowRow(const float* in, float* out, int64_t count);
void NarrowRow(const double* in, double* out, int64_t count);
void NarrowRow(const float* in, Half* out, int64_t count);
void NarrowRow(const float* in, BFloat16* out, int64_t count);

}  // namespace jax_convbatch
