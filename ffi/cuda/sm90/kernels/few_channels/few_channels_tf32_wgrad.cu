// SPDX-License-Identifier: Apache-2.0
// Launches of few_channels_tf32_wgrad.cuh.
#include "cuda/common/most_shared.h"
#include "cuda/sm80/direct/add_partials.cuh"
#include "cuda/sm90/arch/launch.cuh"
#include "cuda/sm90/kernels/few_channels/few_channels_plan.h"
#include "cuda/sm90/kernels/few_channels/few_channels_tf32_launch.cuh"
#include "cuda/sm90/kernels/few_channels/few_channels_tf32_wgrad.cuh"
#include "cuda/sm90/problem/tensor_map.h"

namespace jax_convbatch::hopper {
namespace {

// `flipped`: see FewChannelsTf32WgradProblem.
template <typename Config>
cudaError_t Launch(const ConvCall& call, int flipped, Stage stage,
                   cudaStream_t stream) {
  static_assert(FewChannelsTf32WgradTile(Config::kElements) ==
                Config::kElements);
  const bool prepares = stage == Stage::kPrepare;
  const auto kernel = &FewChannelsTf32WgradKernel<Config>;
  const cudaError_t raised = RaiseSharedMemory(kernel, kMostShared);
  if (raised != cudaSuccess) return raised;
  const FewChannelsTf32Shape shape = FewChannelsTf32WgradShape(call.g);
  FewChannelsTf32WgradProblem p{};
  p.band = MakeFewChannelsTf32Problem(shape);
  p.band.in = static_cast<const float*>(call.lhs);
  const ConvGeometry& g = call.g;
  if (!EncodeTiled(&p.dy, call.type, call.rhs, {g.K, g.Q, g.P, g.N},
                   {kTf32Block, p.band.cols, p.band.rows, 1})) {
    return cudaErrorInvalidValue;
  }
  p.partials = static_cast<float*>(call.workspace);
  p.elements = static_cast<int>(g.taps() * g.C);
  p.flipped = flipped;
  p.eights = FastDivmod<uint32_t>(shape.cols / 8);
  const int m_tiles = (p.elements - 1) / Config::kElements + 1;
  const int n_tiles = static_cast<int>((g.K + 63) / 64);
  p.m_tiles = FastDivmod<uint32_t>(m_tiles);
  p.n_tiles = FastDivmod<uint32_t>(n_tiles);
  p.splits = call.plan.blocks / (m_tiles * n_tiles);
  const auto bytes = static_cast<int>(FewChannelsTf32WgradBytes(shape));
  p.stage = bytes / 8;
  if (!prepares) {
    // The teams' sums take the tiles' place.
    constexpr int kSums = Config::kElements * 64 * 4;
    kernel<<<call.plan.blocks, kFewChannelsTf32Threads, std::max(bytes, kSums),
             stream>>>(p);
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) return error;
  }
  return direct::AddPartialsOrPrepare<float>(
      p.splits, g.w_size(), call.workspace, call.result,
      prepares ? direct::Stage::kPrepare : direct::Stage::kLaunch, stream);
}

cudaError_t Run(const ConvCall& call, int flipped, Stage stage,
                cudaStream_t stream) {
  switch (call.plan.tile_m) {
    case 32:
      return Launch<FewChannelsTf32WgradConfig<2, 1>>(call, flipped, stage,
                                                      stream);
    case 80:
      return Launch<FewChannelsTf32WgradConfig<5, 1>>(call, flipped, stage,
                                                      stream);
    case 160:
      return Launch<FewChannelsTf32WgradConfig<5, 2>>(call, flipped, stage,
                                                      stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t FewChannelsTf32Wgrad(const ConvCall& call, Stage stage,
                                 cudaStream_t stream) {
  if (!BandsOfDy(call.g)) return Run(call, 0, stage, stream);
  const ConvGeometry g = DgradAsFprop(call.g);
  return Run({g, call.type, call.plan, call.rhs, call.lhs, call.result,
              call.workspace},
             static_cast<int>(g.C), stage, stream);
}

}  // namespace jax_convbatch::hopper
