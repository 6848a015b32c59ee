// fprop of f32 with few input channels and large filters, stems: which
// strip_tf32_wide.cuh runs. Host only.
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_FEW_CHANNELS_STRIP_TF32_WIDE_PLAN_H_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_FEW_CHANNELS_STRIP_TF32_WIDE_PLAN_H_

#include <optional>

#include "cuda/sm90/kernels/few_channels/strip_tf32_wide_tiling.h"
#include "cuda/sm90/problem/conv.h"

namespace jax_convbatch::hopper {

// Whether columns are longer than those of strip_tf32.cuh.
inline bool IsWideStrip(const ConvGeometry& g) {
  return g.taps() * g.C > kStripWideLeast;
}

// Eights of a column that there are kernels for; the least that is enough, or
// 0.
int StripWideSteps(const ConvGeometry& g);

// The geometry as one of elements of 16 bits.
ConvGeometry InHalves(const ConvGeometry& g);

// Shared memory of a block.
int64_t StripWideBytes(const ConvGeometry& g, int64_t tile);

// Pixels from a row of a product to the next.
int StripWideApart(const ConvGeometry& g);

std::optional<Plan> PlanStripWide(const ConvGeometry& g, int multiprocessors);

// The kernel of a plan of the path kStrips for f32 where IsWideStrip; see
// conv.h.
cudaError_t StripWide(const ConvCall& call, Stage stage, cudaStream_t stream);

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_FEW_CHANNELS_STRIP_TF32_WIDE_PLAN_H_
