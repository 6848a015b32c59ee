// How the window kernel cuts an output into tiles. Host only.
#ifndef JAX_CONVBATCH_CUDA_HOPPER_WINDOW_PLAN_H_
#define JAX_CONVBATCH_CUDA_HOPPER_WINDOW_PLAN_H_

#include <optional>

#include "cuda/hopper/conv_parts.h"
#include "cuda/hopper/window_tiling.h"

namespace jax_convbatch::hopper {

inline bool IsWindow(const Plan& plan) {
  return plan.tile_n == kWindowChannels &&
         (plan.tile_m == kWindowPixels || plan.tile_m == kStripPixels ||
          plan.tile_m == kGroupWindowPixels);
}

// For products of kWindowPixels or kStripPixels, or for those of narrow groups
// of kGroupWindowPixels, whose filter has so many rows a tap. Nothing where the
// kernel cannot run the part: it takes 16-bit types, up to 64 channels on
// either side, at most kMaxWindowTaps taps, stride 1 (of narrow groups also 2)
// and, if whole, rows of which at least one fits a product.
std::optional<WindowTiling> TileWindow(Type type, const Activations& in,
                                       const Activations& out,
                                       const PartAxes& part, int pixels,
                                       int filter_rows = 64);

// The same for a set of 64 channels of several groups: several narrow ones, of
// kGroupWindowPixels, or one of 64.
std::optional<WindowTiling> TileGroupWindow(const ConvGeometry& g, Type type,
                                            const Activations& in,
                                            const Activations& out,
                                            const PartAxes& part, int pixels);

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_HOPPER_WINDOW_PLAN_H_
