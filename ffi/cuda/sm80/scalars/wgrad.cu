// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cuda/common/launch.cuh"
#include "cuda/sm80/direct/add_partials.cuh"
#include "cuda/sm80/scalars/wgrad.cuh"

namespace jax_convbatch::direct {
namespace {

using Divmod = FastDivmod<uint32_t>;

int number(int64_t n) { return static_cast<int>(n); }

ScalarRows RowsOf(const ScalarRowShape& shape, int64_t width, int64_t channels,
                  int64_t chunk, int64_t pixels) {
  ScalarRows rows{};
  rows.chunk = Divmod(chunk);
  rows.width = number(width), rows.channels = number(channels);
  rows.pixels = number(pixels);
  rows.pixel = shape.pixel, rows.vector = shape.vector;
  rows.row = number(shape.row);
  return rows;
}

using Kernel = void (*)(ScalarWgradProblem);

template <int kWindow>
Kernel KernelOf(int outputs) {
  if constexpr (kWindow < 5) {
    if (outputs == 8) return &ScalarWgradKernel<kWindow, 8>;
  }
  constexpr Kernel kKernels[] = {
      &ScalarWgradKernel<kWindow, 1>, &ScalarWgradKernel<kWindow, 2>,
      &ScalarWgradKernel<kWindow, 3>, &ScalarWgradKernel<kWindow, 4>,
      &ScalarWgradKernel<kWindow, 5>, &ScalarWgradKernel<kWindow, 6>,
      &ScalarWgradKernel<kWindow, 7>};
  return kKernels[outputs - 1];
}

}  // namespace

cudaError_t RunScalarWgrad(const Call& call, Stage stage, cudaStream_t stream) {
  const ScalarWgradShape shape(call.g, call.plan.scalars);
  const ConvGeometry& g = shape.g;
  ScalarWgradProblem p{ScalarWindowOf(g)};
  p.in = static_cast<const float*>(call.lhs);
  p.dy = static_cast<const float*>(call.rhs);
  p.partials = static_cast<float*>(call.workspace);
  p.out_height = number(g.P), p.out_width = number(g.Q);
  p.out_channels = number(g.K);
  p.of_x = RowsOf(shape.x, g.W, g.C, shape.chunk, shape.x_cols());
  p.of_dy = RowsOf(shape.dy, g.Q, g.K, g.K, shape.tile_cols);
  p.across = Divmod(shape.across), p.down = Divmod(shape.down);
  p.O = Divmod(g.O), p.cols = Divmod(shape.tile_cols);
  p.tile_rows = number(shape.tile_rows), p.x_rows = number(shape.x_rows());
  p.x_floats = number(shape.x_floats());
  p.stage_floats = number(shape.stage_floats());
  p.tiles = number(shape.tiles()), p.workers = number(shape.workers);
  p.filter_rows = number(shape.filter_rows);
  p.row_groups = number(shape.row_groups());
  p.chunks = number(shape.chunks());
  p.part_groups = number(shape.part_groups);
  p.block_parts = shape.block_parts, p.parts_k = number(shape.parts_k);
  p.slices = shape.slices, p.run = number(shape.run);
  // The warps' sums take the stages' place.
  const int64_t sums = int64_t{kScalarWgradWarps} * shape.window *
                       shape.columns * shape.outputs * 4;
  const Kernel kernel = shape.window == 1   ? KernelOf<1>(shape.outputs)
                        : shape.window == 3 ? KernelOf<3>(shape.outputs)
                                            : KernelOf<5>(shape.outputs);
  const cudaError_t error = LaunchOrPrepare(
      kernel, p, call.plan.blocks(), shape.threads(),
      number(std::max(shape.shared_bytes(), sums)), stage, stream);
  if (error != cudaSuccess) return error;
  return AddPartialsOrPrepare<float>(call.plan.workers, g.w_size(),
                                     call.workspace, call.result, stage,
                                     stream);
}

}  // namespace jax_convbatch::direct
