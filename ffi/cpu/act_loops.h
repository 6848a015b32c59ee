// SPDX-License-Identifier: Apache-2.0
// The loops of the layer's elementwise work, over tiles that fit the L1 cache.
#pragma once

#include <cstdint>

#include "activation.h"

namespace jax_convbatch {

// Elements of a tile: what a caller converts or computes at a time.
inline constexpr int64_t kTileElements = 2048;

// y[i] = a(z[i]); y may be z.
void ActivateTile(Activation a, const float* z, float* y, int64_t count);
void ActivateTile(Activation a, const double* z, double* y, int64_t count);

// dz[i] = a'(saved[i]) dy[i]; dz may be one of the others.
void GradTile(Activation a, const float* saved, const float* dy, float* dz,
              int64_t count);
void GradTile(Activation a, const double* saved, const double* dy, double* dz,
              int64_t count);

// sum[k] += in[r, k], row after row.
void AddRows(const float* in, int64_t rows, int64_t K, float* sum);
void AddRows(const double* in, int64_t rows, int64_t K, double* sum);

// z[r, k] = scale[k] z[r, k] + bias[k] + residual[r, k]; each of the three may
// be null.
void ScaleAndAdd(const float* scale, const float* bias, const float* residual,
                 float* z, int64_t rows, int64_t K);
void ScaleAndAdd(const double* scale, const double* bias,
                 const double* residual, double* z, int64_t rows, int64_t K);

}  // namespace jax_convbatch
