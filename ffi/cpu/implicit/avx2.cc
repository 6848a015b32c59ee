// SPDX-License-Identifier: Apache-2.0
// The kernels for AVX2 and FMA: 6 rows of two vectors fill 12 of 16 registers.
#include <immintrin.h>

#include "kernels.h"

namespace {
constexpr int kVectorBytes = 32;
constexpr int kTileRows = 6;
}  // namespace

#include "kernels.inc"

template <>
const jax_convbatch::Kernels<float> jax_convbatch::KernelTables<float>::kAvx2 =
    Table<float>();
template <>
const jax_convbatch::Kernels<double>
    jax_convbatch::KernelTables<double>::kAvx2 = Table<double>();
