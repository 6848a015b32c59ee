// Launches of narrow_wgrad.cuh.
#include "cuda/add_chunks.cuh"
#include "cuda/hopper/launch.cuh"
#include "cuda/hopper/most_shared.h"
#include "cuda/hopper/narrow_plan.h"
#include "cuda/hopper/narrow_wgrad.cuh"

namespace jax_convbatch::hopper {
namespace {

template <typename T, int kA, int kB>
cudaError_t Launch(const ConvCall& call, const NarrowWgradShape& shape,
                   Stage stage, cudaStream_t stream) {
  const auto kernel = &NarrowWgradKernel<NarrowWgradConfig<T, kA, kB>>;
  const ConvGeometry& g = call.g;
  const cudaError_t raised = RaiseSharedMemory(kernel, kMostShared);
  if (raised != cudaSuccess) return raised;
  NarrowWgradProblem p{};
  p.a = shape.flipped ? call.rhs : call.lhs;
  p.b = shape.flipped ? call.lhs : call.rhs;
  p.pieces = static_cast<float*>(call.workspace);
  p.pixels = g.N * g.output_pixels();
  p.a_channels = shape.a_channels;
  p.b_channels = shape.b_channels;
  p.flipped = shape.flipped;
  if (stage == Stage::kPrepare) {
    cudaFuncAttributes loads;
    return cudaFuncGetAttributes(&loads, &AddChunksKernel<T, 4>);
  }
  kernel<<<call.plan.blocks, kNarrowThreads, shape.shared_bytes(), stream>>>(p);
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) return error;
  return LaunchAddChunks<T>(stream, 1, call.plan.blocks, g.w_size(), p.pieces,
                            static_cast<T*>(call.result));
}

template <typename T, int kA>
cudaError_t Launch(const ConvCall& call, const NarrowWgradShape& shape,
                   Stage stage, cudaStream_t stream) {
  return shape.b == kNarrowB[0]
             ? Launch<T, kA, kNarrowB[0]>(call, shape, stage, stream)
             : Launch<T, kA, kNarrowB[1]>(call, shape, stage, stream);
}

template <typename T>
cudaError_t Launch(const ConvCall& call, Stage stage, cudaStream_t stream) {
  const NarrowWgradShape shape(call.g);
  switch (shape.a) {
    case 16:
      return Launch<T, 16>(call, shape, stage, stream);
    case 32:
      return Launch<T, 32>(call, shape, stage, stream);
    case 64:
      return Launch<T, 64>(call, shape, stage, stream);
    case 96:
      return Launch<T, 96>(call, shape, stage, stream);
    case 144:
      return Launch<T, 144>(call, shape, stage, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t NarrowWgrad(const ConvCall& call, Stage stage,
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
