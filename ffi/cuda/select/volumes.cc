// SPDX-License-Identifier: Apache-2.0
#include "cuda/select/volumes.h"

#include <algorithm>

#include "cuda/select/conv_plan.h"
#include "cuda/select/tile_time.h"
#include "cuda/sm90/kernels/halo/halo_plan.h"

namespace jax_convbatch::hopper {
namespace {

// Else boxes are filled up with zeros where several taps of depth side by side
// would fill them, and to copy these (depth.py) costs less, but for halos: they
// are copied once for all taps of a slice, and half a box of zeros is not
// multiplied.
bool FillsBoxes(Op op, const ConvGeometry& g, Type type) {
  const int64_t channels = op == Op::kDgrad ? g.K : g.C;
  const int64_t box = 128 / ElementBytes(type);
  auto boxes = [&](int64_t n) { return (n + box - 1) / box; };
  return 3 * g.T * boxes(channels) <= 4 * boxes(g.T * channels);
}

}  // namespace

double PaddingOfDepth(const SubproblemAxis& depth, int64_t in) {
  const TapAxis& taps = depth.taps;
  if (taps.count * depth.count == 0) return 0;
  // The outputs that read slices before `end`.
  auto up_to = [&](int64_t end) {
    const int64_t steps = depth.input_step;
    return std::min(depth.count, end > 0 ? (end + steps - 1) / steps : 0);
  };
  int64_t read = 0;
  for (int64_t t = 0; t < taps.count; ++t) {
    const int64_t first = depth.input + t * taps.offset_step;
    read += std::max<int64_t>(0, up_to(in - first) - up_to(-first));
  }
  return 1 - static_cast<double>(read) /
                 static_cast<double>(taps.count * depth.count);
}

double PaddingOfVolume(const ConvGeometry& g) {
  return PaddingOfDepth(FpropSubproblem(g).d, g.D);
}

std::optional<Plan> PlanVolumes(Op op, const ConvGeometry& g, Type type,
                                int multiprocessors) {
  if (g.T == 1 || !IsPlain(g, type) ||
      !(FillsBoxes(op, g, type) || TakesHalo(op, g, type))) {
    return std::nullopt;
  }
  if (op == Op::kWgrad) return PlanWgrad(g, type, multiprocessors);
  const TiledConv conv(op, g, type);
  const bool walkable =
      std::all_of(conv.subs.begin(), conv.subs.end(), [&](const auto& sub) {
        return IsWalkable3d(type, conv.in, conv.out, sub);
      });
  if (conv.subs.empty() || !walkable) return std::nullopt;
  return type == Type::kTf32 ? CheapestTile(conv, multiprocessors,
                                            [](const Tile&) { return true; })
                             : HalfPlan(op, g, type, multiprocessors);
}

}  // namespace jax_convbatch::hopper
