#include "cuda/hopper/narrow_plan.h"

#include <algorithm>
#include <cstdint>

#include "cuda/hopper/conv_parts.h"
#include "cuda/hopper/narrow_tiling.h"

namespace jax_convbatch::hopper {
namespace {

constexpr int64_t kMostPixels = int64_t{1} << 40;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t Pixels(const ConvGeometry& g) { return g.N * g.output_pixels(); }

// The least of ascending numbers that is no less, or 0.
template <int kCount>
int LeastOf(const int (&of)[kCount], int64_t number) {
  for (const int one : of) {
    if (one >= number) return one;
  }
  return 0;
}

// Wider ones fill boxes of 64 channels.
bool IsNarrow1x1(const ConvGeometry& g, Type type) {
  constexpr int64_t kFew = 32, kMost = 192;
  return g.is_pointwise() && IsPlain2d(g, type) && std::min(g.C, g.K) <= kFew &&
         std::max(g.C, g.K) <= kMost;
}

std::optional<Plan> MakePlan(const ConvGeometry& g, int64_t in, int64_t out,
                             Type type, int multiprocessors) {
  const int groups = NarrowGroups(in, type);
  if (!IsNarrow1x1(g, type) || groups == 0 || Pixels(g) > kMostPixels) {
    return std::nullopt;
  }
  const int pixels = NarrowTile(groups);
  const int64_t tiles = CeilDiv(Pixels(g), pixels * kNarrowWarps);
  const auto blocks = static_cast<int>(
      std::min<int64_t>(tiles, multiprocessors * NarrowResident(groups)));
  return Plan{pixels, static_cast<int>(out), blocks, 0, Path::kSmall};
}

}  // namespace

int NarrowGroups(int64_t channels, Type type) {
  return LeastOf(kNarrowGroups, CeilDiv(channels * ElementBytes(type), 64));
}

NarrowWgradShape::NarrowWgradShape(const ConvGeometry& g)
    : flipped(g.K > g.C),
      a_channels(static_cast<int>(std::max(g.C, g.K))),
      b_channels(static_cast<int>(std::min(g.C, g.K))),
      a(LeastOf(kNarrowA, a_channels)),
      b(LeastOf(kNarrowB, b_channels)) {}

int NarrowWgradShape::shared_bytes() const {
  return kNarrowWarps * a_channels * b_channels * 4;
}

std::optional<Plan> PlanNarrowFprop(const ConvGeometry& g, Type type,
                                    int multiprocessors) {
  return MakePlan(g, g.C, g.K, type, multiprocessors);
}

std::optional<Plan> PlanNarrowDgrad(const ConvGeometry& g, Type type,
                                    int multiprocessors) {
  return MakePlan(g, g.K, g.C, type, multiprocessors);
}

std::optional<Plan> PlanNarrowWgrad(const ConvGeometry& g, Type type,
                                    int multiprocessors) {
  const NarrowWgradShape shape(g);
  if (!IsNarrow1x1(g, type) || shape.a == 0 || shape.b == 0 ||
      shape.a_channels % 8 != 0 || shape.b_channels % 8 != 0 ||
      Pixels(g) > kMostPixels) {
    return std::nullopt;
  }
  // Where each block has much to add up, it has to have many pixels first.
  constexpr int kSmallFilter = 1536;
  constexpr int64_t kManyPixels = 1000;  // of a multiprocessor
  if (shape.a * shape.b > kSmallFilter &&
      Pixels(g) < kManyPixels * multiprocessors) {
    return std::nullopt;
  }
  const int pixels = NarrowWgradPixels(shape.a, shape.b, ElementBytes(type));
  const int64_t units = CeilDiv(Pixels(g), pixels * kNarrowWarps);
  const int64_t most = multiprocessors * NarrowWgradResident(shape.a, shape.b);
  const auto blocks = static_cast<int>(std::min(units, most));
  return Plan{pixels, static_cast<int>(g.K), blocks, blocks * g.w_size() * 4,
              Path::kSmall};
}

}  // namespace jax_convbatch::hopper
