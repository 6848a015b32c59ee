// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/sm90/kernels/conv/conv_launch.cuh"
#include "cuda/sm90/kernels/row_band/row_band_launch.cuh"
#include "cuda/sm90/problem/dense_output.h"

namespace jax_convbatch::hopper {

// A dense output is faster to write.
template <typename T>
cudaError_t RunDgrad(const ConvCall& call, Stage stage, cudaStream_t stream) {
  const auto subs = DgradSubproblems(call.g);
  const Activations in = OutputOf(call.g), out = InputOf(call.g);
  if (call.plan.kernel == TileKernel::kRowBand) {
    return subs.size() != 1 ? cudaErrorInvalidValue
                            : RunRowBand<T, Contiguous::kReduction>(
                                  call, in, out, subs[0], stage, stream);
  }
  const int box_c = call.plan.tile_n;  // all rows of a tile's filter
  return IsDense(subs) ? RunConv<T, Contiguous::kReduction, 1>(
                             call, in, out, subs, box_c, stage, stream)
                       : RunConv<T, Contiguous::kReduction, kMaxSubproblems>(
                             call, in, out, subs, box_c, stage, stream);
}

}  // namespace jax_convbatch::hopper
