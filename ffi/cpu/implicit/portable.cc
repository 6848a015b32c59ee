// SPDX-License-Identifier: Apache-2.0
// The kernels for whatever the compiler targets: SSE2, NEON, ..., with vectors
// of 16 bytes.
#include "kernels.h"

namespace {
constexpr int kVectorBytes = 16;
constexpr int kTileRows = 6;
}  // namespace

#include "kernels.inc"

template <>
const jax_convbatch::Kernels<float>
    jax_convbatch::KernelTables<float>::kPortable = Table<float>();
template <>
const jax_convbatch::Kernels<double>
    jax_convbatch::KernelTables<double>::kPortable = Table<double>();
