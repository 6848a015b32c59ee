// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cuda/sm80/direct/add_partials.cuh"
#include "cuda/sm80/direct/grouped.h"
#include "cuda/sm80/direct/grouped_wgrad.cuh"
#include "cuda/sm80/direct/launch.cuh"

namespace jax_convbatch::direct {
namespace {

template <typename T>
cudaError_t Launch(const Call& call, Stage stage, cudaStream_t stream) {
  const ConvGeometry& g = call.g;
  const Plan& plan = call.plan;
  Walks walks;
  GroupedWgradProblem p{};
  if (!FpropWalks(g, &walks) ||
      !MakeWgradRoles(g.C, g.K, g.groups, g.taps(), kGroupedThreads / 32,
                      &p.roles)) {
    return cudaErrorInvalidValue;
  }
  p.x = call.lhs;
  p.dy = call.rhs;
  p.partials = static_cast<float*>(call.workspace);
  p.h = walks.h;
  p.w = walks.w;
  const int cols = p.w.extent(plan.tile_w);
  const int in_bytes = GroupedPixelBytes(p.roles.tile_in());
  const int out_bytes = GroupedPixelBytes(p.roles.tile_out());
  p.in =
      MakeStaging<T>(p.h.in_size, p.w.in_size, static_cast<int>(g.C),
                     p.roles.tile_in(), p.h.extent(plan.tile_h), cols, in_bytes,
                     FlatRowBytes(cols, in_bytes, walks, plan.tile_w));
  p.out = MakeStaging<T>(p.h.out_size, p.w.out_size, static_cast<int>(g.K),
                         p.roles.tile_out(), plan.tile_h, plan.tile_w,
                         out_bytes, plan.tile_w * out_bytes);
  p.grid = MakeGrid(walks, plan, g.N);
  p.channel_tiles = plan.channel_tiles;
  p.workers = plan.workers;
  p.tile_w = FastDivmod<uint32_t>(plan.tile_w);
  p.in_group = FastDivmod<uint32_t>(p.roles.in_group);
  p.out_group = FastDivmod<uint32_t>(p.roles.out_group);
  p.pixel_sets =
      (plan.tile_h * plan.tile_w + kWgradWarpOutputs - 1) / kWgradWarpOutputs;
  const int tiles = kGroupedWgradStages * (p.in.bytes() + p.out.bytes());
  const int sums = kGroupedThreads / 32 * kRoleTaps * 256 * 4;
  const cudaError_t error =
      LaunchOrPrepare(&GroupedWgradKernel<T>, p, plan.blocks() * p.roles.blocks,
                      kGroupedThreads, std::max(tiles, sums), stage, stream);
  if (error != cudaSuccess) return error;
  return AddPartialsOrPrepare<T>(plan.workers, g.w_size(), call.workspace,
                                 call.result, stage, stream);
}

}  // namespace

cudaError_t RunGroupedWgrad(const Call& call, Stage stage,
                            cudaStream_t stream) {
  return call.type == Type::kBf16 ? Launch<__nv_bfloat16>(call, stage, stream)
                                  : Launch<__half>(call, stage, stream);
}

}  // namespace jax_convbatch::direct
