// Which convolutions the strip kernels run, and how. Host only.
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_FEW_CHANNELS_STRIP_PLAN_H_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_FEW_CHANNELS_STRIP_PLAN_H_

#include <algorithm>
#include <optional>

#include "cuda/sm90/problem/conv.h"

namespace jax_convbatch::hopper {

// The longest columns that fprop takes: these have no padding.
inline constexpr int kFullStripSteps = 16;

// The numbers of StripLayout, and what follows from a tile's size.
struct StripShape {
  int64_t origin, pitch, first, runs, length, lead, pairs, run_cols;
  int64_t run_row, run_col;
  bool odd;

  explicit StripShape(const ConvGeometry& g);

  // Whether columns are so many steps, of nothing but their own elements.
  bool is_full(int of_steps) const {
    return !odd && lead == 0 && length % 2 == 0 &&
           runs * length == 16 * of_steps;
  }
  // Of 16 elements of a column.
  int64_t steps() const { return (runs * pairs * 2 + 15) / 16; }
  // Rows of y that a tile may touch, and rows of its strip.
  static int64_t RowsOfY(const ConvGeometry& g, int64_t tile);
  static int64_t Rows(const ConvGeometry& g, int64_t tile);
  // Of a stage without dy and with it; multiples of 1024.
  int64_t StageBytes(const ConvGeometry& g, int64_t tile, bool dy) const;
};

// Cycles of a multiprocessor for 64 pixels, for a byte of a strip, and for a
// tile.
struct StripCosts {
  double box, byte, tile;
};

// The pixels of a tile, of those that fit, with which so many blocks are done
// first, or 0 where none fits.
template <typename Fits>
int64_t BestStripTile(const ConvGeometry& g, int64_t blocks,
                      const StripCosts& costs, Fits fits) {
  const StripShape shape(g);
  int64_t best = 0;
  double least = 0;
  for (int64_t tile = 64; tile <= 512; tile += 64) {
    if (!fits(tile)) continue;
    const int64_t tiles = g.N * ((g.P * g.Q + tile - 1) / tile);
    const int64_t waves = (tiles + blocks - 1) / blocks;
    const double strip = StripShape::Rows(g, tile) * shape.pitch * 2.0;
    const double time =
        waves *
        (std::max(tile / 64 * costs.box, strip * costs.byte) + costs.tile);
    if (best == 0 || time < least) {
      best = tile;
      least = time;
    }
  }
  return best;
}

// The steps that there are fprop kernels for; the least that is enough, or 0.
int StripSteps(const StripShape& shape);
// dgrad of unit strides as the fprop that it is, but for the order of the taps.
ConvGeometry DgradAsFprop(const ConvGeometry& g);

// Whether wgrad has strips of dy, and x in dy's place: of fewer output channels
// than input channels, at unit strides.
bool StripsOfDy(const ConvGeometry& g);

// Whether wgrad has a tile a block, all of it in shared memory at once, and the
// boxes of dy that it may have there.
inline constexpr int kStripShortBoxes = 28;
bool IsShortStrip(const ConvGeometry& g, int64_t tile, int64_t blocks);

// Shared memory of a block.
int64_t StripShortBytes(const ConvGeometry& g, int64_t tile);
int64_t StripSharedBytes(const ConvGeometry& g, int64_t tile, bool wgrad);

// For geometries that are IsGatherable, in bf16 and f16; nothing where the
// kernels cannot run.
std::optional<Plan> PlanStripFprop(const ConvGeometry& g, int multiprocessors);
std::optional<Plan> PlanStripDgrad(const ConvGeometry& g, int multiprocessors);
std::optional<Plan> PlanStripWgrad(const ConvGeometry& g, int multiprocessors);

// The kernels of a plan of the path kStrips; see conv.h.
cudaError_t StripFprop(const ConvCall& call, Stage stage, cudaStream_t stream);
cudaError_t StripDgrad(const ConvCall& call, Stage stage, cudaStream_t stream);
cudaError_t StripWgrad(const ConvCall& call, Stage stage, cudaStream_t stream);

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_FEW_CHANNELS_STRIP_PLAN_H_
