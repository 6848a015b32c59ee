// SPDX-License-Identifier: Apache-2.0
#include "cuda/select/conv_tf32_plan.h"

#include "cuda/select/tile_time.h"
#include "cuda/sm90/kernels/conv/transposed_plan.h"

namespace jax_convbatch::hopper {
namespace {

// Of several groups, of which a tile has channels of one: the largest that
// still gives every SM work, fitted to times of 3x3 layers at batches 8 to
// 1000. Small tiles read too much from the L2 to be worth an even share of all
// SMs.
Plan GroupTf32Tile(const Activations& in, const Activations& out,
                   int64_t groups, const SubproblemAxes& sub, bool dgrad,
                   int multiprocessors) {
  const int64_t channels = out.c / groups;
  const bool wide = (channels + 63) / 64 % 2 == 0;
  auto tiles = [&](int m, int n) {
    return (out.n * out.h * out.w + m - 1) / m * groups *
           ((channels + n - 1) / n);
  };
  // What takes as long as one pixel of 128 channels, in units of its own.
  auto length = [&](int m, int n) {
    return ((tiles(m, n) - 1) / multiprocessors + 1) * m * n / 128;
  };
  if (dgrad && wide && tiles(128, 128) >= 2 * multiprocessors &&
      length(128, 128) <= length(256, 64)) {
    return {128, 128, multiprocessors, 0};
  }
  // Tiles that are multiplied together move fewer bytes, but nothing hides how
  // they are stored: for many stages, or fewer of pixels that lie together.
  const int64_t stages = int64_t{sub.h.taps.count} * sub.w.taps.count *
                         ((in.c / groups + 31) / 32);
  const bool dense = sub.h.input_step == 1 && sub.w.input_step == 1;
  if (!dgrad && wide && stages >= (dense ? 24 : 72) &&
      4 * tiles(192, 128) >= 3 * multiprocessors) {
    const int m = length(192, 128) < length(256, 128) ? 192 : 256;
    if (length(m, 128) <= length(256, 64)) {
      return {m, 128, multiprocessors, 0};
    }
  }
  if (4 * tiles(256, 64) >= 3 * multiprocessors) {
    return {256, 64, multiprocessors, 0};
  }
  if (3 * tiles(64, 64) >= multiprocessors) {
    return {64, 64, multiprocessors, 0};
  }
  return {32, 64, multiprocessors, 0};
}

// Whether a tile of the other kernel has an epilogue: with one, those that
// leave less of the last wave empty would be as many kernels again.
bool HasTf32Epilogue(const Plan& plan) {
  return plan.tile_n == 64 ? plan.tile_m <= 128 || plan.tile_m == 256
                           : plan.tile_m == 192 || plan.tile_m == 256;
}

}  // namespace

Plan FpropTf32Tile(const ConvGeometry& g, const SubproblemAxes& sub,
                   int multiprocessors) {
  if (g.groups > 1) {
    return GroupTf32Tile(InputOf(g), OutputOf(g), g.groups, sub, false,
                         multiprocessors);
  }
  return CheapestTile(TiledConv(Op::kFprop, g, Type::kTf32), multiprocessors,
                      [](const Tile& tile) {
                        return !Transposes(Op::kFprop, Type::kTf32, tile);
                      });
}

Plan DgradTf32Tile(const ConvGeometry& g,
                   const std::vector<SubproblemAxes>& subs,
                   int multiprocessors) {
  if (g.groups > 1) {
    return GroupTf32Tile(OutputOf(g), InputOf(g), g.groups, subs[0], true,
                         multiprocessors);
  }
  return CheapestTile(TiledConv(Op::kDgrad, g, Type::kTf32), multiprocessors,
                      [](const Tile&) { return true; });
}

Plan OrTransposed(const Plan& plan, const ConvGeometry& g, Type type,
                  int multiprocessors) {
  if (!MayTranspose(g, type)) return plan;
  return CheapestTile(TiledConv(Op::kFprop, g, type), multiprocessors,
                      [](const Tile&) { return true; });
}

Plan WithTf32Epilogue(const ConvGeometry& g, const Plan& given,
                      const Epilogue& epilogue) {
  // There are no epilogues of sums in K slices, see HasEpilogue().
  if (given.kernel == TileKernel::kHalo || given.k_slices > 1) return given;
  const Plan plan = given.kernel == TileKernel::kTransposed
                        ? FpropTf32Tile(g, FpropSubproblem(g), given.blocks)
                        : given;
  const bool plain = epilogue.is_plain() && epilogue.bitmask == nullptr;
  if (plan.kernel == TileKernel::kSingleWave ? plain : HasTf32Epilogue(plan))
    return plan;
  return CheapestTile(TiledConv(Op::kFprop, g, Type::kTf32), plan.blocks,
                      [](const Tile& tile) {
                        return !Transposes(Op::kFprop, Type::kTf32, tile) &&
                               tile.kernel != TileKernel::kSingleWave &&
                               HasTf32Epilogue({tile.m, tile.n, 0, 0});
                      });
}

}  // namespace jax_convbatch::hopper
