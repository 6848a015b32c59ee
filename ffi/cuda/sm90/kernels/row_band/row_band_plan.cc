// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/kernels/row_band/row_band_plan.h"

#include <algorithm>

#include "cuda/common/most_shared.h"
#include "cuda/sm90/kernels/narrow_groups/group_tf32_plan.h"
#include "cuda/sm90/problem/group_width.h"

namespace jax_convbatch::hopper {
namespace {

constexpr int64_t kRowBytes = 128;  // of a pixel: 64 channels
constexpr int64_t kMaxBox = 256;    // of a copy, along an axis

}  // namespace

bool HasTwoBoxes(const ConvGeometry& g, const Activations& in) {
  return g.groups == 1 && in.c == g.C && 64 < g.C && g.C <= 128 && g.K <= 32;
}

RowBandFilter RowBandFilterOf(const ConvGeometry& g, const Activations& in) {
  const int width = GroupWidth(g);
  if (IsNarrow(width)) return {width, 128};
  if (HasTwoBoxes(g, in)) return {RowBandSteps(in) * 16, 64};
  const int64_t rows = (g.group_C() + 15) / 16 * 16;
  return {static_cast<int>(std::clamp<int64_t>(rows, 32, 64)), 128};
}

std::optional<RowBandTiling> TileRowBand(const ConvGeometry& g, Type type,
                                         const Activations& in,
                                         const Activations& out,
                                         const SubproblemAxes& sub,
                                         int pixels) {
  if (Is3d(g)) return std::nullopt;
  const SubproblemAxis &h = sub.h, &w = sub.w;
  const bool in_strips = pixels == kColumnStripPixels;
  const bool narrow = pixels == kGroupRowBandPixels;
  const int64_t taps = int64_t{h.taps.count} * w.taps.count;
  const int step = h.input_step;
  const bool steps = (step == 1 || (narrow && step == 2)) &&
                     w.input_step == step && in.h >= step && in.w >= step &&
                     h.output_step == 1 && w.output_step == 1;
  if (type == Type::kTf32 || !steps || (in.c > 64 && !HasTwoBoxes(g, in)) ||
      (g.groups > 1 && out.c > 64) || taps < 2 ||
      taps > (g.groups > 1 ? kMaxGroupRowBandTaps : kMaxRowBandTaps)) {
    return std::nullopt;
  }
  const GroupReach pixels_h = ReachOf({sub}, &SubproblemAxes::h);
  const GroupReach pixels_w = ReachOf({sub}, &SubproblemAxes::w);
  const int64_t reach_h = pixels_h.high - pixels_h.low;
  const int64_t reach_w = pixels_w.high - pixels_w.low;
  const int64_t cols = in_strips ? kColumnStripCols : w.count;
  const int64_t width = cols + reach_w;
  if (width > (in_strips ? kMaxBox : pixels) || reach_h >= kMaxBox) {
    return std::nullopt;
  }
  int64_t fit = pixels / (in_strips ? cols : width);
  const RowBandFilter filter = RowBandFilterOf(g, in);
  const int64_t left = kMostShared - taps * filter.rows * filter.row_bytes;
  const int64_t blocks = (in.c + 63) / 64;
  auto bytes = [](int64_t pixel_count) {
    return (pixel_count * kRowBytes + 1023) / 1024 * 1024;
  };
  const bool may_be_short = in_strips && g.groups == 1;
  constexpr int64_t kShort = kShortColumnStripPixels / kColumnStripCols;
  if (may_be_short && (h.count <= kShort ||
                       2 * blocks * bytes((fit + reach_h) * width) > left)) {
    fit = kShort;
  }
  const int64_t boxes = blocks * step * step;
  // Of several classes fewer rows, so that two tiles have room.
  for (int64_t most = std::min<int64_t>(fit, kMaxBox - reach_h); most > 0;
       --most) {
    const int64_t groups = (h.count + most - 1) / most;
    const int64_t rows = (h.count + groups - 1) / groups;
    if (may_be_short && rows <= kShort) fit = kShort;
    const int64_t box_rows = rows + reach_h;
    // Equal pieces, as what one stores past its rows belongs to another tile.
    const int64_t in_piece = kRowBandPiecePixels / cols;
    const int64_t pieces = in_piece == 0 ? 1
                           : in_strips   ? (rows + in_piece - 1) / in_piece
                                         : rows;
    const int64_t piece_rows =
        pieces > 1 && rows % pieces == 0 ? rows / pieces : 0;
    // Products of narrow groups are whole.
    const int64_t read_pixels = narrow ? (pixels + 63) / 64 * 64 : pixels;
    const int64_t read = in_strips ? (fit + reach_h) * width
                                   : reach_h * width + reach_w + read_pixels;
    const int64_t class_bytes = bytes(box_rows * width);
    const int64_t stage_bytes =
        (boxes - 1) * class_bytes + bytes(std::max(box_rows * width, read));
    const int64_t stages =
        std::min<int64_t>(left / stage_bytes, kMaxRowBandStages);
    if (stages < 2) {
      if (boxes == 1) break;
      continue;
    }
    return RowBandTiling{static_cast<int>(rows),
                         static_cast<int>(cols),
                         static_cast<int>(width),
                         static_cast<int>(in_strips ? fit * cols : pixels),
                         static_cast<int>(box_rows),
                         static_cast<int>(piece_rows),
                         static_cast<int>(groups),
                         static_cast<int>((w.count + cols - 1) / cols),
                         step,
                         static_cast<int>(boxes),
                         static_cast<int>(class_bytes),
                         static_cast<int>(stage_bytes),
                         static_cast<int>(stages)};
  }
  return std::nullopt;
}

std::optional<RowBandTiling> TileGroupRowBand(const ConvGeometry& g, Type type,
                                              const Activations& in,
                                              const Activations& out,
                                              const SubproblemAxes& sub,
                                              int pixels) {
  const int width = GroupWidth(g);
  const bool narrow = IsNarrow(width);
  if ((pixels == kGroupRowBandPixels) != narrow || width == kAnyGroups) {
    return std::nullopt;
  }
  Activations unit_in = in, unit_out = out;
  unit_in.c = UnitChannels(g, in.c);
  unit_out.c = UnitChannels(g, out.c);
  return TileRowBand(g, type, unit_in, unit_out, sub, pixels);
}

}  // namespace jax_convbatch::hopper
