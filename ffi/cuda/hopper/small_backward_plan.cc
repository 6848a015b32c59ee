#include "cuda/hopper/small_backward_plan.h"

#include <algorithm>
#include <cstdint>

namespace jax_convbatch::hopper {
namespace {

constexpr int64_t kShared = 226 << 10;  // of a multiprocessor, usable
// Places of a tile of several images, at most: some sixteen for each warp.
constexpr int64_t kPlaces = 192;

SmallGrid GridOf(const ConvGeometry& g, int64_t images) {
  const int64_t image = (g.H + 1) * (g.W + 1);
  const int64_t span = (images - 1) * image + g.H * (g.W + 1) - 1;
  const int64_t sixteens = (span + 15) / 16, first = g.W + 2;
  // Room, too, for what threads have of db when a block is done.
  const int64_t places = std::max<int64_t>(first + sixteens * 16 + g.W + 2, 48);
  return {static_cast<int>(images), static_cast<int>(images * g.H * g.W),
          static_cast<int>(places), static_cast<int>(first),
          static_cast<int>(sixteens)};
}

int64_t BytesOf(const ConvGeometry& g, const SmallGrid& grid) {
  const int64_t pixels = grid.pixels, places = grid.places;
  return 4 * (g.w_size() + (places + pixels) * (g.C + g.K)) +
         kMostSmallFours / 2 + 2 * (places + pixels);
}

}  // namespace

bool HasSmallBackward(const ConvGeometry& g, Type type) {
  auto is_small = [](int64_t channels) {
    return channels == 16 || channels == 32;
  };
  if (type != Type::kTf32 || !is_small(g.C) || !is_small(g.K) ||
      g.C + g.K == 32 || g.groups != 1 || g.D != 1 || g.O != 1 || g.T != 1 ||
      g.R != 3 || g.S != 3 || !g.stride.all(1) || g.pad.d != 0 ||
      g.pad.h != 1 || g.pad.w != 1 || g.P != g.H || g.Q != g.W ||
      !g.input_dilation.all(1) || !g.filter_dilation.all(1)) {
    return false;
  }
  constexpr int64_t kMost = int64_t{1} << 30;
  if (g.N < 1 || g.N > kMost || g.H < 1 || g.W < 1 || g.H > 128 || g.W > 128) {
    return false;
  }
  const SmallGrid grid = GridOf(g, 1);
  return grid.pixels * g.K <= 4 * kMostSmallFours &&
         BytesOf(g, grid) <= kShared;
}

SmallGrid SmallGridOf(const ConvGeometry& g, int multiprocessors) {
  // Several images only where every multiprocessor has some.
  const int64_t each = (g.N + multiprocessors - 1) / multiprocessors;
  int64_t images = 1;
  auto fits = [&](int64_t count) {
    const SmallGrid grid = GridOf(g, count);
    return grid.sixteens * 16 <= kPlaces &&
           grid.pixels * g.K <= 4 * kMostSmallFours &&
           BytesOf(g, grid) <= kShared;
  };
  while (images < each && fits(images + 1)) ++images;
  return GridOf(g, images);
}

int64_t SmallBackwardBytes(const ConvGeometry& g, const SmallGrid& grid) {
  return BytesOf(g, grid);
}

int SmallBackwardBlocks(const ConvGeometry& g, const SmallGrid& grid,
                        int multiprocessors) {
  const int64_t tiles = (g.N + grid.images - 1) / grid.images;
  const bool two = g.C + g.K < 64 && 2 * (BytesOf(g, grid) + 2048) <= kShared;
  return static_cast<int>(
      std::min<int64_t>(tiles, int64_t{multiprocessors} * (two ? 2 : 1)));
}

int64_t SmallBackwardWorkspace(const ConvGeometry& g, int multiprocessors) {
  const SmallGrid grid = SmallGridOf(g, multiprocessors);
  return SmallBackwardBlocks(g, grid, multiprocessors) * (g.w_size() + g.K) * 4;
}

}  // namespace jax_convbatch::hopper
