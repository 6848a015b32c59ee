// SPDX-License-Identifier: Apache-2.0
// Long sums of few outputs an image (SumsInKSlices in subproblems.h) are formed
// in K slices, each from zero, which are added in order.
#ifndef JAX_CONVBATCH_CUDA_SM90_MAINLOOP_K_SLICES_H_
#define JAX_CONVBATCH_CUDA_SM90_MAINLOOP_K_SLICES_H_

#include <cstdint>

namespace jax_convbatch::hopper {

inline constexpr int kSumKSlices = 4;

// Whether a cluster's blocks form a tile's K slices side by side: of tiles of
// 64x128, by rounds of blocks that form one slice each. Some SMs are left out
// then: of 132, 30 clusters of four run at once.
inline bool SplitsOverClusters(int64_t tiles, int64_t blocks) {
  const int64_t clusters = 10 * blocks / 11 / kSumKSlices;
  if (clusters == 0) return false;
  const int64_t rounds = (tiles + clusters - 1) / clusters;
  const int64_t alone = kSumKSlices * ((tiles + blocks - 1) / blocks);
  return 8 * rounds < 7 * alone;  // the sums have to be added
}

// What a K slice's first stage is, as StageWalk counts, and how many it has.
struct ConvKSlice {
  int r, s, block, count;
};
struct ConvKSlices {
  ConvKSlice k_slice[kSumKSlices];
};

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_MAINLOOP_K_SLICES_H_
