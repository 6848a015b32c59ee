// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>

#include "cuda/sm90/arch/launch.cuh"
#include "cuda/sm90/kernels/fused_backward/masked_backward.h"
#include "cuda/sm90/kernels/fused_backward/masked_dgrad.cuh"
#include "cuda/sm90/kernels/fused_backward/masked_wgrad.cuh"
#include "cuda/sm90/kernels/fused_backward/strided_maps.h"
#include "cuda/sm90/problem/box_map.h"
#include "cuda/sm90/problem/tensor_map.h"

namespace jax_convbatch::hopper {
namespace {

template <typename Config>
cudaError_t LaunchDgrad(const FusedBackwardCall& call, int multiprocessors,
                        Stage stage, cudaStream_t stream) {
  const auto kernel = &MaskedDgradKernel<Config>;
  if (stage == Stage::kPrepare) {
    return RaiseSharedMemory(kernel, Config::kSharedBytes);
  }
  const ConvGeometry& g = call.g;
  const int64_t pixels = g.N * g.output_pixels();
  MaskedDgradProblem problem{};
  problem.bitmask = static_cast<const uint8_t*>(call.bitmask);
  problem.K = static_cast<int>(g.K);
  problem.pixels = static_cast<int>(pixels);
  problem.n_tiles = static_cast<int>(g.C / Config::kN);
  problem.tiles = static_cast<int>((pixels + Config::kM - 1) / Config::kM) *
                  problem.n_tiles;
  problem.walk = StridedPixelsOf(g);
  if (!EncodeTiled(&problem.dy, call.type, call.dy, {g.K, pixels},
                   {64, Config::kM}) ||
      !EncodeTiled(&problem.w, call.type, call.w, {g.K, g.C},
                   {64, Config::kN}) ||
      (Config::kStoresDz &&
       !EncodeTiled(&problem.dz, call.type, call.dz, {g.K, pixels},
                    {64, Config::kM}, Copy::kStore)) ||
      !EncodeDx(call, problem.dx)) {
    return cudaErrorInvalidValue;
  }
  kernel<<<std::min(problem.tiles, multiprocessors), kThreads,
           Config::kSharedBytes, stream>>>(problem);
  return cudaGetLastError();
}

template <typename T>
cudaError_t LaunchWgrad(const FusedBackwardCall& call, int multiprocessors,
                        Stage stage, cudaStream_t stream) {
  using Config = MaskedWgradConfig<T>;
  const auto kernel = &MaskedWgradKernel<Config>;
  if (stage == Stage::kPrepare) {
    cudaError_t error = RaiseSharedMemory(kernel, Config::kSharedBytes);
    if (error != cudaSuccess) return error;
    cudaFuncAttributes loads;
    return cudaFuncGetAttributes(&loads, &AddMaskedPartials<T>);
  }
  const ConvGeometry& g = call.g;
  const int64_t pixels = g.N * g.output_pixels();
  MaskedWgradProblem problem{};
  problem.C = static_cast<int>(g.C);
  problem.K = static_cast<int>(g.K);
  problem.steps = static_cast<int>((pixels + 63) / 64);
  problem.splits = MaskedSplits(g, multiprocessors);
  problem.cluster = problem.splits % 2 == 0 ? 2 : 1;
  problem.k_tiles = static_cast<int>(g.K / kMaskedRows);
  problem.tiles = static_cast<int>(g.C / kMaskedColumns) * problem.k_tiles;
  problem.partials = static_cast<float*>(call.workspace);
  problem.db_partials = problem.partials + problem.splits * g.C * g.K;
  problem.walk = StridedPixelsOf(g);
  const bool encoded =
      EncodeTiled(&problem.dy, call.type, call.dy, {g.K, pixels}, {64, 64}) &&
      EncodeBoxes(&problem.bitmask, call.type, call.bitmask, {g.K / 16, pixels},
                  {kMaskedRows / 16, 64}) &&
      EncodeX(call, &problem.x);
  if (!encoded) return cudaErrorInvalidValue;
  const cudaError_t error =
      LaunchKernel(kernel,
                   {problem.tiles * problem.splits, kThreads, Start::kEarly,
                    Config::kSharedBytes, problem.cluster},
                   stream, problem);
  if (error != cudaSuccess) return error;
  return LaunchKernel(AddMaskedPartials<T>,
                      {int64_t{problem.tiles} * kMaskedQuads + g.K / kWarpgroup,
                       kWarpgroup, Start::kEarly},
                      stream, problem, static_cast<T*>(call.dw),
                      static_cast<T*>(call.db));
}

// The wider tile reads less; two of the other fill the last wave better.
bool HasWiderTiles(const ConvGeometry& g, int multiprocessors) {
  const int64_t rows = (g.N * g.output_pixels() + 127) / 128;
  auto waves = [&](int64_t columns) {
    return (rows * (g.C / columns) + multiprocessors - 1) / multiprocessors;
  };
  return 2 * waves(256) <= waves(128);
}

template <typename T, bool kStoresDz>
cudaError_t LaunchBoth(const FusedBackwardCall& call, int multiprocessors,
                       Stage stage, cudaStream_t stream) {
  using Strided = MaskedDgradConfig<T, 256, kStoresDz, true>;
  using Wider = MaskedDgradConfig<T, 256, kStoresDz, false>;
  using Narrower = MaskedDgradConfig<T, 128, kStoresDz, false>;
  const cudaError_t error =
      !call.g.is_pointwise()
          ? LaunchDgrad<Strided>(call, multiprocessors, stage, stream)
      : HasWiderTiles(call.g, multiprocessors)
          ? LaunchDgrad<Wider>(call, multiprocessors, stage, stream)
          : LaunchDgrad<Narrower>(call, multiprocessors, stage, stream);
  if (error != cudaSuccess) return error;
  return LaunchWgrad<T>(call, multiprocessors, stage, stream);
}

template <typename T>
cudaError_t Launch(const FusedBackwardCall& call, int multiprocessors,
                   Stage stage, cudaStream_t stream) {
  return call.dz == nullptr
             ? LaunchBoth<T, false>(call, multiprocessors, stage, stream)
             : LaunchBoth<T, true>(call, multiprocessors, stage, stream);
}

}  // namespace

cudaError_t MaskedBackward(const FusedBackwardCall& call, int multiprocessors,
                           Stage stage, cudaStream_t stream) {
  if (!HasMaskedBackward(call.g, call.type)) return cudaErrorInvalidValue;
  return call.type == Type::kBf16
             ? Launch<__nv_bfloat16>(call, multiprocessors, stage, stream)
             : Launch<__half>(call, multiprocessors, stage, stream);
}

}  // namespace jax_convbatch::hopper
