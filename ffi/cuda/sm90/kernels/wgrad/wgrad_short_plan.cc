// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <optional>

#include "cuda/common/left_out.h"
#include "cuda/sm90/kernels/wgrad/wgrad_short.h"
#include "cuda/sm90/kernels/wgrad/wgrad_short_tiling.h"

namespace jax_convbatch::hopper {
namespace {

constexpr int kMostCluster = 16;

// Clusters of so many blocks that an H200, whose SMs lie in groups, has at
// once.
int64_t RoomFor(int cluster, int multiprocessors) {
  constexpr int kH200 = 132;
  constexpr int kRoom[kMostCluster + 1] = {0, 132, 66, 39, 30, 22, 17, 15, 15,
                                           9, 7,   7,  7,  7,  7,  7,  7};
  return int64_t{kRoom[cluster]} * std::min(multiprocessors, kH200) / kH200;
}

double StepTime(const WgradShortTile& tile) {
  if (tile.m == kTapRowM) return 0.171;
  if (tile.n == 64) return tile.m == 64 ? 0.111 : 0.161;
  return tile.m == 128 ? 0.297 : 0.392;
}

// Microseconds on an H200. The constants are fitted to times of 291 plans of 51
// layers, of ResNet-50 and of random draws.
double EstimateTime(const ConvGeometry& g, const WgradShortTile& tile,
                    const WgradShortTiling& tiling, const Plan& plan,
                    int multiprocessors) {
  constexpr double kFixed = 1.87;
  constexpr double kCopyRate = 28.4e6;   // bytes a microsecond
  constexpr double kMemoryRate = 9.3e6;  // the L2 has most of what is read
  constexpr double kIdle = 0.05;         // of both, where all SMs are idle
  constexpr double kExchange = 0.222, kExchangeBlock = 0.016;
  // Each block beyond these: all of a cluster lie in one group.
  constexpr int kGroup = 12;
  constexpr double kBeyondGroup = 0.26;
  // Of 1x1 filters in many clusters of nine, which crowd some groups.
  constexpr double kNine = 0.3;
  constexpr double kSentByte = 61.3e-6, kStoredByte = 16.9e-6;
  constexpr double kAddLaunch = 1.69, kPartialsRate = 2.11e6;
  constexpr double kAddPartial = 0.01;  // of a tile
  // Steps, copies and memory overlap: the longest counts most.
  constexpr double kOverlap = 2.15;
  const int64_t tiles = tiling.tiles();
  const int64_t splits = plan.blocks / tiles;
  const double steps = static_cast<double>((tiling.steps - 1) / splits + 1);
  const double read = 2.0 * (static_cast<double>(g.x_size()) * ShareRead(g) +
                             static_cast<double>(g.y_size()));
  const double sums = 4.0 * tile.m * tile.n;  // bytes
  const double rate =
      1 - kIdle * std::max(0.0, 1.0 - 1.0 * plan.blocks / multiprocessors);
  auto power = [](double time) { return std::pow(time, kOverlap); };
  double time =
      kFixed + std::pow(power(steps * StepTime(tile)) +
                            power(plan.blocks * steps *
                                  static_cast<double>(tile.step_bytes()) /
                                  (kCopyRate * rate)) +
                            power(read / (kMemoryRate * rate)),
                        1 / kOverlap);
  if (plan.cluster > 1) {
    time += kExchange + kExchangeBlock * plan.cluster +
            kBeyondGroup * std::max(0, plan.cluster - kGroup) +
            kNine * (plan.cluster == 9 && tiles >= 8 && g.taps() == 1) +
            kSentByte * sums * (plan.cluster - 1) / plan.cluster;
  }
  if (plan.workspace > 0) {
    const auto partials = static_cast<double>(plan.blocks / plan.cluster);
    return time + kAddLaunch +
           kAddPartial * partials / static_cast<double>(tiles) +
           partials * sums / kPartialsRate;
  }
  return time + kStoredByte * sums / plan.cluster;
}

}  // namespace

std::vector<TimedPlan> PlansOfWgradShort(const ConvGeometry& g, Type type,
                                         int multiprocessors) {
  std::vector<TimedPlan> plans;
  if (IsLeftOut(Family::kWgradShort)) return plans;
  for (const WgradShortTile& tile : kWgradShortTiles) {
    if (!WgradShortTiling::Covers(g, tile.m, tile.n)) continue;
    const WgradShortTiling tiling(g, tile.m, tile.n);
    const int64_t tiles = tiling.tiles();
    auto add = [&](int cluster, int64_t clusters) {  // of a tile
      Plan plan{tile.m, tile.n, static_cast<int>(tiles * cluster * clusters),
                0};
      plan.cluster = cluster;
      if (!IsShort(g, type, plan)) return;
      if (clusters > 1) {
        plan.workspace = tiles * clusters * tile.m * tile.n *
                         static_cast<int64_t>(sizeof(float));
      }
      plans.push_back(
          {plan, EstimateTime(g, tile, tiling, plan, multiprocessors)});
    };
    for (int cluster = 1; cluster <= kMostCluster; ++cluster) {
      const int64_t most = RoomFor(cluster, multiprocessors) / tiles;
      if (most == 0 || tile.shared_bytes(cluster) > kMostShared) continue;
      add(cluster, 1);
      // AddWgradPartials knows no rows of taps.
      if (cluster > 1 && most > 1 && tile.m != kTapRowM) add(cluster, most);
    }
  }
  return plans;
}

}  // namespace jax_convbatch::hopper
