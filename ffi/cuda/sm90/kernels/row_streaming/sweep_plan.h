// Which convolutions the sweeping kernels run, and how. Host only.
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_ROW_STREAMING_SWEEP_PLAN_H_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_ROW_STREAMING_SWEEP_PLAN_H_

#include <optional>

#include "cuda/sm90/problem/conv.h"

namespace jax_convbatch::hopper {

// The pixels of a stage: those of 64 patches and what their taps reach beyond.
inline constexpr int kSweepPixels = 72;
inline constexpr int kSweepStageBytes = kSweepPixels * 128;
// Warpgroups that multiply, and stages of each: fewer where the filter is
// large.
inline constexpr int kSweepConsumers = 4;
inline constexpr int kSweepStages = 4, kSweepFewStages = 2;

// For geometries that are IsGatherable, in bf16 and f16; nothing where the
// kernels cannot run.
std::optional<Plan> PlanSweepFprop(const ConvGeometry& g, int multiprocessors);
std::optional<Plan> PlanSweepDgrad(const ConvGeometry& g, int multiprocessors);

// The kernels of a plan of the path kSweeps; see conv.h.
cudaError_t SweepFprop(const ConvCall& call, Stage stage, cudaStream_t stream);
cudaError_t SweepDgrad(const ConvCall& call, Stage stage, cudaStream_t stream);

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_ROW_STREAMING_SWEEP_PLAN_H_
