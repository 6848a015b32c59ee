// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/kernels/conv/conv_launch.cuh"
#include "cuda/sm90/kernels/conv/conv_tf32.h"
#include "cuda/sm90/kernels/conv/group_conv.h"
#include "cuda/sm90/kernels/row_band/row_band_launch.cuh"
#include "cuda/sm90/kernels/single_wave/single_wave.h"
#include "cuda/sm90/kernels/single_wave/single_wave_plan.h"
#include "cuda/sm90/problem/dense_output.h"

namespace jax_convbatch::hopper {
namespace {

template <typename T, int kSubs>
cudaError_t Run(const ConvCall& call, Stage stage, cudaStream_t stream) {
  const int box_c = call.plan.tile_n;  // all rows of a tile's filter
  return RunConv<T, Contiguous::kReduction, kSubs>(
      call, OutputOf(call.g), InputOf(call.g), DgradSubproblems(call.g), box_c,
      stage, stream);
}

// A dense output is faster to write.
template <typename T>
cudaError_t Run(const ConvCall& call, Stage stage, cudaStream_t stream) {
  const auto subs = DgradSubproblems(call.g);
  if (IsRowBand(call.plan)) {
    return subs.size() != 1 ? cudaErrorInvalidValue
                            : RunRowBand<T, Contiguous::kReduction>(
                                  call, OutputOf(call.g), InputOf(call.g),
                                  subs[0], stage, stream);
  }
  return IsDense(subs) ? Run<T, 1>(call, stage, stream)
                       : Run<T, kMaxSubproblems>(call, stage, stream);
}

}  // namespace

cudaError_t Dgrad(const ConvCall& call, Stage stage, cudaStream_t stream) {
  if (call.g.groups > 1) return GroupDgrad(call, stage, stream);
  if (IsSingleWave(call.type, call.plan)) {
    return SingleWaveDgrad(call, stage, stream);
  }
  switch (call.type) {
    case Type::kBf16:
      return Run<__nv_bfloat16>(call, stage, stream);
    case Type::kF16:
      return Run<__half>(call, stage, stream);
    default:
      return DgradTf32(call, stage, stream);
  }
}

}  // namespace jax_convbatch::hopper
