#include "cuda/hopper/window_plan.h"

#include <algorithm>

#include "cuda/hopper/most_shared.h"

namespace jax_convbatch::hopper {
namespace {

constexpr int64_t kRowBytes = 128;                // of a pixel: 64 channels
constexpr int64_t kFilterBytes = 64 * kRowBytes;  // of a tap
constexpr int64_t kMaxBox = 256;                  // of a copy, along an axis

}  // namespace

std::optional<WindowTiling> TileWindow(Type type, const Activations& in,
                                       const Activations& out,
                                       const PartAxes& part) {
  const PartAxis &h = part.h, &w = part.w;
  const int64_t taps = int64_t{h.taps.count} * w.taps.count;
  const bool unit = h.input_step == 1 && w.input_step == 1 &&
                    h.output_step == 1 && w.output_step == 1;
  if (type == Type::kTf32 || !unit || in.c > 64 || out.c > 64 || taps < 2 ||
      taps > kMaxWindowTaps) {
    return std::nullopt;
  }
  const int64_t reach_h = (h.taps.count - 1) * h.taps.offset_step;
  const int64_t reach_w = (w.taps.count - 1) * w.taps.offset_step;
  const int64_t width = w.count + reach_w;
  if (width > kWindowPixels || reach_h >= kMaxBox) return std::nullopt;
  const int64_t most =
      std::min<int64_t>(kWindowPixels / width, kMaxBox - reach_h);
  const int64_t groups = (h.count + most - 1) / most;
  const int64_t rows = (h.count + groups - 1) / groups;
  const int64_t box_rows = rows + reach_h;
  const int64_t pixels =
      std::max(box_rows * width, reach_h * width + reach_w + kWindowPixels);
  const int64_t stage_bytes = (pixels * kRowBytes + 1023) / 1024 * 1024;
  const int64_t stages = std::min<int64_t>(
      (kMostShared - taps * kFilterBytes) / stage_bytes, kMaxWindowStages);
  if (stages < 2) return std::nullopt;
  return WindowTiling{static_cast<int>(rows),   static_cast<int>(w.count),
                      static_cast<int>(width),  static_cast<int>(box_rows),
                      static_cast<int>(groups), static_cast<int>(stage_bytes),
                      static_cast<int>(stages)};
}

}  // namespace jax_convbatch::hopper
