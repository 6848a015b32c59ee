#include <algorithm>
#include <cstdint>
#include <utility>

#include "cuda/hopper/box_map.h"
#include "cuda/hopper/conv_parts.h"
#include "cuda/hopper/launch.cuh"
#include "cuda/hopper/tensor_map.h"
#include "cuda/hopper/wide_backward.h"
#include "cuda/hopper/wide_dgrad.cuh"
#include "cuda/hopper/wide_wgrad.cuh"

namespace jax_convbatch::hopper {
namespace {

WidePixels WalkOf(const ConvGeometry& g) {
  WidePixels walk{};
  walk.rows = static_cast<int>(g.P);
  walk.cols = static_cast<int>(g.Q);
  walk.step_h = static_cast<int>(g.stride.h);
  walk.step_w = static_cast<int>(g.stride.w);
  const auto parts = DgradParts(g);
  walk.parts = static_cast<int>(parts.size());
  for (int i = 0; i < walk.parts; ++i) {
    walk.part_h[i] = static_cast<int>(parts[i].h.output);
    walk.part_w[i] = static_cast<int>(parts[i].w.output);
  }
  return walk;
}

template <typename Config>
cudaError_t LaunchDgrad(const LayerBackwardCall& call, int multiprocessors,
                        Stage stage, cudaStream_t stream) {
  const auto kernel = &WideDgradKernel<Config>;
  if (stage == Stage::kPrepare) {
    return RaiseSharedMemory(kernel, Config::kSharedBytes);
  }
  const ConvGeometry& g = call.g;
  const int64_t pixels = g.N * g.output_pixels();
  WideDgradProblem problem{};
  problem.signs = static_cast<const uint8_t*>(call.signs);
  problem.K = static_cast<int>(g.K);
  problem.pixels = static_cast<int>(pixels);
  problem.n_tiles = static_cast<int>(g.C / Config::kN);
  problem.tiles = static_cast<int>((pixels + Config::kM - 1) / Config::kM) *
                  problem.n_tiles;
  problem.walk = WalkOf(g);
  if (!EncodeTiled(&problem.dy, call.type, call.dy, {g.K, pixels},
                   {64, Config::kM}) ||
      !EncodeTiled(&problem.w, call.type, call.w, {g.K, g.C},
                   {64, Config::kN}) ||
      (Config::kStoresDz &&
       !EncodeTiled(&problem.dz, call.type, call.dz, {g.K, pixels},
                    {64, Config::kM}, Copy::kStore))) {
    return cudaErrorInvalidValue;
  }
  if (g.is_pointwise()) {
    if (!EncodeTiled(&problem.dx[0], call.type, call.dx, {g.C, pixels},
                     {64, 64}, Copy::kStore)) {
      return cudaErrorInvalidValue;
    }
  } else {
    const auto parts = DgradParts(g);
    for (int i = 0; i < problem.walk.parts; ++i) {
      if (!EncodeIm2col(&problem.dx[i], call.type, call.dx,
                        OutputWalk(InputOf(g), parts[i], 64), Copy::kStore)) {
        return cudaErrorInvalidValue;
      }
    }
  }
  kernel<<<std::min(problem.tiles, multiprocessors), kThreads,
           Config::kSharedBytes, stream>>>(problem);
  return cudaGetLastError();
}

template <typename... Parameters, typename... Arguments>
cudaError_t LaunchDependent(void (*kernel)(Parameters...), int cluster,
                            int64_t blocks, int threads, int shared_bytes,
                            cudaStream_t stream, Arguments&&... arguments) {
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  return cudaLaunchKernelEx(&config, kernel,
                            std::forward<Arguments>(arguments)...);
}

template <typename T>
cudaError_t LaunchWgrad(const LayerBackwardCall& call, int multiprocessors,
                        Stage stage, cudaStream_t stream) {
  using Config = WideWgradConfig<T>;
  const auto kernel = &WideWgradKernel<Config>;
  if (stage == Stage::kPrepare) {
    cudaError_t error = RaiseSharedMemory(kernel, Config::kSharedBytes);
    if (error != cudaSuccess) return error;
    cudaFuncAttributes loads;
    return cudaFuncGetAttributes(&loads, &AddWidePieces<T>);
  }
  const ConvGeometry& g = call.g;
  const int64_t pixels = g.N * g.output_pixels();
  WideWgradProblem problem{};
  problem.C = static_cast<int>(g.C);
  problem.K = static_cast<int>(g.K);
  problem.steps = static_cast<int>((pixels + 63) / 64);
  problem.splits = WideSplits(g, multiprocessors);
  problem.cluster = problem.splits % 2 == 0 ? 2 : 1;
  problem.k_tiles = static_cast<int>(g.K / kWideRows);
  problem.tiles = static_cast<int>(g.C / kWideColumns) * problem.k_tiles;
  problem.pieces = static_cast<float*>(call.workspace);
  problem.db_pieces = problem.pieces + problem.splits * g.C * g.K;
  problem.walk = WalkOf(g);
  const bool encoded =
      EncodeTiled(&problem.dy, call.type, call.dy, {g.K, pixels}, {64, 64}) &&
      EncodeBoxes(&problem.signs, call.type, call.signs, {g.K / 16, pixels},
                  {kWideRows / 16, 64}) &&
      (g.is_pointwise()
           ? EncodeTiled(&problem.x, call.type, call.x, {g.C, pixels}, {64, 64})
           : EncodeIm2col(&problem.x, call.type, call.x,
                          InputWalk(InputOf(g), FpropPart(g), 64)));
  if (!encoded) return cudaErrorInvalidValue;
  const cudaError_t error =
      LaunchDependent(kernel, problem.cluster, problem.tiles * problem.splits,
                      kThreads, Config::kSharedBytes, stream, problem);
  if (error != cudaSuccess) return error;
  return LaunchDependent(AddWidePieces<T>,
                         int64_t{problem.tiles} * kWideQuads + g.K / kWarpgroup,
                         kWarpgroup, stream, problem, static_cast<T*>(call.dw),
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
cudaError_t LaunchBoth(const LayerBackwardCall& call, int multiprocessors,
                       Stage stage, cudaStream_t stream) {
  using Strided = WideDgradConfig<T, 256, kStoresDz, true>;
  using Wider = WideDgradConfig<T, 256, kStoresDz, false>;
  using Narrower = WideDgradConfig<T, 128, kStoresDz, false>;
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
cudaError_t Launch(const LayerBackwardCall& call, int multiprocessors,
                   Stage stage, cudaStream_t stream) {
  return call.dz == nullptr
             ? LaunchBoth<T, false>(call, multiprocessors, stage, stream)
             : LaunchBoth<T, true>(call, multiprocessors, stage, stream);
}

}  // namespace

cudaError_t WideBackward(const LayerBackwardCall& call, int multiprocessors,
                         Stage stage, cudaStream_t stream) {
  if (!HasWideBackward(call.g, call.type)) return cudaErrorInvalidValue;
  return call.type == Type::kBf16
             ? Launch<__nv_bfloat16>(call, multiprocessors, stage, stream)
             : Launch<__half>(call, multiprocessors, stage, stream);
}

}  // namespace jax_convbatch::hopper
