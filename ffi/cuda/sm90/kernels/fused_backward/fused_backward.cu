// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/arch/launch.cuh"
#include "cuda/sm90/kernels/fused_backward/dw_stationary_backward.cuh"
#include "cuda/sm90/kernels/fused_backward/masked_backward.h"
#include "cuda/sm90/kernels/fused_backward/strided_maps.h"
#include "cuda/sm90/problem/fused_backward.h"
#include "cuda/sm90/problem/tensor_map.h"

namespace jax_convbatch::hopper {
namespace {

template <typename Config>
cudaError_t Launch(const FusedBackwardCall& call, int multiprocessors,
                   Stage stage, cudaStream_t stream) {
  using T = typename Config::T;
  const auto kernel = &DwStationaryKernel<Config>;
  cudaError_t error = RaiseSharedMemory(kernel, Config::kSharedBytes);
  if (error != cudaSuccess) return error;
  if (stage == Stage::kPrepare) {
    cudaFuncAttributes loads;
    return cudaFuncGetAttributes(&loads, &AddLayerSums<Config>);
  }
  const ConvGeometry& g = call.g;
  const int64_t pixels = g.N * g.output_pixels(), C = g.C, K = g.K;
  DwStationaryProblem problem{};
  problem.bitmask = static_cast<const uint8_t*>(call.bitmask);
  problem.partials = static_cast<float*>(call.workspace);
  problem.pixels = static_cast<int>(pixels);
  problem.tiles =
      static_cast<int>((pixels + kBackwardPixels - 1) / kBackwardPixels);
  problem.slices = static_cast<int>(C / Config::kC);
  problem.blocks = DwStationaryBlocks(g, multiprocessors);
  problem.stores_dz = call.dz != nullptr;
  problem.walk = StridedPixelsOf(g);
  auto encode = [&](CUtensorMap* map, const void* data, int64_t channels,
                    int64_t rows) {
    return EncodeTiled(map, call.type, data, {channels, rows}, {64, 64});
  };
  if (!encode(&problem.dy, call.dy, K, pixels) ||
      !encode(&problem.w, call.w, K, C) ||
      (problem.stores_dz && !encode(&problem.dz, call.dz, K, pixels)) ||
      !EncodeX(call, &problem.x) || !EncodeDx(call, problem.dx)) {
    return cudaErrorInvalidValue;
  }
  kernel<<<problem.slices * problem.blocks, kThreads, Config::kSharedBytes,
           stream>>>(problem);
  error = cudaGetLastError();
  if (error != cudaSuccess) return error;
  return LaunchKernel(AddLayerSums<Config>,
                      {int64_t{problem.slices} * kSumBlocks<Config>,
                       kSumQuads * kSumLanes, Start::kEarly},
                      stream, problem.partials, problem.blocks,
                      static_cast<T*>(call.dw), static_cast<T*>(call.db));
}

// Calls f with the Config for the channels of a slice (DwStationarySlice).
template <typename T, typename F>
void ForChannels(int64_t C, int64_t K, F&& f) {
  constexpr bool kShared = true;
  auto is = [&](int64_t c, int64_t k) { return C == c && K == k; };
  if (is(64, 64)) return f(DwStationaryConfig<T, 64, 64>());
  if (is(256, 64)) return f(DwStationaryConfig<T, 256, 64>());
  if (is(128, 128)) return f(DwStationaryConfig<T, 128, 128>());
  if (is(64, 256)) return f(DwStationaryConfig<T, 64, 256>());
  if (is(128, 256)) return f(DwStationaryConfig<T, 128, 256, kShared>());
  if (is(64, 512)) f(DwStationaryConfig<T, 64, 512, kShared>());
}

}  // namespace

cudaError_t FusedBackward(const FusedBackwardCall& call, int multiprocessors,
                          Stage stage, cudaStream_t stream) {
  if (!HasFusedBackward(call.g, call.type)) return cudaErrorInvalidValue;
  if (TakesMaskedBackward(call.g, call.type)) {
    return MaskedBackward(call, multiprocessors, stage, stream);
  }
  const int64_t slice = DwStationarySlice(call.g);
  cudaError_t error = cudaErrorInvalidValue;
  auto launch = [&](auto config) {
    error = Launch<decltype(config)>(call, multiprocessors, stage, stream);
  };
  if (call.type == Type::kBf16) {
    ForChannels<__nv_bfloat16>(slice, call.g.K, launch);
  } else {
    ForChannels<__half>(slice, call.g.K, launch);
  }
  return error;
}

}  // namespace jax_convbatch::hopper
