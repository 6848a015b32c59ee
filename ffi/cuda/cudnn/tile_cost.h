// SPDX-License-Identifier: Apache-2.0
// How long configurations of cuDNN's TMA kernels take beside one another.
#pragma once

#include <cstdint>
#include <optional>

#include "cuda/cudnn/config.h"

namespace jax_convbatch::cudnn {

// fprop or dgrad as a product of matrices.
struct Gemm {
  int64_t rows;     // pixels of the result, of all samples
  int64_t columns;  // channels of the result
};

// Tiles of a cluster, of those that a GPU has room for everywhere.
inline constexpr int64_t kMostOfCluster = 8;

// In units that only configurations of one engine for one product share;
// nullopt where nobody has looked what its numbers mean.
std::optional<double> TileCost(const Gemm& gemm, const Config& config,
                               int multiprocessors);

}  // namespace jax_convbatch::cudnn
