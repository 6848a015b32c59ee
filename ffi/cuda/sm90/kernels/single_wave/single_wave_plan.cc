// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/kernels/single_wave/single_wave_plan.h"

#include <algorithm>
#include <limits>

#include "cuda/common/left_out.h"
#include "cuda/sm90/problem/k_slices.h"

namespace jax_convbatch::hopper {

bool TakesSingleWave(const std::vector<SubproblemAxes>& subs) {
  if (subs.empty() || subs.size() > kMaxSingleWaveSubproblems) return false;
  return std::all_of(subs.begin() + 1, subs.end(),
                     [](const SubproblemAxes& sub) { return sub.taps() == 0; });
}

Plan OrCluster(const Plan& plan, const Activations& in, const Activations& out,
               const std::vector<SubproblemAxes>& subs, int multiprocessors) {
  if (IsLeftOut(Family::kSingleWave) || plan.kernel == TileKernel::kRowBand ||
      subs.size() != 1 || !SumsInKSlices(in, out, subs[0])) {
    return plan;
  }
  const int64_t pixels = out.n * subs[0].pixels();
  auto tiles = [&](int m, int n) {
    return (pixels + m - 1) / m * ((out.c + n - 1) / n);
  };
  // Some SMs are left out: of 132, 30 clusters of four run at once.
  const int64_t room = 10 * multiprocessors / 11 / kSumKSlices;
  Plan best = plan;
  int64_t least = tiles(plan.tile_m, plan.tile_n) <= room
                      ? plan.tile_m + plan.tile_n
                      : std::numeric_limits<int64_t>::max();
  // What lies beyond the pixels is multiplied, too. A sixteenth is free, as
  // copies take longer: dgrad of 8x8 3840->1280 3x3 at batch 2, 128 pixels,
  // took 40 us by 64x64, and takes 28.5 by 136x128 (H200).
  const int64_t most = tiles(64, 128) * 64 * 128 * 17 / 16;
  for (const auto& [m, n] : kSplitKTiles) {
    if (tiles(m, n) <= room && tiles(m, n) * m * n <= most && m + n < least) {
      best.tile_m = m, best.tile_n = n;
      best.kernel = TileKernel::kSingleWave;
      least = m + n;
    }
  }
  return best;
}

}  // namespace jax_convbatch::hopper
