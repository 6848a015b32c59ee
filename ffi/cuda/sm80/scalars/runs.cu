// SPDX-License-Identifier: Apache-2.0
#include "cuda/common/launch.cuh"
#include "cuda/sm80/scalars/runs.cuh"

namespace jax_convbatch::direct {
namespace {

using Divmod = FastDivmod<uint32_t>;
using Kernel = void (*)(ScalarRunProblem);

int number(int64_t n) { return static_cast<int>(n); }

template <int kTaps>
Kernel KernelOf(int64_t outputs) {
  constexpr Kernel kKernels[kScalarRunMostOutputs] = {
      &ScalarRunKernel<kTaps, 1>, &ScalarRunKernel<kTaps, 2>,
      &ScalarRunKernel<kTaps, 3>, &ScalarRunKernel<kTaps, 4>};
  return kKernels[outputs - 1];
}

}  // namespace

cudaError_t RunScalarRuns(Op op, const Call& call, Stage stage,
                          cudaStream_t stream) {
  const bool dgrad = op == Op::kDgrad;
  const ScalarRunShape shape(call.g, dgrad, call.plan.scalars);
  const ConvGeometry& g = shape.g;
  ScalarRunProblem p{ScalarWindowOf(g), ScalarFilterOf(call.rhs, g, dgrad)};
  p.in = static_cast<const float*>(call.lhs);
  p.out = static_cast<float*>(call.result);
  p.out_height = number(g.P), p.out_width = number(g.Q);
  p.across = Divmod(shape.across), p.down = Divmod(shape.down);
  p.O = Divmod(g.O), p.runs = Divmod(shape.runs);
  p.tile_rows = number(shape.tile_rows), p.x_rows = number(shape.x_rows());
  p.row = number(shape.row()), p.plane = number(shape.plane());
  p.x_floats = number(shape.x_floats());
  p.stage_floats = number(shape.x_floats() + shape.w_floats());
  p.pixel_warps = shape.pixel_warps;
  const Kernel kernel = g.S == 3   ? KernelOf<3>(g.K)
                        : g.S == 5 ? KernelOf<5>(g.K)
                                   : KernelOf<7>(g.K);
  return LaunchOrPrepare(kernel, p, call.plan.blocks(), shape.threads(),
                         number(shape.shared_bytes()), stage, stream);
}

}  // namespace jax_convbatch::direct
