// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/kernels/narrow_groups/group_tf32_plan.h"

#include <algorithm>

#include "cuda/common/most_shared.h"

namespace jax_convbatch::hopper {
namespace {

constexpr int64_t kMaxBox = 256;  // of a copy, along an axis
constexpr int kLineBytes = 128;   // of a pixel
constexpr int kMostBlocks = 4;    // of a tile
constexpr int kConsumers = 2;     // warpgroups, each with a tile's outputs
constexpr int kBarrierBytes = 1 << 10;  // at most
constexpr int64_t kMostStages = 4;

int64_t FloorDiv(int64_t a, int64_t b) { return a / b - (a % b < 0); }

std::vector<SubproblemAxes> SubproblemsOf(const ConvGeometry& g, bool dgrad) {
  return dgrad ? DgradSubproblems(g) : std::vector{FpropSubproblem(g)};
}

}  // namespace

bool IsGroupTf32(const ConvGeometry& g, Type type) {
  if (type != Type::kTf32 || g.groups <= 1) return false;
  const int64_t c = g.group_C(), k = g.group_K();
  ConvGeometry one = g;
  one.groups = 1;
  return c % 4 == 0 && k % 4 == 0 && std::max(c, k) <= kGroupLine &&
         std::min(c, k) >= 8 && IsPlain2d(one, type);
}

int GroupsOfLine(const ConvGeometry& g) {
  const int64_t c = g.group_C();
  return c == g.group_K() && (c == 8 || c == 16)
             ? static_cast<int>(kGroupLine / c)
             : 1;
}

int64_t GroupLines(const ConvGeometry& g) {
  return GroupsOfLine(g) > 1 ? (g.C + kGroupLine - 1) / kGroupLine : g.groups;
}

int GroupColumns(int64_t outputs) {
  return static_cast<int>((outputs + 7) / 8 * 8);
}

GroupReach ReachOf(const std::vector<SubproblemAxes>& subs,
                   SubproblemAxis SubproblemAxes::* axis) {
  GroupReach reach{(subs[0].*axis).input_step, 0, 0};
  bool first = true;
  for (const SubproblemAxes& sub : subs) {
    const SubproblemAxis& a = sub.*axis;
    for (int i = 0; i < a.taps.count; ++i) {
      const auto at = static_cast<int>(
          FloorDiv(a.input + int64_t{i} * a.taps.offset_step, reach.step));
      reach.low = first ? at : std::min(reach.low, at);
      reach.high = first ? at : std::max(reach.high, at);
      first = false;
    }
  }
  return reach;
}

std::optional<GroupTiling> TileGroupTf32(const ConvGeometry& g, bool dgrad,
                                         int blocks) {
  if (!IsGroupTf32(g, Type::kTf32) ||
      g.stride.h * g.stride.w > kMostGroupClasses ||
      g.taps() > kMostGroupTaps || g.H < g.stride.h || g.W < g.stride.w) {
    return std::nullopt;
  }
  const auto subs = SubproblemsOf(g, dgrad);
  if (subs.empty() || subs.size() > kMostGroupClasses) return std::nullopt;
  // Those of the class that has most.
  int64_t height = 0, cols = 0;
  for (const SubproblemAxes& sub : subs) {
    height = std::max(height, sub.h.count);
    cols = std::max(cols, sub.w.count);
  }
  const GroupReach h = ReachOf(subs, &SubproblemAxes::h);
  const GroupReach w = ReachOf(subs, &SubproblemAxes::w);
  constexpr int64_t kFar = 1 << 20;
  if (std::abs(h.low) > kFar || std::abs(h.high) > kFar ||
      std::abs(w.low) > kFar || std::abs(w.high) > kFar) {
    return std::nullopt;
  }
  const int64_t reach_h = h.high - h.low, reach_w = w.high - w.low;
  const int64_t width = cols + reach_w;
  const bool shares = subs.size() == 1 && h.step == 1 && w.step == 1 &&
                      subs[0].w.taps.count == kSharedTaps;
  const int64_t fit = std::min(blocks * 64 / width, kMaxBox - reach_h);
  if (width > kMaxBox || fit < 1) return std::nullopt;
  const int64_t tiles = (height + fit - 1) / fit;
  const int64_t rows = (height + tiles - 1) / tiles;
  const int64_t box_rows = rows + reach_h;
  // The least that hold a tile.
  const int64_t products =
      ((rows - 1) * width + (shares ? width : cols) + 63) / 64;
  if (products != blocks) return std::nullopt;
  const int64_t read =
      std::max(box_rows * width, reach_h * width + reach_w + 64 * blocks);
  const int64_t class_bytes = (read * kLineBytes + 1023) / 1024 * 1024;
  const int64_t classes = dgrad ? 1 : g.stride.h * g.stride.w;
  const int64_t outputs = dgrad ? g.group_C() : g.group_K();
  const int64_t kept = g.taps() * GroupColumns(outputs) * kLineBytes +
                       int64_t{kConsumers} * blocks * 64 * kLineBytes +
                       kBarrierBytes;
  auto stages_of = [&](int64_t bytes) {
    return std::min((bytes - kept) / (classes * class_bytes), kMostStages);
  };
  // Two blocks an SM where there is room for both.
  const int64_t sums = GroupsOfLine(g) * GroupColumns(outputs) *
                       (shares ? kSharedTaps : 1) / 2 * blocks;
  constexpr int64_t kHalf = kMostShared / 2;
  const bool pair = sums <= kFewGroupSums && stages_of(kHalf) >= 2;
  const int64_t stages = stages_of(pair ? kHalf : kMostShared);
  if (kept > kMostShared || stages < 2) return std::nullopt;
  // Tiles of all groups are counted by an int.
  if (1.0 * g.N * tiles * g.groups >= 1 << 30) return std::nullopt;
  return GroupTiling{blocks,
                     static_cast<int>(rows),
                     static_cast<int>(cols),
                     static_cast<int>(width),
                     static_cast<int>(box_rows),
                     static_cast<int>(tiles),
                     static_cast<int>(class_bytes),
                     static_cast<int>(stages),
                     shares,
                     pair ? 2 : 1};
}

std::optional<Plan> PlanGroupTf32(const ConvGeometry& g, bool dgrad,
                                  int multiprocessors) {
  // What a tile costs besides its blocks of pixels, where its block has an SM
  // to itself and where two share it. Fitted to times of 3x3 layers.
  constexpr double kAlone = 1, kShared = 0.4;
  std::optional<Plan> best;
  double least = 0;
  for (int blocks = 1; blocks <= kMostBlocks; ++blocks) {
    const auto tiling = TileGroupTf32(g, dgrad, blocks);
    if (!tiling) continue;
    const int64_t tiles = GroupLines(g) * g.N * tiling->tiles;
    const int64_t rounds =
        (tiles - 1) / (int64_t{kConsumers} * multiprocessors) + 1;
    const double cost = static_cast<double>(rounds) *
                        (blocks + (tiling->resident > 1 ? kShared : kAlone));
    if (best && cost >= least) continue;
    least = cost;
    best = Plan{64 * blocks, kGroupLine, multiprocessors, 0};
  }
  return best;
}

}  // namespace jax_convbatch::hopper
