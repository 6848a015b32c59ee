// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "cuda/sm80/scalars/scalars.h"
#include "cuda/sm80/scalars/wgrad.h"

namespace jax_convbatch::direct {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Whether they are ahead of tensor cores, which need copies of x or y with
// zeros where channels come in other numbers than fours: in large images and
// volumes. The batch does not count. `f`: the convolution, dgrad as the fprop
// that it is; other ways of dgrad take longer. Many inputs to one or two
// outputs are few, too; in dgrad not so many, of which columns take less. A few
// inputs to many outputs have kernels that leave tensor cores little empty, and
// one input has its own.
bool AreFew(bool dgrad, const ConvGeometry& g, const ConvGeometry& f) {
  const int64_t most_products = dgrad ? 100 : 36;
  const int64_t fewest_outputs = g.D > 1 ? 30000 : 10000;
  const bool quads = g.C % 4 == 0 && g.K % 4 == 0;
  const bool filled = 2 <= f.C && f.C <= 7 && f.K >= 16 && f.K % 4 == 0;
  const bool one = g.C == 1 && g.K % 4 == 0;
  const bool few = g.C * g.K <= most_products && std::max(g.C, g.K) <= 64;
  const bool to_few = f.K <= 2 && f.C <= (dgrad ? 48 : 128);
  return g.taps() > 1 && f.O * f.P * f.Q >= fewest_outputs && (few || to_few) &&
         !quads && !filled && !one;
}

// Whether all numbers that kernels have in 32 bits fit them.
bool IsSmall(const ConvGeometry& g) {
  constexpr int64_t kLimit = int64_t{1} << 30;
  const auto axis = [&](int64_t in, int64_t out, int64_t taps, int64_t stride,
                        int64_t pad, int64_t dilation) {
    const double reach = 1.0 * (taps - 1) * dilation + 1.0 * out * stride;
    return in > 0 && out > 0 && in + reach + std::abs(1.0 * pad) < kLimit;
  };
  return g.N > 0 && g.C > 0 && g.K > 0 && g.taps() < 1 << 20 &&
         axis(g.D, g.O, g.T, g.stride.d, g.pad.d, g.filter_dilation.d) &&
         axis(g.H, g.P, g.R, g.stride.h, g.pad.h, g.filter_dilation.h) &&
         axis(g.W, g.Q, g.S, g.stride.w, g.pad.w, g.filter_dilation.w) &&
         1.0 * g.W * g.C < kLimit && 1.0 * g.Q * g.K < kLimit &&
         1.0 * g.N * g.O * g.P < kLimit;
}

}  // namespace

ScalarShape::ScalarShape(const ConvGeometry& given, bool dgrad, int warps)
    : g(dgrad ? DgradAsFprop(given) : given) {
  chunk = static_cast<int>(std::min<int64_t>(g.C, kScalarChunk));
  pitch = chunk | 1;  // pixels side by side are in different banks
  outputs = ScalarOutputs(g.K);
  k_warps = static_cast<int>(CeilDiv(g.K, outputs));
  pixel_warps = std::max(1, warps / k_warps);
  const int64_t pixels = int64_t{32} * ScalarPixels(outputs) * pixel_warps;
  across = CeilDiv(g.Q, pixels);
  tile_cols = CeilDiv(g.Q, across);
  tile_rows = std::min(pixels / tile_cols, rows());
}

ScalarRunShape::ScalarRunShape(const ConvGeometry& given, bool dgrad, int warps)
    : g(dgrad ? DgradAsFprop(given) : given), pixel_warps(warps) {
  // A narrow tile brings the fewest rows that it shares with others.
  constexpr int64_t kMostRuns = 4;
  const int64_t threads = int64_t{32} * warps, whole = CeilDiv(g.Q, kScalarRun);
  across = CeilDiv(whole, std::max(kMostRuns, threads / g.P));
  runs = CeilDiv(whole, across);
  down = CeilDiv(g.P, std::max<int64_t>(1, threads / runs));
  tile_rows = CeilDiv(g.P, down);
}

namespace {

std::optional<Plan> PlanRuns(const ConvGeometry& g, bool dgrad,
                             int multiprocessors) {
  constexpr int kMostWarps = kScalarRunWarps / kScalarRunParts;
  constexpr int64_t kMostBytes = 100 << 10, kBlocks = 2;  // two on an SM
  // Not of the batch: other kernels add in another order.
  const ScalarRunShape largest(g, dgrad, kMostWarps);
  if (!largest.exists() || largest.shared_bytes() > kMostBytes) {
    return std::nullopt;
  }
  const bool fills = largest.tiles() >= kBlocks * multiprocessors;
  const ScalarRunShape shape(g, dgrad, fills ? kMostWarps : 1);
  if (shape.tiles() >= int64_t{1} << 31) return std::nullopt;
  Plan plan{};
  plan.tile_h = static_cast<int>(shape.tile_rows);
  plan.tile_w = static_cast<int>(shape.tile_cols());
  plan.tile_channels = static_cast<int>(shape.g.K);
  plan.channel_tiles = 1;
  plan.workers = static_cast<int>(shape.tiles());
  plan.preferred = true;
  plan.scalars = shape.pixel_warps;
  plan.runs = true;
  return plan;
}

}  // namespace

std::optional<Plan> PlanScalars(Op op, const ConvGeometry& g,
                                int multiprocessors) {
  constexpr int64_t kBlocks = 3;  // of an SM
  const bool dgrad = op == Op::kDgrad;
  if (g.groups != 1 || !g.input_dilation.all(1) ||
      (dgrad && !g.stride.all(1))) {
    return std::nullopt;
  }
  const ConvGeometry f = dgrad ? DgradAsFprop(g) : g;
  if (!AreFew(dgrad, g, f) || !IsSmall(f)) {
    return std::nullopt;
  }
  if (op == Op::kWgrad) return PlanScalarWgrad(g, multiprocessors);
  if (const auto plan = PlanRuns(g, dgrad, multiprocessors)) return plan;
  for (int warps = kScalarMostWarps; warps >= 1; warps /= 2) {
    const ScalarShape shape(g, dgrad, warps);
    // Smaller tiles where they would leave SMs without one.
    const bool fills =
        shape.tiles() >= kBlocks * multiprocessors || shape.pixel_warps == 1;
    if (shape.shared_bytes() > kScalarMostBytes || !fills) continue;
    if (shape.tiles() >= int64_t{1} << 31) return std::nullopt;
    Plan plan{};
    plan.tile_h = static_cast<int>(shape.tile_rows);
    plan.tile_w = static_cast<int>(shape.tile_cols);
    plan.tile_channels = static_cast<int>(shape.g.K);
    plan.channel_tiles = 1;
    plan.workers = static_cast<int>(shape.tiles());
    plan.preferred = true;
    plan.scalars = shape.pixel_warps * shape.k_warps;
    return plan;
  }
  return std::nullopt;
}

}  // namespace jax_convbatch::direct
