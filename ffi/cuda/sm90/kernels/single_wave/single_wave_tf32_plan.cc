// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/kernels/single_wave/single_wave_tf32_plan.h"

#include <algorithm>
#include <iterator>

#include "cuda/sm90/kernels/single_wave/single_wave_plan.h"

namespace jax_convbatch::hopper {
namespace {

int64_t Taps(const SubproblemAxes& sub) {
  return int64_t{sub.h.taps.count} * sub.w.taps.count;
}

// How long so many tiles take a tap and 32 channels, in boxes of a pixel or a
// channel that one SM takes in: its own, all that pass the L2, and the product.
// Fitted to times of ResNet-50's layers at batches 1 to 32.
double SingleWaveTime(int64_t tiles, int m, int n, bool share,
                      int multiprocessors) {
  const double boxes = share ? (m + kTapReach + 3 * n) / 3.0 : m + n;
  const double busy = static_cast<double>(tiles) / multiprocessors;
  return boxes * (1 + 1.5 * std::min(busy, 1.0)) + m * n / 51.0;
}

}  // namespace

bool IsSingleWaveTf32(const Plan& plan) {
  return (plan.tile_n == 64 || plan.tile_n == 128) &&
         std::find(std::begin(kSingleWaveTf32Pixels),
                   std::end(kSingleWaveTf32Pixels),
                   plan.tile_m) != std::end(kSingleWaveTf32Pixels);
}

bool TapsShareInSingleWave(const SubproblemAxis& w, int channels) {
  SubproblemAxis longer = w;
  longer.count *= 4;
  return channels == 64 && TapsShare(longer);
}

Plan OrSingleWaveTf32(const Plan& plan, const Activations& in,
                      const Activations& out,
                      const std::vector<SubproblemAxes>& subs,
                      int multiprocessors) {
  if (!TakesSingleWave(Type::kTf32, in, out, subs)) return plan;
  const SubproblemAxes& sub = subs[0];
  auto tiles = [&](int m, int n, bool share) {
    const int64_t columns =
        share ? WithReach(sub).w.count : int64_t{sub.w.count};
    return (out.n * sub.h.count * columns + m - 1) / m * ((out.c + n - 1) / n);
  };
  const int m = plan.tile_m, n = plan.tile_n;
  const bool shares =
      subs.size() == 1 && m == 256 && n == 64 && TapsShare(sub.w);
  const int64_t given = tiles(m, n, shares);
  const int64_t rounds = (given - 1) / multiprocessors + 1;
  // Many short tiles in turns hide how they are stored.
  const int64_t stages = Taps(sub) * ((in.c + 31) / 32);
  if (subs.size() == 1 && rounds > 2 && stages <= 8) return plan;
  // Each warpgroup of tiles in turns waits for stages by itself; those of 160
  // to 224 pixels fill their wave.
  const bool fills = m >= 160 && (n == 128 || m < 256);
  const double slower = fills ? 1 : 1.25;
  double least = slower * static_cast<double>(rounds) *
                 SingleWaveTime(given, m, n, shares, multiprocessors);
  Plan best = plan;
  for (const int channels : {64, 128}) {
    const bool share =
        subs.size() == 1 && TapsShareInSingleWave(sub.w, channels);
    for (const int pixels : kSingleWaveTf32Pixels) {
      const int64_t count = tiles(pixels, channels, share);
      if (count > multiprocessors) continue;
      const double time =
          SingleWaveTime(count, pixels, channels, share, multiprocessors);
      if (time >= least) continue;
      best.tile_m = pixels, best.tile_n = channels;
      least = time;
    }
  }
  return best;
}

}  // namespace jax_convbatch::hopper
