#include <utility>

#include "cuda/hopper/launch.cuh"
#include "cuda/hopper/layer_backward.cuh"
#include "cuda/hopper/layer_backward.h"
#include "cuda/hopper/tensor_map.h"

namespace jax_convbatch::hopper {
namespace {

template <typename Config>
cudaError_t Launch(const LayerBackwardCall& call, int multiprocessors,
                   Stage stage, cudaStream_t stream) {
  using T = typename Config::T;
  const auto kernel = &LayerBackwardKernel<Config>;
  cudaError_t error = RaiseSharedMemory(kernel, Config::kSharedBytes);
  if (error != cudaSuccess) return error;
  if (stage == Stage::kPrepare) {
    cudaFuncAttributes loads;
    return cudaFuncGetAttributes(&loads, &AddLayerSums<Config>);
  }
  const ConvGeometry& g = call.g;
  const int64_t pixels = g.N * g.output_pixels(), C = g.C, K = g.K;
  LayerBackwardProblem problem{};
  problem.signs = static_cast<const uint8_t*>(call.signs);
  problem.pieces = static_cast<float*>(call.workspace);
  problem.pixels = static_cast<int>(pixels);
  problem.tiles =
      static_cast<int>((pixels + kBackwardPixels - 1) / kBackwardPixels);
  problem.blocks = LayerBackwardBlocks(g, multiprocessors);
  problem.stores_dz = call.dz != nullptr;
  auto encode = [&](CUtensorMap* map, const void* data, int64_t channels,
                    int64_t rows) {
    return EncodeTiled(map, call.type, data, {channels, rows}, {64, 64});
  };
  if (!encode(&problem.x, call.x, C, pixels) ||
      !encode(&problem.dy, call.dy, K, pixels) ||
      !encode(&problem.w, call.w, K, C) ||
      !encode(&problem.dx, call.dx, C, pixels) ||
      (problem.stores_dz && !encode(&problem.dz, call.dz, K, pixels))) {
    return cudaErrorInvalidValue;
  }
  kernel<<<problem.blocks, kThreads, Config::kSharedBytes, stream>>>(problem);
  error = cudaGetLastError();
  if (error != cudaSuccess) return error;
  const int quads = Config::kPiece / 4;
  return LaunchDependent(
      AddLayerSums<Config>, (quads + kSumQuads - 1) / kSumQuads,
      kSumQuads * kSumLanes, stream, problem.pieces, problem.blocks,
      static_cast<T*>(call.dw), static_cast<T*>(call.db));
}

// Calls f with the Config of the channels: those of HasLayerBackward.
template <typename T, typename F>
void ForChannels(int64_t C, int64_t K, F&& f) {
  auto is = [&](int64_t c, int64_t k) { return C == c && K == k; };
  if (is(64, 64)) return f(LayerBackwardConfig<T, 64, 64>());
  if (is(64, 256)) return f(LayerBackwardConfig<T, 64, 256>());
  if (is(256, 64)) return f(LayerBackwardConfig<T, 256, 64>());
  if (is(128, 128)) f(LayerBackwardConfig<T, 128, 128>());
}

}  // namespace

cudaError_t LayerBackward(const LayerBackwardCall& call, int multiprocessors,
                          Stage stage, cudaStream_t stream) {
  if (!HasLayerBackward(call.g, call.type)) return cudaErrorInvalidValue;
  cudaError_t error = cudaErrorInvalidValue;
  auto launch = [&](auto config) {
    error = Launch<decltype(config)>(call, multiprocessors, stage, stream);
  };
  if (call.type == Type::kBf16) {
    ForChannels<__nv_bfloat16>(call.g.C, call.g.K, launch);
  } else {
    ForChannels<__half>(call.g.C, call.g.K, launch);
  }
  return error;
}

}  // namespace jax_convbatch::hopper
