// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/kernels/skinny/skinny_plan.h"

#include <algorithm>
#include <cstdint>

#include "cuda/common/most_shared.h"
#include "cuda/sm90/problem/subproblems.h"

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
bool IsSkinny1x1(const ConvGeometry& g, Type type) {
  constexpr int64_t kFew = 32, kMost = 192;
  return g.is_pointwise() && IsPlain2d(g, type) && std::min(g.C, g.K) <= kFew &&
         std::max(g.C, g.K) <= kMost;
}

std::optional<Plan> MakePlan(const ConvGeometry& g, int64_t in, int64_t out,
                             Type type, int multiprocessors) {
  // Tiles whose weights stay in shared memory (resident_plan.h) have more:
  // 112x112 24->96 in bf16 at batch 64 52 us, 60 so; 28x28 24->192 7, 10; dgrad
  // of 112x112 136->32 97, 185; but 56x56 24->96 15, 13. In f32 56x56 16->96 at
  // batch 64 21, 26; dgrad of 150x150 80->24 at batch 128 340, 371 (H200).
  constexpr int64_t kMostOutputs = 64;
  const int groups = NarrowGroups(in, type);
  if (!IsSkinny1x1(g, type) || groups == 0 || Pixels(g) > kMostPixels ||
      out > kMostOutputs) {
    return std::nullopt;
  }
  const int pixels = NarrowTile(groups);
  const int64_t tiles = CeilDiv(Pixels(g), pixels * kSkinnyWarps);
  const auto blocks = static_cast<int>(
      std::min<int64_t>(tiles, multiprocessors * SkinnyResident(groups)));
  return Plan{pixels, static_cast<int>(out), blocks, 0, Path::kSmall};
}

// Of a larger dw.
std::optional<Plan> PlanRing(const ConvGeometry& g,
                             const SkinnyWgradShape& shape, Type type,
                             int multiprocessors) {
  if (shape.a_channels > 16 * kSkinnyMostBlocks ||
      shape.b_channels > kSkinnyMostColumns) {
    return std::nullopt;
  }
  // Of fewer pixels of an SM tiles are faster.
  const int64_t least = type == Type::kTf32 ? 8 : 64;
  if (Pixels(g) < least * multiprocessors) return std::nullopt;
  // TMA takes as long for a copy as some 1300 bytes take to come, and the
  // longer the runs, the fewer stages there are in the ring.
  constexpr int kLeastBytes = 2500, kMostBytes = 4700;  // of two runs
  const int pixel_bytes =
      (shape.a_channels + shape.b_channels) * ElementBytes(type);
  const int run = 8 * pixel_bytes < kLeastBytes   ? 16
                  : 8 * pixel_bytes <= kMostBytes ? 8
                  : 6 * pixel_bytes <= kMostBytes ? 6
                                                  : 4;
  const SkinnyRing ring(shape, type, run);
  const auto blocks = static_cast<int>(
      std::min<int64_t>(CeilDiv(Pixels(g), ring.pixels()), multiprocessors));
  return Plan{ring.pixels(), static_cast<int>(g.K), blocks,
              blocks * ring.partial_bytes(), Path::kSmall};
}

}  // namespace

int NarrowGroups(int64_t channels, Type type) {
  return LeastOf(kNarrowGroups, CeilDiv(channels * ElementBytes(type), 64));
}

SkinnyWgradShape::SkinnyWgradShape(const ConvGeometry& g)
    : flipped(g.K > g.C),
      a_channels(static_cast<int>(std::max(g.C, g.K))),
      b_channels(static_cast<int>(std::min(g.C, g.K))),
      a(LeastOf(kSkinnyA, a_channels)),
      b(LeastOf(kSkinnyB, b_channels)) {}

int SkinnyWgradShape::shared_bytes() const {
  return kSkinnyWarps * a_channels * b_channels * 4;
}

std::optional<Plan> PlanSkinnyFprop(const ConvGeometry& g, Type type,
                                    int multiprocessors) {
  return MakePlan(g, g.C, g.K, type, multiprocessors);
}

std::optional<Plan> PlanSkinnyDgrad(const ConvGeometry& g, Type type,
                                    int multiprocessors) {
  return MakePlan(g, g.K, g.C, type, multiprocessors);
}

SkinnyRing::SkinnyRing(const SkinnyWgradShape& shape, Type type, int run)
    : run(run),
      a_blocks(static_cast<int>(CeilDiv(shape.a_channels, 16))),
      columns(static_cast<int>(CeilDiv(shape.b_channels, 16) * 16)) {
  const int element = ElementBytes(type);
  // As loads of 16 channels may begin with the last eight.
  auto pitch = [&](int channels) {
    const int64_t bytes = int64_t{run} * channels * element;
    return static_cast<int>(CeilDiv(bytes, 128) * 128) + 8 * element;
  };
  a_pitch = pitch(shape.a_channels);
  b_pitch = pitch(shape.b_channels);
  stage_bytes = kSkinnyRuns * (a_pitch + b_pitch);
  ring = std::min(kSkinnyStages, kMostShared / stage_bytes);
}

int64_t SkinnyRing::partial_bytes() const {
  return int64_t{a_blocks} * 16 * columns * int64_t{sizeof(float)};
}

std::optional<Plan> PlanSkinnyWgrad(const ConvGeometry& g, Type type,
                                    int multiprocessors) {
  const SkinnyWgradShape shape(g);
  const bool by_eights = g.C % 8 == 0 && g.K % 8 == 0;
  if (!by_eights || !g.is_pointwise() || !IsPlain2d(g, type) ||
      Pixels(g) > kMostPixels) {
    return std::nullopt;
  }
  if (!shape.is_small()) return PlanRing(g, shape, type, multiprocessors);
  const int pixels = SkinnyWgradPixels(shape.a, shape.b, ElementBytes(type));
  const int64_t units = CeilDiv(Pixels(g), pixels * kSkinnyWarps);
  const int64_t most = multiprocessors * kSkinnyWgradResident;
  const auto blocks = static_cast<int>(std::min(units, most));
  return Plan{pixels, static_cast<int>(g.K), blocks, blocks * g.w_size() * 4,
              Path::kSmall};
}

}  // namespace jax_convbatch::hopper
