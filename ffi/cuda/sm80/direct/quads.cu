// SPDX-License-Identifier: Apache-2.0
#include "cuda/common/launch.cuh"
#include "cuda/sm80/direct/add_partials.cuh"
#include "cuda/sm80/direct/quads.cuh"

namespace jax_convbatch::direct {
namespace {

using Divmod = FastDivmod<uint32_t>;

cudaError_t RunOutputs(Op op, const Call& call, Stage stage,
                       cudaStream_t stream) {
  const ConvGeometry& g = call.g;
  const bool dgrad = op == Op::kDgrad;
  Walks walks;
  if (!(dgrad ? DgradWalks(g, &walks) : FpropWalks(g, &walks))) {
    return cudaErrorInvalidValue;
  }
  QuadProblem p{};
  p.source = static_cast<const float*>(call.lhs);
  p.filter = static_cast<const float*>(call.rhs);
  p.result = static_cast<float*>(call.result);
  p.h = walks.h;
  p.w = walks.w;
  p.in_channels = static_cast<int>(dgrad ? g.K : g.C);
  p.out_channels = static_cast<int>(dgrad ? g.C : g.K);
  p.in_group = static_cast<int>(dgrad ? g.group_K() : g.group_C());
  p.out_group = static_cast<int>(dgrad ? g.group_C() : g.group_K());
  p.filter_channels = static_cast<int>(g.K);
  const int quads = p.out_channels / 4;
  const int strips =
      p.w.classes * ((p.w.class_size() + kQuadPixels - 1) / kQuadPixels);
  p.items = static_cast<uint32_t>(g.N * p.h.out_size * strips * quads);
  p.quads = Divmod(quads);
  p.strips = Divmod(strips);
  p.rows = Divmod(p.h.out_size);
  p.classes_h = Divmod(p.h.classes);
  p.classes_w = Divmod(p.w.classes);
  p.group = Divmod(p.out_group);
  return LaunchOrPrepare(dgrad ? &QuadKernel<true> : &QuadKernel<false>, p,
                         call.plan.blocks(), kQuadThreads, 0, stage, stream);
}

cudaError_t RunWgrad(const Call& call, Stage stage, cudaStream_t stream) {
  const ConvGeometry& g = call.g;
  Walks walks;
  if (!FpropWalks(g, &walks)) return cudaErrorInvalidValue;
  constexpr int kLanes = kQuadThreads / kQuadTeams;
  QuadWgradProblem p{};
  p.x = static_cast<const float*>(call.lhs);
  p.dy = static_cast<const float*>(call.rhs);
  p.partials = static_cast<float*>(call.workspace);
  p.h = walks.h;
  p.w = walks.w;
  p.channels_x = static_cast<int>(g.C);
  p.channels_y = static_cast<int>(g.K);
  p.in_group = static_cast<int>(g.group_C());
  p.out_group = static_cast<int>(g.group_K());
  p.rows = static_cast<int>(g.N * g.P);
  const int share = kQuadTeams * call.plan.workers;
  p.rows_each = kQuadTeams * ((p.rows + share - 1) / share);
  p.pairs = p.in_group / 4 * (p.channels_y / 4);
  p.pair_tiles = Divmod((p.pairs + kLanes - 1) / kLanes);
  p.chunks = Divmod((g.S + kQuadTaps - 1) / kQuadTaps);
  p.filter_rows = Divmod(g.R);
  p.quads_y = Divmod(p.channels_y / 4);
  p.out_rows = Divmod(g.P);
  p.group = Divmod(p.out_group);
  const cudaError_t error = LaunchOrPrepare(
      &QuadWgradKernel, p, call.plan.blocks(), kQuadThreads, 0, stage, stream);
  if (error != cudaSuccess) return error;
  return AddPartialsOrPrepare<float>(call.plan.workers, g.w_size(),
                                     call.workspace, call.result, stage,
                                     stream);
}

}  // namespace

cudaError_t RunQuads(Op op, const Call& call, Stage stage,
                     cudaStream_t stream) {
  return op == Op::kWgrad ? RunWgrad(call, stage, stream)
                          : RunOutputs(op, call, stage, stream);
}

}  // namespace jax_convbatch::direct
