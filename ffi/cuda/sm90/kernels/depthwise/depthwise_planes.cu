// SPDX-License-Identifier: Apache-2.0
#include "cuda/common/launch.cuh"
#include "cuda/sm80/direct/depthwise_kind.h"
#include "cuda/sm90/kernels/depthwise/depthwise_planes.cuh"
#include "cuda/sm90/kernels/depthwise/depthwise_planes.h"
#include "cuda/sm90/kernels/depthwise/depthwise_planes_wgrad.cuh"

namespace jax_convbatch::direct {
namespace {

template <typename T, int kTaps>
cudaError_t LaunchTaps(const PlanesProblem& p, int blocks, int copies,
                       Stage stage, cudaStream_t stream) {
  return LaunchOrPrepare(copies == 1 ? &DepthwisePlanesKernel<T, kTaps, 1>
                                     : &DepthwisePlanesKernel<T, kTaps, 2>,
                         p, blocks, Planes::kThreads,
                         PlanesSharedBytes(kTaps, copies), stage, stream);
}

template <typename T>
cudaError_t Launch(const PlanesProblem& p, int taps, int blocks, int copies,
                   Stage stage, cudaStream_t stream) {
  return (taps == 5 ? LaunchTaps<T, 5> : LaunchTaps<T, 7>)(p, blocks, copies,
                                                           stage, stream);
}

template <typename T, int kTaps>
cudaError_t LaunchWgradTaps(const PlanesWgradProblem& p, int copies,
                            Stage stage, cudaStream_t stream) {
  const cudaError_t error =
      LaunchOrPrepare(copies == 1 ? &DepthwisePlanesWgradKernel<T, kTaps, 1>
                                  : &DepthwisePlanesWgradKernel<T, kTaps, 2>,
                      p, p.workers * p.channel_tiles, Planes::kThreads,
                      PlanesWgradSharedBytes(copies), stage, stream);
  if (error != cudaSuccess) return error;
  const int size = kTaps * kTaps * p.channels;
  return LaunchOrPrepare(&FinishPlanesWgrad<T, kTaps>, p,
                         (size + kColumns - 1) / kColumns,
                         AddThreads(p.workers), 0, stage, stream);
}

template <typename T>
cudaError_t LaunchWgrad(const PlanesWgradProblem& p, int taps, int copies,
                        Stage stage, cudaStream_t stream) {
  return (taps == 5 ? LaunchWgradTaps<T, 5>
                    : LaunchWgradTaps<T, 7>)(p, copies, stage, stream);
}

// What both problems have of the tiling.
template <typename Problem>
void SetTiling(const PlanesTiling& tiling, int height, const Call& call,
               Problem* p) {
  p->channels = static_cast<int>(call.g.C);
  p->channel_tiles = call.plan.channel_tiles;
  p->workers = call.plan.workers;
  p->runs = tiling.runs;
  p->rows = call.plan.tile_h;
  p->all_rows = tiling.groups * height;
  p->segments = tiling.segments;
  p->all_segments = static_cast<int>(call.g.N * tiling.across);
  p->height = FastDivmod<uint32_t>(height);
  p->across = FastDivmod<uint32_t>(tiling.across);
}

cudaError_t RunWgrad(const Call& call, const Walks& walks, Stage stage,
                     cudaStream_t stream) {
  const AxisWalk &h = walks.h, &w = walks.w;
  const PlanesTiling tiling = TilePlanes(walks, call.g.N);
  PlanesWgradProblem p{};
  SetTiling(tiling, h.out_size, call, &p);
  p.x = {call.lhs, h.in_size,         w.in_size,        h.origin,
         w.origin, tiling.input_runs, h.filter_size - 1};
  p.dy = {call.rhs, h.out_size, w.out_size, 0, 0, tiling.runs, 0};
  p.partials = static_cast<float*>(call.workspace);
  p.dw = call.result;
  p.batch = static_cast<int>(call.g.N);
  const auto launch = call.type == Type::kBf16 ? &LaunchWgrad<__nv_bfloat16>
                                               : &LaunchWgrad<__half>;
  return launch(p, h.filter_size, tiling.copies, stage, stream);
}

}  // namespace

cudaError_t RunDepthwisePlanes(Op op, const Call& call, Stage stage,
                               cudaStream_t stream) {
  const ConvGeometry& g = call.g;
  Walks walks;
  if (!(op == Op::kDgrad ? DgradWalks(g, &walks) : FpropWalks(g, &walks))) {
    return cudaErrorInvalidValue;
  }
  if (op == Op::kWgrad) return RunWgrad(call, walks, stage, stream);
  const AxisWalk &h = walks.h, &w = walks.w;
  const PlanesTiling tiling = TilePlanes(walks, g.N);
  PlanesProblem p{};
  SetTiling(tiling, h.out_size, call, &p);
  p.in = {call.lhs, h.in_size,         w.in_size,        h.origin,
          w.origin, tiling.input_runs, h.filter_size - 1};
  p.filter = call.rhs;
  p.result = call.result;
  p.out_h = h.out_size;
  p.out_w = w.out_size;
  p.first_tap = h.taps[0].first * w.filter_size + w.taps[0].first;
  p.row_taps = h.tap_step * w.filter_size;
  p.col_taps = w.tap_step;
  const auto launch =
      call.type == Type::kBf16 ? &Launch<__nv_bfloat16> : &Launch<__half>;
  return launch(p, h.filter_size, call.plan.blocks(), tiling.copies, stage,
                stream);
}

}  // namespace jax_convbatch::direct
