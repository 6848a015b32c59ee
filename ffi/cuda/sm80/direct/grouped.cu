// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cuda/sm80/direct/grouped.cuh"
#include "cuda/sm80/direct/grouped.h"
#include "cuda/sm80/direct/launch.cuh"

namespace jax_convbatch::direct {
namespace {

// Calls f(kernel).
template <typename T, typename F>
cudaError_t DispatchBlocks(const ChannelBlocks& channels, F&& f) {
  if (!channels.shared) return f(&GroupedKernel<T, 4, false, 8>);
  if (channels.depth % 16 != 0) {
    return channels.at_once == 3 ? f(&GroupedKernel<T, 3, true, 8>)
                                 : f(&GroupedKernel<T, 1, true, 8>);
  }
  switch (channels.at_once) {
    case 4:
      return f(&GroupedKernel<T, 4, true, 16>);
    case 2:
      return f(&GroupedKernel<T, 2, true, 16>);
    default:
      return f(&GroupedKernel<T, 1, true, 16>);
  }
}

template <typename T>
cudaError_t RunOutputs(Op op, const Call& call, Stage stage,
                       cudaStream_t stream) {
  const ConvGeometry& g = call.g;
  const Plan& plan = call.plan;
  const bool dgrad = op == Op::kDgrad;
  Walks walks;
  GroupedProblem p{};
  if (!(dgrad ? DgradWalks(g, &walks) : FpropWalks(g, &walks)) ||
      !MakeChannelBlocks(dgrad ? g.K : g.C, dgrad ? g.C : g.K, g.groups,
                         &p.channels)) {
    return cudaErrorInvalidValue;
  }
  p.source = call.lhs;
  p.filter = call.rhs;
  p.result = call.result;
  p.h = walks.h;
  p.w = walks.w;
  const int cols = p.w.extent(plan.tile_w);
  const int pixel_bytes = GroupedPixelBytes(p.channels.tile_in);
  p.in = MakeStaging<T>(p.h.in_size, p.w.in_size, p.channels.in,
                        p.channels.tile_in, p.h.extent(plan.tile_h), cols,
                        pixel_bytes,
                        FlatRowBytes(cols, pixel_bytes, walks, plan.tile_w));
  p.grid = MakeGrid(walks, plan, g.N);
  p.is_dgrad = dgrad;
  p.workers = plan.workers;
  p.outputs = plan.tile_h * plan.tile_w;
  const int sets = (p.outputs + kWarpOutputs - 1) / kWarpOutputs;
  p.tile_w = FastDivmod<uint32_t>(plan.tile_w);
  p.pixel_sets = FastDivmod<uint32_t>(sets);
  p.classes_w = FastDivmod<uint32_t>(p.w.classes);
  p.in_group = FastDivmod<uint32_t>(p.channels.in_group);
  p.out_group = FastDivmod<uint32_t>(p.channels.out_group);
  p.depth_blocks = FastDivmod<uint32_t>(p.channels.depth / 8);
  p.items = sets * p.h.classes * p.w.classes *
            (p.channels.blocks / p.channels.at_once);
  const int shared = kGroupedStages * p.in.bytes() +
                     GroupedFilterBytes(p.channels, static_cast<int>(g.taps()));
  return DispatchBlocks<T>(p.channels, [&](auto kernel) {
    return LaunchOrPrepare(kernel, p, plan.blocks(), kGroupedThreads, shared,
                           stage, stream);
  });
}

}  // namespace

cudaError_t RunGrouped(Op op, const Call& call, Stage stage,
                       cudaStream_t stream) {
  if (op == Op::kWgrad) return RunGroupedWgrad(call, stage, stream);
  if (call.type == Type::kBf16) {
    return RunOutputs<__nv_bfloat16>(op, call, stage, stream);
  }
  return RunOutputs<__half>(op, call, stage, stream);
}

}  // namespace jax_convbatch::direct
