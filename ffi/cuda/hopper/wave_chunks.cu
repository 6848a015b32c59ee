#include <vector>

#include "cuda/hopper/conv_launch.cuh"
#include "cuda/hopper/wave.h"
#include "cuda/hopper/wave_chunks_kernel.cuh"
#include "cuda/hopper/wave_plan.h"

namespace jax_convbatch::hopper {
namespace {

template <typename Config>
cudaError_t Launch(const ConvProblem<1>& problem, Stage stage,
                   cudaStream_t stream) {
  const auto kernel = &WaveChunksKernel<Config>;
  constexpr int kBytes =
      Config::kBarrierOffset + sizeof(WaveChunksBarriers<Config>);
  const cudaError_t raised = RaiseSharedMemory(kernel, kBytes);
  if (raised != cudaSuccess || stage == Stage::kPrepare) return raised;
  return LaunchKernel(kernel,
                      {int64_t{kSumChunks} * problem.tiles, Config::kThreads,
                       Start::kInOrder, kBytes, kSumChunks},
                      stream, problem, MakeChunks(problem));
}

template <typename T, Contiguous kWeights>
cudaError_t Run(const ConvCall& call, const Activations& in,
                const Activations& out, const PartAxes& part, Stage stage,
                cudaStream_t stream) {
  constexpr int kFew = kChunkPixels[0], kMany = kChunkPixels[1];
  static_assert(std::size(kChunkPixels) == 2);
  const int m = call.plan.tile_m, n = call.plan.tile_n;
  if (m != kFew && m != kMany) return cudaErrorInvalidValue;
  ConvProblem<1> problem{};
  const int filter_channels = kWeights == Contiguous::kRows ? 64 : n;
  if (!MakeConvProblem(call, in, out, std::vector<PartAxes>{part},
                       {m, m, filter_channels, Output::kThreads}, &problem)) {
    return cudaErrorInvalidValue;
  }
  if (n == 64) {
    return m == kFew ? Launch<WaveChunksConfig<T, kFew, 1, kWeights>>(
                           problem, stage, stream)
                     : Launch<WaveChunksConfig<T, kMany, 1, kWeights>>(
                           problem, stage, stream);
  }
  return m == kFew ? Launch<WaveChunksConfig<T, kFew, 2, kWeights>>(
                         problem, stage, stream)
                   : Launch<WaveChunksConfig<T, kMany, 2, kWeights>>(
                         problem, stage, stream);
}

template <typename T>
cudaError_t Run(const ConvCall& call, bool dgrad, Stage stage,
                cudaStream_t stream) {
  const Activations x = InputOf(call.g), y = OutputOf(call.g);
  return dgrad ? Run<T, Contiguous::kReduction>(
                     call, y, x, DgradParts(call.g)[0], stage, stream)
               : Run<T, Contiguous::kRows>(call, x, y, FpropPart(call.g), stage,
                                           stream);
}

}  // namespace

cudaError_t WaveChunks(const ConvCall& call, bool dgrad, Stage stage,
                       cudaStream_t stream) {
  return call.type == Type::kBf16
             ? Run<__nv_bfloat16>(call, dgrad, stage, stream)
             : Run<__half>(call, dgrad, stage, stream);
}

}  // namespace jax_convbatch::hopper
