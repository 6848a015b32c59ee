// SPDX-License-Identifier: Apache-2.0
#include "cuda/select/conv_tiles.h"

#include <algorithm>

#include "cuda/common/left_out.h"
#include "cuda/select/volumes.h"
#include "cuda/sm90/kernels/conv/resident_plan.h"
#include "cuda/sm90/kernels/conv/transposed_plan.h"
#include "cuda/sm90/kernels/halo/halo_plan.h"
#include "cuda/sm90/kernels/single_wave/single_wave_plan.h"
#include "cuda/sm90/kernels/single_wave/single_wave_tf32_plan.h"
#include "cuda/sm90/problem/dense_output.h"
#include "cuda/sm90/problem/k_slices.h"

namespace jax_convbatch::hopper {
namespace {

constexpr auto kCooperative = TileKernel::kCooperative;
constexpr auto kSingleWave = TileKernel::kSingleWave;
constexpr auto kTransposed = TileKernel::kTransposed;

// Whether three taps of a row share the pixels that are copied.
bool TapsShareIn(const TiledConv& conv, const Tile& tile) {
  const auto& subs = conv.subs;
  if (conv.type != Type::kTf32 || !conv.sums_whole() || subs.size() != 1 ||
      tile.n != 64) {
    return false;
  }
  return tile.kernel == kSingleWave ? TapsShareInSingleWave(subs[0].w, tile.n)
                                    : tile.m == 256 && TapsShare(subs[0].w);
}

// Of three axes, there are none of several sub-problems.
bool HasSingleWaves(const TiledConv& conv) {
  return !IsLeftOut(Family::kSingleWave) && TakesSingleWave(conv.subs) &&
         (!Is3d(conv.g) || conv.subs.size() == 1);
}

// Of 16-bit types.
std::vector<Tile> HalfTiles(const TiledConv& conv) {
  std::vector<Tile> tiles = {
      {64, 64}, {64, 128}, {128, 128}, {128, 256, kCooperative}, {256, 64}};
  if (HasSingleWaves(conv)) {
    for (const auto& [pixels, channels] : kSingleWaveTiles) {
      tiles.push_back({pixels, channels, kSingleWave});
    }
  }
  // Those that write a dense output alone.
  if (conv.op == Op::kFprop || IsDense(conv.subs)) {
    tiles.insert(
        tiles.end(),
        {{128, 192}, {128, 160}, {256, 96}, {128, 96}, {256, 32}, {128, 32}});
    if (conv.g.taps() == 1 && HasWideResidentTiles(conv.in.c, conv.out.c)) {
      tiles.push_back({64, 256});
    }
  }
  return tiles;
}

// Whether weights stay in tiles of so many channels.
bool HasResidentTf32(const TiledConv& conv, int channels) {
  return conv.g.taps() == 1 && IsDense(conv.subs) && conv.g.groups == 1 &&
         HasResidentTf32Tiles(conv.in.c, conv.out.c, channels);
}

// Of f32. fprop's filter comes from registers, for which multiplications of 128
// columns are slower than those of 256: what is wide is multiplied together.
std::vector<Tile> Tf32Tiles(const TiledConv& conv) {
  std::vector<Tile> tiles = {{32, 64}, {64, 64}, {256, 64}};
  const bool fprop = conv.op == Op::kFprop;
  if (fprop) {
    tiles.insert(tiles.end(),
                 {{192, 128, kCooperative}, {256, 128, kCooperative}});
    // Shorter sums are faster as they are: 256x256 12->64 3x3 at batch 8 159 us
    // by 256x64 so, 89 without; 56x56 192 1x1 at batch 128 231 by 192x128, 179
    // by 256x64 (H200).
    constexpr int64_t kLeastSum = 512;
    if (MayTranspose(conv.g, conv.type) &&
        conv.g.taps() * conv.g.C >= kLeastSum &&
        !IsLeftOut(Family::kConvTransposed)) {
      tiles.insert(tiles.end(), {{256, 64, kTransposed},
                                 {128, 128, kTransposed},
                                 {192, 128, kTransposed}});
    }
  } else {
    tiles.push_back({128, 128});
  }
  for (const int channels : {64, 128}) {
    const bool has = HasResidentTf32(conv, channels);
    if (has && (fprop || channels == 64)) {
      tiles.push_back({kResidentTf32Pixels, channels});
    }
  }
  if (fprop || conv.g.stride.all(1)) {
    tiles.insert(tiles.end(), {{160, 64}, {192, 64}, {224, 64}});
    tiles.push_back({160, 128, kCooperative});
    tiles.push_back(fprop ? Tile{224, 128, kCooperative} : Tile{192, 128});
  }
  if (HasSingleWaves(conv)) {
    for (const auto& [pixels, channels] : kSingleWaveTf32Tiles) {
      tiles.push_back({pixels, channels, kSingleWave});
    }
  }
  return tiles;
}

// Of sums in K slices.
std::vector<Tile> Tf32KSliceTiles() {
  constexpr int kAdded = kAddedKSlicePixels;
  return {{64, 64},
          {128, 64},
          {256, 64},
          {kAdded, 64},
          {kAdded, 128, kCooperative}};
}

// Whether the tile is there once for each K slice.
bool LeavesPartials(const TiledConv& conv, const Tile& tile) {
  return conv.tf32_k_slices() > 1 && tile.m != kAddedKSlicePixels;
}

HaloShape HaloOf(const TiledConv& conv) {
  return HaloShapeOf(conv.op == Op::kFprop ? conv.g : DgradAsFprop(conv.g));
}

// The share of tiles whose pixels lie in one slice, of so many pixels as they
// are walked.
double InOneSlice(const TiledConv& conv, const Tile& tile, int64_t pixels) {
  int64_t m = tile.m;
  if (tile.halo()) {
    const HaloShape shape = HaloOf(conv);
    pixels = int64_t{shape.units_w} * shape.units_h;
    m = shape.halos();
  }
  if (pixels % m == 0) return 1;
  return std::max(0.0,
                  1 - static_cast<double>(m) / static_cast<double>(pixels));
}

// Taps of depth that a tile sums: in the mean and at most. Those that read
// padding alone are left out where the sum is whole. Tiles that lie in two
// slices have the taps of both.
struct TapsOfDepth {
  double mean, most;
};
TapsOfDepth TapsOf(const TiledConv& conv, const Tile& tile,
                   const SubproblemAxis& depth, int64_t slice_pixels) {
  const auto taps = static_cast<double>(depth.taps.count);
  if (taps <= 1 || !conv.sums_whole()) return {taps, taps};
  const double in_one = InOneSlice(conv, tile, slice_pixels);
  const double mean = taps * (1 - in_one * PaddingOfDepth(depth, conv.in.d));
  const auto inside =
      static_cast<double>((conv.in.d - 1) / depth.taps.offset_step + 1);
  return {mean, in_one < 1 ? taps : std::max(mean, std::min(taps, inside))};
}

// Times as long that boxes take whose pixels begin between lines of memory:
// 17x44x480 48->48 3x3x3 in bf16 231 us by 256x64, 169 by halo tiles, which
// copy each pixel once (H200).
double OfUnevenRows(const TiledConv& conv, const Tile& tile) {
  constexpr double kUneven = 1.5;
  const bool uneven = conv.in.c * ElementBytes(conv.type) % 128 != 0;
  return uneven && conv.g.taps() > 1 && !tile.halo() ? kUneven : 1;
}

// Whether weights stay in shared memory (resident_plan.h), in 16 bits for more
// than one tile of a block, of so many. Of 7x7 768->80, dgrad, at batch 64, 147
// tiles of 64x256 take 5.5 us where 4.2 would be reckoned.
bool KeepsWeights(const TiledConv& conv, const Tile& tile, double tiles,
                  int multiprocessors) {
  if (tile.kernel != TileKernel::kPingPong) return false;
  if (conv.type == Type::kTf32) {
    return tile.m == kResidentTf32Pixels && HasResidentTf32(conv, tile.n);
  }
  if (tile.m != 64 || conv.g.taps() != 1 || conv.subs.size() != 1) {
    return false;
  }
  return HasResidentTilesEnough(static_cast<int64_t>(tiles), multiprocessors) &&
         (tile.n == 256 ||
          (tile.n == 128 && HasResidentTiles(conv.in.c, conv.out.c)));
}

// Pixels alone are copied, and tiles are stored while memory is waited for.
// Fitted to 180 layers of one tap. 75x75 136->96 in bf16 at batch 64 takes 40
// us by 64x128, 55 by 256x96 (at batch 128, were weights to come anew, 191 and
// 110); dgrad of 38x38 240->112 17 by 64x256, 27 by 128x128 (H200).
// Of f32, to 85 layers: 75x75 96->136 at batch 64 takes 97 us by 128x64, 125 by
// 256x128; dgrad of 56x56 144->112 63, 79 by 256x64.
void SetKeptWeights(const TiledConv& conv, const Tile& tile, TileWork* work) {
  constexpr int64_t kFewInputs = 160, kFewOutputs = 256;
  work->boxes = tile.m / 256.0;
  if (conv.type == Type::kTf32) {
    work->products *= 0.5;
    work->bytes *= 0.9;
    return;
  }
  const bool few = conv.in.c <= kFewInputs;
  // Of more the tensor cores take longest.
  if (!few && conv.out.c > kFewOutputs) return;
  const bool narrow = tile.n == 128;
  work->products *= narrow && !few ? 0.3 : 0.5;
  work->bytes *= narrow && few ? 0.85 : 0.95;
}

// Microseconds by which blocks of several tiles end later than single-wave
// ones, or these than those, in short layers of one tap in 16 bits: of one wave
// of either, 14x14 672->112 at batch 64 takes 9.5 us by 128x128, 7.9 by 192x64,
// 2048 steps of 384 at batch 2 5.4 and 4.8 (H200). So 69 operations lose 1.029
// by the choice, not 1.040. To few channels half of a single-wave tile is no
// output. Where pixels begin between the sectors of memory, single-wave tiles
// end later: 14x14 480->48 takes 6.8 us by 96x64 and 6.3 by 256x32, 480->40 9.3
// and 7.5. So 37 such operations lose 1.018, not 1.042.
//
// In f32 a filter that is transposed first takes longer than its bytes: 14x14
// 672->192 at batch 64 takes 21 us so, 15 by 192x128. Of one tap a block of one
// tile has but one warpgroup at work, and one of few waits for the weights that
// stay. So 85 operations lose 1.026, not 1.063.
double Later(const TiledConv& conv, const Tile& tile, double tiles,
             bool keeps_weights, int multiprocessors) {
  constexpr double kLater = 1.2, kAloneLater = 0.8, kTransposedLater = 4,
                   kKeptLater = 1;
  constexpr int64_t kFewChannels = 32;
  if (Transposes(conv.op, conv.type, tile)) return kTransposedLater;
  if (conv.g.taps() != 1) return 0;
  if (conv.type == Type::kTf32) {
    if (tile.kernel != TileKernel::kPingPong) return 0;
    const bool enough =
        HasResidentTilesEnough(static_cast<int64_t>(tiles), multiprocessors);
    return (tiles <= multiprocessors ? kAloneLater : 0) +
           (keeps_weights && !enough ? kKeptLater : 0);
  }
  const bool its = conv.out.c > kFewChannels;
  const bool between = conv.out.c % 16 == 8;
  return its && (tile.kernel == kSingleWave) == between ? kLater : 0;
}

// A stage's pixels are a share of the halo's.
void SetHalo(const TiledConv& conv, const Tile& tile, TileWork* work) {
  const HaloShape shape = HaloOf(conv);
  work->tiles = static_cast<double>(shape.tiles) *
                static_cast<double>((conv.out.c + tile.n - 1) / tile.n);
  work->boxes = (static_cast<double>(shape.halo_pixels()) /
                     static_cast<double>(conv.g.R * conv.g.S) +
                 tile.n) /
                256;
}

}  // namespace

TiledConv::TiledConv(Op op, const ConvGeometry& g, Type type)
    : op(op),
      g(g),
      type(type),
      in(op == Op::kFprop ? InputOf(g) : OutputOf(g)),
      out(op == Op::kFprop ? OutputOf(g) : InputOf(g)),
      subs(op == Op::kFprop ? std::vector{FpropSubproblem(g)}
                            : DgradSubproblems(g)) {}

bool TiledConv::sums_whole() const {
  if (type == Type::kTf32) return tf32_k_slices() == 1;
  return subs.size() != 1 || !SumsInKSlices(in, out, subs[0]);
}

int TiledConv::tf32_k_slices() const {
  const bool may = type == Type::kTf32 && g.groups == 1 && subs.size() == 1;
  return may ? Tf32KSlices(in, out, subs[0]) : 1;
}

std::vector<Tile> ConvTiles(const TiledConv& conv) {
  if (conv.tf32_k_slices() > 1) return Tf32KSliceTiles();
  auto tiles = conv.type == Type::kTf32 ? Tf32Tiles(conv) : HalfTiles(conv);
  if (TakesHalo(conv.op, conv.g, conv.type)) {
    for (const int channels : kHaloChannels) {
      tiles.push_back({kHaloTilePixels, channels, TileKernel::kHalo});
    }
  }
  return tiles;
}

int64_t WorkspaceOf(const TiledConv& conv, const Tile& tile) {
  if (Transposes(conv.op, conv.type, tile)) return TransposedBytes(conv.g);
  if (!LeavesPartials(conv, tile)) return 0;
  const int64_t pixels = conv.out.n * conv.subs[0].pixels();
  return conv.tf32_k_slices() * pixels * conv.out.c * int64_t{sizeof(float)};
}

TileWork WorkOf(const TiledConv& conv, const Tile& tile, int multiprocessors) {
  const bool share = TapsShareIn(conv, tile);
  // The last stage of a tap takes no less than this of a whole one: the more of
  // them there are, the less hides what they leave empty.
  const double least_stage = conv.g.taps() > 1 ? 1 : 0.6;
  const int block = 128 / ElementBytes(conv.type);
  const double rest = static_cast<double>(conv.in.c % block) / block;
  const double tap_stages = static_cast<double>(conv.in.c / block) +
                            (rest > 0 ? std::max(rest, least_stage) : 0);
  double tiles = 0, sum = 0, longest = 0;
  for (const SubproblemAxes& sub : conv.subs) {
    // The others have no taps, and the blocks of the first store their zeros.
    if (tile.kernel == kSingleWave && &sub != &conv.subs[0]) break;
    const int64_t columns = share ? WithReach(sub).w.count : sub.w.count;
    const int64_t pixels = conv.out.n * sub.d.count * sub.h.count * columns;
    const auto count = static_cast<double>(
        (pixels + tile.m - 1) / tile.m * ((conv.out.c + tile.n - 1) / tile.n));
    const double stages =
        static_cast<double>(sub.h.taps.count * sub.w.taps.count) * tap_stages;
    const TapsOfDepth depth = TapsOf(conv, tile, sub.d, sub.h.count * columns);
    tiles += count;
    sum += count * depth.mean * stages;
    longest = std::max(longest, depth.most * stages);
  }
  const double pixels = share ? (tile.m + kTapReach) / 3.0 : tile.m;
  const ConvGeometry& g = conv.g;
  const double elements = static_cast<double>(g.x_size()) +
                          static_cast<double>(g.w_size()) +
                          static_cast<double>(g.y_size());
  // Nothing is copied while two warpgroups store a tile together: f32 384->128
  // 1x1 of 256x256 at batch 8 283 us by 256x128, 250 by 256x64 (H200).
  const bool together = conv.type == Type::kTf32 && tile.kernel == kCooperative;
  const double idle = together ? 1.2 : 1;
  const bool keeps_weights = KeepsWeights(conv, tile, tiles, multiprocessors);
  TileWork work = {tile.m * tile.n / (128.0 * 128),
                   (OfUnevenRows(conv, tile) * pixels + tile.n) / 256,
                   tiles,
                   sum / std::max(tiles, 1.0),
                   longest,
                   elements * ElementBytes(conv.type) * idle,
                   static_cast<double>(WorkspaceOf(conv, tile)),
                   Later(conv, tile, tiles, keeps_weights, multiprocessors),
                   conv.tf32_k_slices(),
                   keeps_weights};
  if (keeps_weights) SetKeptWeights(conv, tile, &work);
  if (LeavesPartials(conv, tile)) {
    work.tiles *= work.k_slices;
    work.stages /= work.k_slices;
    work.longest /= work.k_slices;
  }
  if (tile.halo()) SetHalo(conv, tile, &work);
  // Several taps of a transposed filter in tiles of 128 channels take longer
  // than one: 32x256x256 50->50 3x3 in folds of two 1589 us, 1171 by halo
  // tiles; 28x28 128 at batch 256 155, 144 by 256x128; 4x65536 128->128, 7
  // taps, 165, 149 (H200).
  constexpr double kSlowTaps = 1.25;
  if (tile.kernel == kTransposed && tile.n == 128 && g.taps() > 1) {
    work.stages *= kSlowTaps;
    work.longest *= kSlowTaps;
  }
  return work;
}

}  // namespace jax_convbatch::hopper
