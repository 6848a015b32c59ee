#include <algorithm>
#include <cstdint>

#include "cuda/hopper/layer_backward.h"

namespace jax_convbatch::hopper {
namespace {

int64_t Pixels(const ConvGeometry& g) { return g.N * g.output_pixels(); }

}  // namespace

bool HasLayerBackward(const ConvGeometry& g, Type type) {
  auto is = [&](int64_t C, int64_t K) { return g.C == C && g.K == K; };
  const bool narrow = is(64, 64) || is(64, 256) || is(256, 64) || is(128, 128);
  const int64_t pixels = Pixels(g);
  // The copy of a tile's signs is a multiple of 16 bytes.
  return narrow && type != Type::kTf32 && g.groups == 1 && g.is_pointwise() &&
         pixels > 0 && pixels * g.K % 128 == 0 &&
         pixels < INT32_MAX - kBackwardPixels;
}

// Each with a tile for both warpgroups, where there are so many.
int LayerBackwardBlocks(const ConvGeometry& g, int multiprocessors) {
  const int64_t pairs =
      (Pixels(g) + 2 * kBackwardPixels - 1) / (2 * kBackwardPixels);
  return static_cast<int>(std::min<int64_t>(pairs, multiprocessors));
}

int64_t LayerBackwardWorkspace(const ConvGeometry& g, int multiprocessors) {
  return LayerBackwardBlocks(g, multiprocessors) * (g.C + 1) * g.K * 4;
}

}  // namespace jax_convbatch::hopper
