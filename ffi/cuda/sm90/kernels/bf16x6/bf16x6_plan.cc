// SPDX-License-Identifier: Apache-2.0
// How f32 runs by six products.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "cuda/sm90/kernels/bf16x6/bf16x6.h"
#include "cuda/sm90/problem/subproblems.h"
#include "cuda/sm90/problem/wgrad_tiling.h"

namespace jax_convbatch::hopper {
namespace {

constexpr int64_t kMostPartialBytes = int64_t{64} << 20;

// Cycles: of a step of 32 terms for each result of a tile, of its start and
// end for each result, of a launch; and bytes that memory gives in one. Fitted
// to layers of ResNet-50 at batch 256 and 8 on an H200.
constexpr double kPerTerms = 32 * 3 / 1024.0, kPerResult = 0.15;
constexpr double kLaunch = 4000, kBytes = 2400;

// Smaller tiles move more bytes for each product.
struct TileSize {
  int m, n;
  double slower;
};

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t Aligned(int64_t bytes) { return CeilDiv(bytes, 256) * 256; }

// How many times what there is is multiplied where `size` is rounded up.
double Waste(int64_t size, int64_t unit) {
  return static_cast<double>(CeilDiv(size, unit) * unit) /
         static_cast<double>(size);
}

struct Candidate {
  double cycles;
  Bf16x6Plan plan;
};

std::vector<Bf16x6Plan> Sorted(std::vector<Candidate> candidates) {
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) {
                     return a.cycles < b.cycles;
                   });
  std::vector<Bf16x6Plan> plans;
  for (const Candidate& each : candidates) plans.push_back(each.plan);
  return plans;
}

double TileCycles(const TileSize& tile, double stages) {
  return tile.m * tile.n * (stages * kPerTerms * tile.slower + kPerResult);
}

// Subproblems of which a batch of eight would give too few blocks are summed in
// K slices. It does not depend on N, so that a sample's bits do not.
int KSlicesOf(const Activations& out, const std::vector<SubproblemAxes>& subs,
              int64_t channel_blocks) {
  constexpr int64_t kBlocks = 132, kLeastStages = 12, kMost = 8;
  const int64_t tiles = CeilDiv(8 * out.h * out.w, 128) * CeilDiv(out.c, 64);
  int64_t least = kMost * kLeastStages;
  for (const SubproblemAxes& sub : subs) {
    const int64_t stages =
        int64_t{sub.h.taps.count} * sub.w.taps.count * channel_blocks;
    if (stages > 0) least = std::min(least, stages);
  }
  return static_cast<int>(std::clamp<int64_t>(
      std::min(kBlocks / tiles, least / kLeastStages), 1, kMost));
}

std::vector<Bf16x6Plan> ConvPlans(Op op, const ConvGeometry& g,
                                  int multiprocessors) {
  constexpr TileSize kTiles[] = {
      {128, 128, 1.0}, {256, 64, 1.12}, {128, 64, 1.22}};
  const bool fprop = op == Op::kFprop;
  const Activations in = fprop ? InputOf(g) : OutputOf(g);
  const Activations out = fprop ? OutputOf(g) : InputOf(g);
  const std::vector<SubproblemAxes> subs =
      fprop ? std::vector<SubproblemAxes>{FpropSubproblem(g)}
            : DgradSubproblems(g);
  if (subs.empty()) return {};
  for (const SubproblemAxes& sub : subs) {
    if (!IsWalkable(Type::kTf32, in, out, sub)) return {};
  }
  const int64_t channel_blocks = CeilDiv(in.c, 32);
  const int k_slices = KSlicesOf(out, subs, channel_blocks);
  const int64_t filter_bytes = Bf16x6FilterBytes(op, g);
  const int64_t sum_bytes =
      Aligned(out.n * out.h * out.w * out.c * 4 * k_slices);
  std::vector<Candidate> candidates;
  for (const TileSize& tile : kTiles) {
    const int m = tile.m, n = tile.n;
    int64_t tiles = 0;
    double stages = 0;
    for (const SubproblemAxes& sub : subs) {
      const int64_t of_sub =
          CeilDiv(g.N * sub.h.count * sub.w.count, m) * CeilDiv(out.c, n);
      tiles += of_sub;
      stages += static_cast<double>(of_sub * sub.h.taps.count *
                                    sub.w.taps.count * channel_blocks);
    }
    stages /= static_cast<double>(tiles);
    for (int splits = 1; splits <= k_slices;
         splits += std::max(k_slices - 1, 1)) {
      const bool split = splits > 1;
      if (split && sum_bytes > kMostPartialBytes) break;
      const int64_t units = tiles * splits;
      const double rounds =
          static_cast<double>(CeilDiv(units, multiprocessors));
      const double adding =
          split ? kLaunch + 2 * static_cast<double>(sum_bytes) / kBytes : 0;
      candidates.push_back(
          {rounds * TileCycles(tile, stages / splits) + adding,
           {m, n, k_slices,
            static_cast<int>(std::min<int64_t>(units, multiprocessors)), split,
            filter_bytes + (split ? sum_bytes : 0)}});
    }
  }
  return Sorted(candidates);
}

// dw's bits depend on the plan, so there is one.
std::vector<Bf16x6Plan> WgradPlans(const ConvGeometry& g, int multiprocessors) {
  constexpr TileSize kTiles[] = {
      {128, 128, 1.0}, {256, 64, 1.1}, {kTapRowTile, 64, 1.06}};
  // Where blocks start tiles together, they find each other's pixels in the L2.
  constexpr double kApart = 1.04;
  if (!IsWalkable(Type::kTf32, InputOf(g), OutputOf(g), FpropSubproblem(g))) {
    return {};
  }
  std::vector<Candidate> candidates;
  for (const TileSize& tile : kTiles) {
    const int m = tile.m, n = tile.n;
    if (m == kTapRowTile && !TapsShare(FpropSubproblem(g).w)) continue;
    const WgradTiling tiling(g, Type::kTf32, m, n);
    const int64_t tiles = tiling.tiles(), line = tiles * tiling.steps;
    const int64_t all = std::min<int64_t>(multiprocessors, line);
    const int64_t together = std::max<int64_t>(1, all / tiles) * tiles;
    for (const int64_t blocks :
         {std::min(all, together), all, all / 2, all / 4, all / 8}) {
      if (blocks == 0) continue;
      const int64_t bytes =
          tiles % blocks == 0 ? 0 : Aligned(2 * blocks * m * n * 4);
      const double steps = static_cast<double>(CeilDiv(line, blocks));
      const double adding =
          bytes > 0 ? kLaunch + static_cast<double>(bytes) / kBytes : 0;
      candidates.push_back(
          {TileCycles(tile, steps) * (blocks % tiles == 0 ? 1.0 : kApart) +
               adding,
           {m, n, 1, static_cast<int>(blocks), false, bytes}});
    }
  }
  return {Sorted(candidates).front()};
}

}  // namespace

std::vector<Bf16x6Plan> Bf16x6Plans(Op op, const ConvGeometry& g,
                                    int multiprocessors) {
  // Columns are not filled up with zeros.
  constexpr double kMostWaste = 4.0;
  const double waste = op == Op::kDgrad ? Waste(g.K, 32) * Waste(g.C, 64)
                                        : Waste(g.C, 32) * Waste(g.K, 64);
  if (!IsPlain2d(g, Type::kTf32) || waste > kMostWaste) return {};
  return op == Op::kWgrad ? WgradPlans(g, multiprocessors)
                          : ConvPlans(op, g, multiprocessors);
}

}  // namespace jax_convbatch::hopper
