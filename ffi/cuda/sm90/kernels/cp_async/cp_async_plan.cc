// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/kernels/cp_async/cp_async_plan.h"

#include <algorithm>
#include <cmath>

namespace jax_convbatch::hopper {
namespace {

constexpr int kTileM = 128;
constexpr int64_t kWgradWorkspace = 64 << 20;

int TileN(int64_t channels) { return channels <= 64 ? 64 : 128; }

}  // namespace

bool TakesCpAsync(const ConvGeometry& g) {
  constexpr double kLimit = 1 << 30;
  auto axis = [&](int64_t in, int64_t out, int64_t taps, int64_t stride,
                  int64_t pad, int64_t dilation, double element) {
    const double reach = std::abs(1.0 * pad) + 1.0 * taps * dilation + 8;
    return 1 <= in && 1 <= out && 1 <= taps && 1 <= stride && 1 <= dilation &&
           1.0 * stride < kLimit &&
           (1.0 * in + 1.0 * out * stride + reach) * element < kLimit;
  };
  const double most_channels = 1.0 * std::max(g.C, g.K) + 128;
  const double in_row = 1.0 * g.W * g.C, out_row = 1.0 * g.Q * g.K;
  return g.D == 1 && g.T == 1 && g.O == 1 && g.pad.d == 0 && g.groups == 1 &&
         g.input_dilation.all(1) && 1 <= g.N && 1 <= g.C && 1 <= g.K &&
         axis(g.W, g.Q, g.S, g.stride.w, g.pad.w, g.filter_dilation.w,
              most_channels) &&
         // Displacements of filter rows are counted in elements.
         axis(1, 1, g.R, 1, 0, g.filter_dilation.h,
              std::max(in_row, out_row)) &&
         axis(g.H, g.P, g.R, g.stride.h, g.pad.h, g.filter_dilation.h, 1) &&
         1.0 * g.taps() * (g.C + 16) * most_channels < kLimit &&
         1.0 * g.N * g.P * g.Q / 64 * most_channels < kLimit &&
         1.0 * g.N * g.H * g.W / 64 * most_channels < kLimit &&
         1.0 * g.N * g.P * g.Q < kLimit && 1.0 * g.N * g.H * g.W < kLimit;
}

namespace {

// Whether each operation was faster than columns in memory and cuBLAS, where
// both were measured: without columns cuBLAS is ahead, elsewhere what decides
// is how wide the loads are and how much of a tile is used.
bool IsFastFprop(const ConvGeometry& g) { return g.taps() > 1; }

bool IsFastDgrad(const ConvGeometry& g) {
  return g.taps() > 1 &&
         (IsPatches(g) || (g.C >= 16 && (g.K % 4 == 0 || g.K <= 65)));
}

bool IsFastWgrad(const ConvGeometry& g) {
  return g.taps() > 1 && g.C >= 64 &&
         ((g.C % 4 == 0 && g.K % 4 == 0) || g.K <= 65);
}

// In how many partials a tile's steps are done: what takes the fewest steps one
// after another.
int64_t Splits(const CpAsyncTiling& tiling, int64_t most, int multiprocessors) {
  // What a partial costs besides its steps.
  constexpr int64_t kFixed = 8;
  int64_t best = 1, least = 0;
  for (int64_t s = 1; s <= std::min(most, tiling.steps); ++s) {
    const int64_t each = (tiling.steps + s - 1) / s;
    const int64_t waves =
        (tiling.tiles() * s + multiprocessors - 1) / multiprocessors;
    const int64_t time = waves * (each + kFixed);
    if (s == 1 || time < least) {
      least = time;
      best = (tiling.steps + each - 1) / each;  // none of them empty
    }
  }
  return best;
}

}  // namespace

XRuns RunsOfX(const ConvGeometry& g) {
  const bool row = g.filter_dilation.w == 1 || g.S == 1;
  XRuns runs{};
  runs.count = row ? g.R : g.R * g.S;
  runs.length = row ? g.S * g.C : g.C;
  runs.cols = row ? 1 : g.S;
  runs.step_h = g.filter_dilation.h;
  runs.step_w = row ? 0 : g.filter_dilation.w * g.C;
  runs.vector =
      CommonVector(g.W * g.C, g.Q == 1 ? 0 : g.stride.w * g.C, runs.step_w);
  const int64_t start = -g.pad.w * g.C % runs.vector;
  runs.lead = static_cast<int>(start < 0 ? start + runs.vector : start);
  return runs;
}

std::optional<Plan> PlanCpAsyncFprop(const ConvGeometry& g,
                                     int multiprocessors) {
  return Plan{kTileM, TileN(g.K),     multiprocessors,
              0,      Path::kCpAsync, IsFastFprop(g)};
}

std::optional<Plan> PlanCpAsyncDgrad(const ConvGeometry& g,
                                     int multiprocessors) {
  if (IsPatches(g)) {
    return Plan{kTileM, TileN(g.taps() * g.C), multiprocessors, 0,
                Path::kCpAsync};
  }
  if (DgradSubproblems(g).empty()) return std::nullopt;
  return Plan{kTileM, TileN(g.C),     multiprocessors,
              0,      Path::kCpAsync, IsFastDgrad(g)};
}

std::optional<Plan> PlanCpAsyncWgrad(const ConvGeometry& g,
                                     int multiprocessors) {
  const int n = TileN(g.K);
  const int64_t partial = int64_t{4} * kTileM * n;
  const CpAsyncTiling tiling(g, kTileM, n);
  const int64_t most =
      std::max<int64_t>(1, kWgradWorkspace / (partial * tiling.tiles()));
  const int64_t splits = Splits(
      tiling, std::min<int64_t>(most, 4 * multiprocessors), multiprocessors);
  const int64_t blocks = tiling.tiles() * splits;
  return Plan{kTileM,
              n,
              static_cast<int>(blocks),
              splits == 1 ? 0 : blocks * partial,
              Path::kCpAsync,
              IsFastWgrad(g)};
}

}  // namespace jax_convbatch::hopper
