// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>

#include "cuda/sm80/direct/scalars.h"

namespace jax_convbatch::direct {
namespace {

// Products of an output, its channels, and products of a pixel.
constexpr int64_t kMostTerms = 128, kMostInputs = 12, kMostProducts = 512;
// Of more outputs, which threads share: how many, products of one, and those
// where no row of pixels serves several taps. 6->34 1x1x1 of 34x34x34 takes 31
// us in folds, 42 so; 10->34 3x3 40 and 62 (H200).
constexpr int64_t kMostShared = 128, kMostSharedTerms = 45, kMostUnreused = 3;
// Of so many outputs in fours there are tiles for stems.
constexpr int64_t kLeastStem = 16;
constexpr double kLimit = int64_t{1} << 31;

// The outputs of a thread: of those that are shared as many as one access of
// memory has.
int OutputsOfThread(int64_t outputs) {
  if (outputs <= kMostScalarOutputs) return static_cast<int>(outputs);
  return outputs % 4 == 0 ? 4 : 2;
}

// Whether a kernel has the taps along a column, neighbours, unrolled.
bool ReusesRows(const ConvGeometry& g) {
  const int64_t taps = IsSequence(g) ? g.S : g.R;
  const int64_t step =
      IsSequence(g) ? g.filter_dilation.w : g.filter_dilation.h;
  return step == 1 && (taps == 3 || taps == 5);
}

// Of so many inputs and outputs. Tiles of matrices have kernels of their own
// for outputs in fours: dgrad of 64->1 3x3 of 256x256 takes 39 us by these, 48
// so.
bool IsFew(const ConvGeometry& g, int64_t inner, int64_t outer) {
  const int64_t terms = inner * g.taps();
  if (inner > kMostInputs || terms > kMostTerms) return false;
  if (outer <= kMostScalarOutputs) return terms * outer <= kMostProducts;
  if (terms > (ReusesRows(g) ? kMostSharedTerms : kMostUnreused)) return false;
  return (outer % 4 == 2 && outer <= kMostShared) ||
         (outer % 4 == 0 && inner == 1 && outer < kLeastStem);
}

}  // namespace

std::optional<Plan> PlanScalars(Op op, const ConvGeometry& g, Type type,
                                int multiprocessors) {
  if (op == Op::kWgrad || (type != Type::kF32 && type != Type::kTf32) ||
      g.groups != 1 || !g.stride.all(1) || !g.input_dilation.all(1)) {
    return std::nullopt;
  }
  const bool dgrad = op == Op::kDgrad;
  const int64_t inner = dgrad ? g.K : g.C, outer = dgrad ? g.C : g.K;
  const bool there =
      std::min({g.N, g.C, g.K, g.taps(), g.D * g.H * g.W, g.O * g.P * g.Q}) > 0;
  const double sample = 1.0 * g.D * g.H * g.W * g.C;
  const double result = 1.0 * g.O * g.P * g.Q * g.K;
  if (!IsFew(g, inner, outer) || !there || std::max(sample, result) >= kLimit) {
    return std::nullopt;
  }
  const bool sequence = IsSequence(g);
  const int64_t columns = dgrad ? g.W : g.Q;
  const int64_t height = sequence ? columns : dgrad ? g.H : g.P;
  const int64_t lines = g.N * (dgrad ? g.D : g.O) * (sequence ? 1 : columns);
  const int outputs = OutputsOfThread(outer);
  const auto items = [&](int rows) {
    return lines * ((height + rows - 1) / rows) * (outer / outputs);
  };
  // Threads that are at work at the same time; a block loads the filter once.
  constexpr int kBlocks = 8;
  const int64_t threads = int64_t{kBlocks} * multiprocessors * kScalarThreads;
  Plan plan{};
  const bool shared = outputs < outer;
  plan.tile_h = sequence && !shared ? 1 : kScalarRows;
  if ((outer == 1 || shared) && plan.tile_h > 1 &&
      2 * items(kMoreScalarRows) >= threads) {
    plan.tile_h = kMoreScalarRows;
  }
  plan.tile_w = kScalarThreads;
  plan.tile_channels = outputs;
  plan.channel_tiles = 1;
  plan.workers = static_cast<int>(
      (std::min(items(plan.tile_h), threads) + kScalarThreads - 1) /
      kScalarThreads);
  plan.preferred = true;
  plan.scalars = true;
  return plan;
}

}  // namespace jax_convbatch::direct
