// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>

#include "cuda/sm80/direct/scalars.h"

namespace jax_convbatch::direct {
namespace {

// Products of an output, its channels, and products of a pixel.
constexpr int64_t kMostTerms = 128, kMostInputs = 12, kMostProducts = 512;
constexpr double kLimit = int64_t{1} << 31;

}  // namespace

std::optional<Plan> PlanScalars(Op op, const ConvGeometry& g, Type type,
                                int multiprocessors) {
  if (op == Op::kWgrad || (type != Type::kF32 && type != Type::kTf32) ||
      g.groups != 1 || !g.stride.all(1) || !g.input_dilation.all(1)) {
    return std::nullopt;
  }
  const bool dgrad = op == Op::kDgrad;
  const int64_t inner = dgrad ? g.K : g.C, outer = dgrad ? g.C : g.K;
  const int64_t terms = inner * g.taps();
  const bool few = outer <= kMostScalarOutputs && inner <= kMostInputs &&
                   terms <= kMostTerms && terms * outer <= kMostProducts;
  const bool there =
      std::min({g.N, g.C, g.K, g.taps(), g.D * g.H * g.W, g.O * g.P * g.Q}) > 0;
  const double sample = 1.0 * g.D * g.H * g.W * g.C;
  const double result = 1.0 * g.O * g.P * g.Q * g.K;
  if (!few || !there || std::max(sample, result) >= kLimit) {
    return std::nullopt;
  }
  const int64_t height = dgrad ? g.H : g.P;
  const int64_t lines = g.N * (dgrad ? g.D * g.W : g.O * g.Q);
  const auto items = [&](int rows) {
    return lines * ((height + rows - 1) / rows);
  };
  // Threads that are at work at the same time; a block loads the filter once.
  constexpr int kBlocks = 8;
  const int64_t threads = int64_t{kBlocks} * multiprocessors * kScalarThreads;
  Plan plan{};
  plan.tile_h = g.H * g.P * g.R == 1 ? 1 : kScalarRows;
  if (outer == 1 && plan.tile_h > 1 && 2 * items(kMoreScalarRows) >= threads) {
    plan.tile_h = kMoreScalarRows;
  }
  plan.tile_w = kScalarThreads;
  plan.tile_channels = static_cast<int>(outer);
  plan.channel_tiles = 1;
  plan.workers = static_cast<int>(
      (std::min(items(plan.tile_h), threads) + kScalarThreads - 1) /
      kScalarThreads);
  plan.preferred = true;
  plan.scalars = true;
  return plan;
}

}  // namespace jax_convbatch::direct
