// SPDX-License-Identifier: Apache-2.0
// The kernels for AVX-512: 14 rows of two vectors fill 28 of 32 registers.
#include <immintrin.h>

#include "kernels.h"

namespace {
constexpr int kVectorBytes = 64;
constexpr int kTileRows = 14;
}  // namespace

#include "kernels.inc"

template <>
const jax_convbatch::Kernels<float>
    jax_convbatch::KernelTables<float>::kAvx512 = Table<float>();
template <>
const jax_convbatch::Kernels<double>
    jax_convbatch::KernelTables<double>::kAvx512 = Table<double>();
