#include "cuda/sm90/kernels/single_wave/wave.h"
#include "cuda/sm90/kernels/single_wave/wave_chunks_kernel.cuh"
#include "cuda/sm90/kernels/single_wave/wave_launch.cuh"

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
  const int m = call.plan.tile_m;
  ConvProblem<1> problem{};
  if (!MakeConvProblem(
          call, in, out, WaveParts{part},
          {m, m, FilterChannels<kWeights>(call.plan), Output::kThreads},
          &problem)) {
    return cudaErrorInvalidValue;
  }
  return WithWaveTile<kChunkPixels>(call.plan, [&](auto pixels, auto groups) {
    return Launch<WaveChunksConfig<T, decltype(pixels)::value,
                                   decltype(groups)::value, kWeights>>(
        problem, stage, stream);
  });
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
