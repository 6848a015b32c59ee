// SPDX-License-Identifier: Apache-2.0
// The limit of shared memory to which kernels are raised that several
// geometries share: threads may launch them for several at once.
#pragma once

namespace jax_convbatch::hopper {

// What a block may have besides what a kernel declares itself.
inline constexpr int kMostShared = 226 << 10;

}  // namespace jax_convbatch::hopper
