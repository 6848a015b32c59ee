// SPDX-License-Identifier: Apache-2.0
// Launches of skinny_wgrad.cuh and skinny_ring.cuh.
#include "cuda/common/most_shared.h"
#include "cuda/reductions/add_chunks.cuh"
#include "cuda/sm90/arch/launch.cuh"
#include "cuda/sm90/kernels/skinny/skinny_plan.h"
#include "cuda/sm90/kernels/skinny/skinny_ring.cuh"
#include "cuda/sm90/kernels/skinny/skinny_wgrad.cuh"

namespace jax_convbatch::hopper {
namespace {

SkinnyWgradProblem ProblemOf(const ConvCall& call,
                             const SkinnyWgradShape& shape) {
  SkinnyWgradProblem p{};
  p.a = shape.flipped ? call.rhs : call.lhs;
  p.b = shape.flipped ? call.lhs : call.rhs;
  p.partials = static_cast<float*>(call.workspace);
  p.pixels = call.g.N * call.g.output_pixels();
  p.a_channels = shape.a_channels;
  p.b_channels = shape.b_channels;
  p.flipped = shape.flipped;
  return p;
}

template <typename T, int kA, int kB>
cudaError_t Launch(const ConvCall& call, const SkinnyWgradShape& shape,
                   Stage stage, cudaStream_t stream) {
  const auto kernel = &SkinnyWgradKernel<SkinnyWgradConfig<T, kA, kB>>;
  const cudaError_t raised = RaiseSharedMemory(kernel, kMostShared);
  if (raised != cudaSuccess) return raised;
  if (stage == Stage::kPrepare) {
    cudaFuncAttributes loads;
    return cudaFuncGetAttributes(&loads, &AddChunksKernel<T, 4>);
  }
  const SkinnyWgradProblem p = ProblemOf(call, shape);
  kernel<<<call.plan.blocks, kSkinnyThreads, shape.shared_bytes(), stream>>>(p);
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) return error;
  return LaunchAddChunks<T>(stream, 1, call.plan.blocks, call.g.w_size(),
                            p.partials, static_cast<T*>(call.result));
}

template <typename T, int kColumns>
cudaError_t LaunchRing(const ConvCall& call, const SkinnyWgradShape& shape,
                       const SkinnyRing& ring, Stage stage,
                       cudaStream_t stream) {
  const auto kernel = &SkinnyRingKernel<T, kColumns>;
  const auto adds = &AddSkinny<T>;
  const cudaError_t raised = RaiseSharedMemory(kernel, kMostShared);
  if (raised != cudaSuccess) return raised;
  if (stage == Stage::kPrepare) {
    cudaFuncAttributes loads;
    return cudaFuncGetAttributes(&loads, adds);
  }
  SkinnyRingProblem p{ProblemOf(call, shape)};
  p.run = ring.run;
  p.a_pitch = ring.a_pitch;
  p.b_pitch = ring.b_pitch;
  p.b_at = kSkinnyRuns * ring.a_pitch;
  p.stage_bytes = ring.stage_bytes;
  p.stages = (p.pixels + ring.pixels() - 1) / ring.pixels();
  p.ring = ring.ring;
  p.a_blocks = ring.a_blocks;
  p.columns = ring.columns / 8;
  const int threads = 32 * (ring.a_blocks + 1);
  kernel<<<call.plan.blocks, threads, ring.shared_bytes(), stream>>>(p);
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) return error;
  const int quads = ring.a_blocks * 16 * ring.columns / 4;
  return LaunchKernel(
      adds, {quads / kSkinnyAddLanes, kAddThreads, Start::kEarly}, stream, p,
      call.plan.blocks, static_cast<T*>(call.result));
}

template <typename T>
cudaError_t Launch(const ConvCall& call, Stage stage, cudaStream_t stream) {
  const SkinnyWgradShape shape(call.g);
  if (!shape.is_small()) {
    const SkinnyRing ring(shape, call.type, call.plan.tile_m / kSkinnyRuns);
    switch (ring.columns) {
      case 16:
        return LaunchRing<T, 2>(call, shape, ring, stage, stream);
      case 32:
        return LaunchRing<T, 4>(call, shape, ring, stage, stream);
      case 48:
        return LaunchRing<T, 6>(call, shape, ring, stage, stream);
      default:
        return cudaErrorInvalidValue;
    }
  }
  if (shape.b == 32) return Launch<T, 32, 32>(call, shape, stage, stream);
  switch (shape.a) {
    case 16:
      return Launch<T, 16, 16>(call, shape, stage, stream);
    case 32:
      return Launch<T, 32, 16>(call, shape, stage, stream);
    case 64:
      return Launch<T, 64, 16>(call, shape, stage, stream);
    case 96:
      return Launch<T, 96, 16>(call, shape, stage, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t SkinnyWgrad(const ConvCall& call, Stage stage,
                        cudaStream_t stream) {
  switch (call.type) {
    case Type::kBf16:
      return Launch<__nv_bfloat16>(call, stage, stream);
    case Type::kF16:
      return Launch<__half>(call, stage, stream);
    default:
      return Launch<float>(call, stage, stream);
  }
}

}  // namespace jax_convbatch::hopper
