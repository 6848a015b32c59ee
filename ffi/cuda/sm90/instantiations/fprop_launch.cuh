// SPDX-License-Identifier: Apache-2.0
// Launches fprop of 16-bit types with what follows it.
#pragma once

#include <array>

#include "cuda/sm90/kernels/conv/conv_launch.cuh"
#include "cuda/sm90/kernels/row_band/row_band_launch.cuh"

namespace jax_convbatch::hopper {

template <typename T, typename EpilogueT = NoEpilogue>
cudaError_t RunFprop(const ConvCall& call, Stage stage, cudaStream_t stream,
                     const EpilogueT& epilogue = {}) {
  constexpr int kBoxC = 64;  // a stage's channels; the kernel takes K in turns
  const std::array<SubproblemAxes, 1> subs = {FpropSubproblem(call.g)};
  const Activations in = InputOf(call.g), out = OutputOf(call.g);
  if (call.plan.kernel == TileKernel::kRowBand) {
    return RunRowBand<T, Contiguous::kRows>(call, in, out, subs[0], stage,
                                            stream, epilogue);
  }
  return RunConv<T, Contiguous::kRows, 1>(call, in, out, subs, kBoxC, stage,
                                          stream, epilogue);
}

}  // namespace jax_convbatch::hopper
