// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "cuda/sm80/simt/simt.h"
#include "cuda/sm80/simt/simt_subproblems.h"
#include "cuda/sm90/kernels/bf16x6/bf16x6.h"
#include "cuda/sm90/problem/subproblems.h"

namespace jax_convbatch::simt {
namespace {

// Sizes of the tiles in tile.cuh, how many blocks of each share an SM, how much
// of the rate of the largest they reach together, and one alone of that.
struct TileSize {
  int m, n, at_once;
  double rate, alone;
};
constexpr TileSize kTiles[] = {
    {128, 128, 2, 1.0, 0.8}, {128, 64, 3, 0.92, 0.7}, {64, 64, 4, 0.83, 0.6}};

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t Aligned(int64_t bytes) { return CeilDiv(bytes, 256) * 256; }

// Products of a stage of the largest tile take an SM some 2700 cycles; memory
// gives it some 16 bytes a cycle.
constexpr double kStageCycles = 2700, kBytesPerCycle = 16;
constexpr double kLaunchCycles = 4000;

constexpr int64_t kMostPartialBytes = int64_t{64} << 20;

// How long blocks take an SM, in times of one among others.
double Turns(const TileSize& tile, int64_t blocks, int multiprocessors) {
  const int64_t each = CeilDiv(blocks, multiprocessors);
  if (each <= tile.at_once) {
    const double busy =
        each == tile.at_once
            ? 1.0
            : tile.alone + (1.0 - tile.alone) * (each - 1.0) / tile.at_once;
    return static_cast<double>(each) / busy;
  }
  // Blocks of the last wave may meet on half of the SMs.
  const int64_t wave = int64_t{tile.at_once} * multiprocessors;
  const double last = static_cast<double>(blocks % wave) / wave;
  return tile.at_once * (static_cast<double>(blocks / wave) +
                         (last > 0 ? std::min(1.0, last + 0.4) : 0.0));
}

double Cycles(const TileSize& tile, int64_t blocks, double stages,
              int multiprocessors, double partial_bytes) {
  const double stage = kStageCycles * tile.m * tile.n / (128 * 128) / tile.rate;
  const double adding =
      partial_bytes > 0
          ? kLaunchCycles + 2 * partial_bytes / kBytesPerCycle / multiprocessors
          : 0.0;
  return Turns(tile, blocks, multiprocessors) * (stages + 2) * stage + adding;
}

// How many times what there is is multiplied where `size` is rounded up.
double Waste(int64_t size, int64_t unit) {
  return static_cast<double>(CeilDiv(size, unit) * unit) /
         static_cast<double>(size);
}
constexpr double kMostWaste = 3.0;  // columns waste less

struct Candidate {
  double cycles;
  Plan plan;
};

std::vector<Plan> Sorted(std::vector<Candidate> candidates) {
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) {
                     return a.cycles < b.cycles;
                   });
  std::vector<Plan> plans;
  for (const Candidate& each : candidates) plans.push_back(each.plan);
  return plans;
}

// One block forms all K slices of a tile, or each its own.
std::vector<int> Splits(int k_slices) {
  return k_slices > 1 ? std::vector<int>{1, k_slices} : std::vector<int>{1};
}

std::vector<Plan> ConvPlans(Op op, const ConvGeometry& g, int multiprocessors) {
  const auto subs = SubproblemsOf(op, g);
  const int64_t in_channels = op == Op::kFprop ? g.C : g.K;
  const int64_t out_channels = op == Op::kFprop ? g.K : g.C;
  const int64_t size = op == Op::kFprop ? g.y_size() : g.x_size();
  const bool preferred =
      Waste(in_channels, kDepth) * Waste(out_channels, 64) <= kMostWaste;
  std::vector<Candidate> candidates;
  for (const TileSize& tile : kTiles) {
    int64_t tiles = 0;
    double stages = 0;
    for (const auto& sub : subs) {
      const int64_t of_sub = CeilDiv(g.N * sub.h.count * sub.w.count, tile.m) *
                             CeilDiv(out_channels, tile.n);
      tiles += of_sub;
      stages += static_cast<double>(of_sub * Steps(sub, in_channels));
    }
    stages /= static_cast<double>(tiles);
    for (const int splits : Splits(KSlices(op, g, subs))) {
      const int64_t workspace = splits > 1 ? Aligned(size * splits * 4) : 0;
      if (workspace > kMostPartialBytes) continue;
      const Plan plan{tile.m,    tile.n,
                      splits,    static_cast<int>(tiles * splits),
                      workspace, preferred};
      candidates.push_back(
          {Cycles(tile, tiles * splits, stages / splits, multiprocessors,
                  static_cast<double>(workspace)),
           plan});
    }
  }
  return Sorted(candidates);
}

// dw's bits depend on the plan, so there is one.
std::vector<Plan> WgradPlans(const ConvGeometry& g, int multiprocessors,
                             bool hopper) {
  const int64_t rows = g.taps() * g.C;
  const int64_t steps = CeilDiv(g.N * g.P * g.Q, kDepth);
  // On Hopper measured ahead of columns, which waste less but do not divide the
  // pixels among blocks.
  const bool preferred =
      hopper || Waste(rows, 64) * Waste(g.K, 64) <= kMostWaste;
  std::vector<Candidate> candidates;
  for (const TileSize& tile : kTiles) {
    const int64_t tiles = CeilDiv(rows, tile.m) * CeilDiv(g.K, tile.n);
    const int64_t most = std::clamp<int64_t>(steps / 8, 1, 128);
    for (int64_t splits = 1; splits <= most; ++splits) {
      if (tiles * splits > 16 * multiprocessors && splits > 1) break;
      const int64_t bytes = splits > 1 ? Aligned(rows * g.K * splits * 4) : 0;
      if (bytes > kMostPartialBytes) break;
      const Plan plan{tile.m,
                      tile.n,
                      static_cast<int>(splits),
                      static_cast<int>(tiles * splits),
                      bytes,
                      preferred};
      candidates.push_back({Cycles(tile, tiles * splits,
                                   static_cast<double>(CeilDiv(steps, splits)),
                                   multiprocessors, static_cast<double>(bytes)),
                            plan});
    }
  }
  return {Sorted(candidates).front()};
}

std::vector<Plan> OfBf16x6(Op op, const ConvGeometry& g, int multiprocessors) {
  std::vector<Plan> plans;
  for (const hopper::Bf16x6Plan& bf16x6 :
       hopper::Bf16x6Plans(Bf16x6Op(op), g, multiprocessors)) {
    Plan plan{
        bf16x6.tile_m, bf16x6.tile_n,    bf16x6.split ? bf16x6.k_slices : 1,
        bf16x6.blocks, bf16x6.workspace, true};
    plan.bf16x6 = true;
    plan.k_slices = bf16x6.k_slices;
    plans.push_back(plan);
  }
  return plans;
}

// Small enough for the kernels' 32-bit numbers.
bool Fits(const ConvGeometry& g) {
  constexpr double kLimit = 1 << 30;
  auto reaches = [](int64_t taps, int64_t stride, int64_t pad, int64_t dilation,
                    int64_t in, int64_t out) {
    const double window = 1.0 * taps * dilation + std::abs(1.0 * pad);
    return 1.0 * out * stride + window < (1 << 24) && in + window < (1 << 24);
  };
  auto tile = [](int64_t h, int64_t w, int64_t c, int64_t pixels) {
    const double images = 128.0 / static_cast<double>(pixels) + 2;
    return images * (1.0 * h * w * c);
  };
  // Tiles of 64 pixels, the last of each sub-problem cut off, by 32 channels,
  // in eight K slices.
  auto blocks = [&](int64_t pixels, int64_t channels) {
    return (1.0 * g.N * pixels / 64 + kMostSubproblems) *
           static_cast<double>(channels / 32 + 1) * 8;
  };
  const double x_reach = 1.0 * (g.R * g.filter_dilation.h + g.H) *
                         (g.S * g.filter_dilation.w + g.W) * g.C;
  const double y_reach = 1.0 * (g.R * g.filter_dilation.h + g.P) *
                         (g.S * g.filter_dilation.w + g.Q) * g.K;
  return 1.0 * g.N * g.H * g.W < kLimit && 1.0 * g.N * g.P * g.Q < kLimit &&
         1.0 * g.taps() * std::max(g.C, g.K) < kLimit &&
         1.0 * g.C * g.K < kLimit && x_reach < kLimit && y_reach < kLimit &&
         tile(g.H, g.W, g.C, g.P * g.Q) < kLimit &&
         tile(g.P, g.Q, g.K, std::max<int64_t>(1, g.H * g.W / 64)) < kLimit &&
         blocks(g.H * g.W, g.C) < kLimit && blocks(g.P * g.Q, g.K) < kLimit &&
         reaches(g.R, g.stride.h, g.pad.h, g.filter_dilation.h, g.H, g.P) &&
         reaches(g.S, g.stride.w, g.pad.w, g.filter_dilation.w, g.W, g.Q);
}

}  // namespace

std::vector<hopper::SubproblemAxes> SubproblemsOf(Op op,
                                                  const ConvGeometry& g) {
  if (op == Op::kDgrad) return hopper::DgradSubproblems(g);
  return {hopper::FpropSubproblem(g)};
}

int Steps(const hopper::SubproblemAxes& sub, int64_t in_channels) {
  return static_cast<int>(int64_t{sub.h.taps.count} * sub.w.taps.count *
                          CeilDiv(in_channels, kDepth));
}

int KSlices(Op op, const ConvGeometry& g,
            const std::vector<hopper::SubproblemAxes>& subs) {
  // Blocks that a batch of eight should give, and steps that pay for one.
  constexpr int64_t kBlocks = 528, kLeast = 16, kMost = 8;
  const bool fprop = op == Op::kFprop;
  const int64_t pixels = fprop ? g.P * g.Q : g.H * g.W;
  const int64_t channels = fprop ? g.K : g.C;
  const int64_t tiles = CeilDiv(8 * pixels, 64) * CeilDiv(channels, 64);
  int64_t least = kMost * kLeast;
  for (const auto& sub : subs) {
    const int64_t steps = Steps(sub, fprop ? g.C : g.K);
    if (steps > 0) least = std::min(least, steps);
  }
  return static_cast<int>(
      std::clamp<int64_t>(std::min(kBlocks / tiles, least / kLeast), 1, kMost));
}

std::vector<Plan> Plans(Op op, const ConvGeometry& g, int multiprocessors,
                        bool hopper) {
  if (!hopper::IsPlain2d(g, hopper::Type::kTf32) || !Fits(g)) return {};
  if (hopper) {
    const std::vector<Plan> plans = OfBf16x6(op, g, multiprocessors);
    if (!plans.empty()) return plans;
  }
  if (op == Op::kWgrad) return WgradPlans(g, multiprocessors, hopper);
  if (SubproblemsOf(op, g).empty()) return {};
  return ConvPlans(op, g, multiprocessors);
}

std::string PlanName(const Plan& plan) {
  std::string name =
      std::to_string(plan.tile_m) + "x" + std::to_string(plan.tile_n);
  if (plan.splits > 1) name += "/" + std::to_string(plan.splits);
  return name;
}

std::optional<Plan> FindPlan(Op op, const ConvGeometry& g, int multiprocessors,
                             bool hopper, std::string_view name) {
  for (const Plan& plan : Plans(op, g, multiprocessors, hopper)) {
    if (name.empty() || PlanName(plan) == name) return plan;
  }
  return std::nullopt;
}

}  // namespace jax_convbatch::simt
