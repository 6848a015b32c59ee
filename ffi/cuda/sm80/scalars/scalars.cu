// SPDX-License-Identifier: Apache-2.0
#include "cuda/common/launch.cuh"
#include "cuda/sm80/scalars/scalars.cuh"
#include "cuda/sm80/scalars/wgrad.h"

namespace jax_convbatch::direct {

namespace {

using Divmod = FastDivmod<uint32_t>;

int number(int64_t n) { return static_cast<int>(n); }

// Of a shape, what its kernels read, and how.
ScalarProblem ProblemOf(const ScalarShape& shape) {
  const ConvGeometry& g = shape.g;
  ScalarProblem p{ScalarWindowOf(g)};
  p.out_rows = number(shape.rows()), p.out_cols = number(g.Q);
  p.out_channels = number(g.K);
  p.P = Divmod(g.P), p.O = Divmod(g.O);
  p.across = Divmod(shape.across), p.cols = Divmod(shape.tile_cols);
  p.chunk = Divmod(shape.chunk);
  p.tile_rows = number(shape.tile_rows), p.reach = number(shape.reach());
  p.pitch = shape.pitch;
  p.x_floats = number(shape.x_floats());
  return p;
}

}  // namespace

cudaError_t RunScalars(Op op, const Call& call, Stage stage,
                       cudaStream_t stream) {
  if (op == Op::kWgrad) return RunScalarWgrad(call, stage, stream);
  if (call.plan.runs) return RunScalarRuns(op, call, stage, stream);
  const bool dgrad = op == Op::kDgrad;
  const ScalarShape shape(call.g, dgrad, call.plan.scalars);
  const ConvGeometry& g = shape.g;
  ScalarProblem p = ProblemOf(shape);
  static_cast<ScalarFilter&>(p) = ScalarFilterOf(call.rhs, g, dgrad);
  p.in = static_cast<const float*>(call.lhs);
  p.out = static_cast<float*>(call.result);
  p.outputs = Divmod(shape.outputs_padded());
  p.channel_warps = Divmod(shape.k_warps);
  p.w_floats = number(shape.w_floats());
  const auto kernel = shape.outputs == 1   ? &ScalarKernel<1>
                      : shape.outputs == 2 ? &ScalarKernel<2>
                      : shape.outputs == 4 ? &ScalarKernel<4>
                                           : &ScalarKernel<8>;
  return LaunchOrPrepare(kernel, p, call.plan.blocks(), shape.threads(),
                         number(shape.shared_bytes()), stage, stream);
}

}  // namespace jax_convbatch::direct
