// SPDX-License-Identifier: Apache-2.0
#include "cuda/select/conv_tiles.h"

#include <algorithm>

#include "cuda/sm90/kernels/conv/transposed_plan.h"
#include "cuda/sm90/kernels/single_wave/single_wave_plan.h"
#include "cuda/sm90/kernels/single_wave/single_wave_tf32_plan.h"
#include "cuda/sm90/problem/dense_output.h"
#include "cuda/sm90/problem/subproblems.h"

namespace jax_convbatch::hopper {
namespace {

constexpr auto kCooperative = TileKernel::kCooperative;
constexpr auto kSingleWave = TileKernel::kSingleWave;

std::vector<SubproblemAxes> SubproblemsOf(Op op, const ConvGeometry& g) {
  return op == Op::kFprop ? std::vector{FpropSubproblem(g)}
                          : DgradSubproblems(g);
}

Activations ReadBy(Op op, const ConvGeometry& g) {
  return op == Op::kFprop ? InputOf(g) : OutputOf(g);
}

Activations WrittenBy(Op op, const ConvGeometry& g) {
  return op == Op::kFprop ? OutputOf(g) : InputOf(g);
}

// Whether three taps of a row share the pixels that are copied.
bool TapsShareIn(const Tile& tile, Type type,
                 const std::vector<SubproblemAxes>& subs) {
  if (type != Type::kTf32 || subs.size() != 1 || tile.n != 64) return false;
  return tile.kernel == kSingleWave ? TapsShareInSingleWave(subs[0].w, tile.n)
                                    : tile.m == 256 && TapsShare(subs[0].w);
}

// Of 16-bit types.
std::vector<Tile> HalfTiles(Op op, const ConvGeometry& g, Type type) {
  std::vector<Tile> tiles = {
      {64, 64}, {64, 128}, {128, 128}, {128, 256, kCooperative}, {256, 64}};
  const auto subs = SubproblemsOf(op, g);
  if (TakesSingleWave(type, ReadBy(op, g), WrittenBy(op, g), subs)) {
    for (const int pixels : kSingleWavePixels) {
      tiles.push_back({pixels, 64, kSingleWave});
      tiles.push_back({pixels, 128, kSingleWave});
    }
  }
  // Those that write a dense output alone.
  if (op == Op::kFprop || IsDense(subs)) {
    tiles.insert(tiles.end(),
                 {{128, 160}, {256, 96}, {128, 96}, {256, 32}, {128, 32}});
  }
  return tiles;
}

// Of f32. fprop's filter comes from registers, for which multiplications of 128
// columns are slower than those of 256: what is wide is multiplied together.
std::vector<Tile> Tf32Tiles(Op op, const ConvGeometry& g) {
  std::vector<Tile> tiles = {{32, 64}, {64, 64}, {256, 64}};
  const bool fprop = op == Op::kFprop;
  if (fprop) {
    tiles.insert(tiles.end(),
                 {{192, 128, kCooperative}, {256, 128, kCooperative}});
    if (MayTranspose(g, Type::kTf32)) {
      tiles.push_back({256, 64, TileKernel::kPingPong, true});
      tiles.push_back({128, 128, TileKernel::kPingPong, true});
    }
  } else {
    tiles.push_back({128, 128});
  }
  if (fprop || g.stride.all(1)) {
    tiles.insert(tiles.end(), {{160, 64}, {192, 64}, {224, 64}});
    tiles.push_back({160, 128, kCooperative});
    tiles.push_back({fprop ? 224 : 192, 128, kCooperative});
  }
  const auto subs = SubproblemsOf(op, g);
  if (TakesSingleWave(Type::kTf32, ReadBy(op, g), WrittenBy(op, g), subs)) {
    for (const int pixels : kSingleWaveTf32Pixels) {
      tiles.push_back({pixels, 64, kSingleWave});
      tiles.push_back({pixels, 128, kSingleWave});
    }
  }
  return tiles;
}

}  // namespace

std::vector<Tile> ConvTiles(Op op, const ConvGeometry& g, Type type) {
  return type == Type::kTf32 ? Tf32Tiles(op, g) : HalfTiles(op, g, type);
}

bool SumsInKSlices(Op op, const ConvGeometry& g, Type type) {
  const auto subs = SubproblemsOf(op, g);
  return type != Type::kTf32 && subs.size() == 1 &&
         SumsInKSlices(ReadBy(op, g), WrittenBy(op, g), subs[0]);
}

TileWork WorkOf(Op op, const ConvGeometry& g, Type type, const Tile& tile) {
  const auto subs = SubproblemsOf(op, g);
  const Activations in = ReadBy(op, g), out = WrittenBy(op, g);
  const bool share = TapsShareIn(tile, type, subs);
  // The last stage of a tap takes no less than this of a whole one.
  constexpr double kLeastStage = 0.6;
  const int block = 128 / ElementBytes(type);
  const double rest = static_cast<double>(in.c % block) / block;
  const double tap_stages = static_cast<double>(in.c / block) +
                            (rest > 0 ? std::max(rest, kLeastStage) : 0);
  double tiles = 0, stages = 0;
  for (const SubproblemAxes& sub : subs) {
    // The others have no taps, and the blocks of the first store their zeros.
    if (tile.kernel == kSingleWave && &sub != &subs[0]) break;
    const int64_t columns = share ? WithReach(sub).w.count : sub.w.count;
    const int64_t pixels = out.n * sub.h.count * columns;
    const auto count = static_cast<double>((pixels + tile.m - 1) / tile.m *
                                           ((out.c + tile.n - 1) / tile.n));
    tiles += count;
    stages += count * sub.h.taps.count * sub.w.taps.count * tap_stages;
  }
  const double pixels = share ? (tile.m + kTapReach) / 3.0 : tile.m;
  const auto elements =
      static_cast<double>(g.x_size() + g.w_size() + g.y_size());
  return {tile.kernel,
          tile.m * tile.n / (128.0 * 128),
          (pixels + tile.n) / 256,
          tiles,
          stages / std::max(tiles, 1.0),
          elements * ElementBytes(type),
          tile.transposed ? static_cast<double>(TransposedBytes(g)) : 0};
}

}  // namespace jax_convbatch::hopper
