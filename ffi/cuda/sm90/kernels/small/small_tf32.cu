// SPDX-License-Identifier: Apache-2.0
// Launches of small_tf32.cuh.
#include <algorithm>

#include "cuda/common/most_shared.h"
#include "cuda/sm90/arch/launch.cuh"
#include "cuda/sm90/kernels/small/small_shape.h"
#include "cuda/sm90/kernels/small/small_tf32.cuh"
#include "cuda/sm90/problem/given_epilogue.h"

namespace jax_convbatch::hopper {
namespace {

template <typename Config>
cudaError_t Launch(const ConvCall& call, const SmallShape& shape, Stage stage,
                   cudaStream_t stream) {
  const SmallTiles tiles = {Config::kRows, Config::kCols};
  const int bytes = static_cast<int>(shape.shared_bytes(tiles));
  const auto kernel = &SmallKernel<Config>;
  const cudaError_t raised = RaiseSharedMemory(kernel, kMostShared);
  if (raised != cudaSuccess || stage == Stage::kPrepare) return raised;
  SmallProblem p{};
  p.in = static_cast<const float*>(call.lhs);
  p.w = static_cast<const float*>(call.rhs);
  p.out = static_cast<float*>(call.result);
  p.in_h = static_cast<int>(shape.in_h);
  p.in_w = static_cast<int>(shape.in_w);
  p.out_h = static_cast<int>(shape.out_h);
  p.out_w = static_cast<int>(shape.out_w);
  p.pad_h = static_cast<int>(shape.pad_h);
  p.pad_w = static_cast<int>(shape.pad_w);
  p.dilation_h = static_cast<int>(shape.dilation_h);
  p.dilation_w = static_cast<int>(shape.dilation_w);
  p.taps_h = static_cast<int>(shape.taps_h);
  p.taps_w = static_cast<int>(shape.taps_w);
  p.tile_in_h = static_cast<int>(shape.rows(tiles));
  p.tile_in_w = static_cast<int>(shape.cols(tiles));
  p.divide_in_w = FastDivmod<uint32_t>(p.tile_in_w);
  p.across = FastDivmod<uint32_t>(shape.across(tiles));
  p.down = FastDivmod<uint32_t>(shape.down(tiles));
  p.tiles = static_cast<int>(shape.tiles(tiles));
  // As many as shared memory holds at once.
  constexpr int kMultiprocessor = 224 << 10;
  const int each =
      std::min(Config::kResident, kMultiprocessor / (bytes + 1024));
  const Epilogue epilogue = EpilogueOf(call);
  kernel<<<std::min(p.tiles, call.plan.blocks * each), kSmallThreads, bytes,
           stream>>>(p, epilogue);
  return cudaGetLastError();
}

template <int kIn, int kOut, int kTaps, bool kFlipped>
cudaError_t Run(const ConvCall& call, const SmallShape& shape, Stage stage,
                cudaStream_t stream) {
  switch (call.plan.tile_m) {
    case 32:
      if constexpr (kIn + kOut == 32) {
        return Launch<SmallConfig<kIn, kOut, 4, 8, kTaps, kFlipped>>(
            call, shape, stage, stream);
      }
      return cudaErrorInvalidValue;
    case 64:
      return Launch<SmallConfig<kIn, kOut, 8, 8, kTaps, kFlipped>>(
          call, shape, stage, stream);
    case 128:
      return Launch<SmallConfig<kIn, kOut, 8, 16, kTaps, kFlipped>>(
          call, shape, stage, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

template <bool kFlipped>
cudaError_t Run(const ConvCall& call, const SmallShape& shape, Stage stage,
                cudaStream_t stream) {
  switch (shape.in_c * 100 + shape.out_c) {
    case 1632:
      return Run<16, 32, 3, kFlipped>(call, shape, stage, stream);
    case 3216:
      return Run<32, 16, 3, kFlipped>(call, shape, stage, stream);
    case 3232:
      return Run<32, 32, 3, kFlipped>(call, shape, stage, stream);
    default:
      return shape.taps_h == 3 && shape.taps_w == 3
                 ? Run<16, 16, 3, kFlipped>(call, shape, stage, stream)
                 : Run<16, 16, 0, kFlipped>(call, shape, stage, stream);
  }
}

}  // namespace

cudaError_t SmallFprop(const ConvCall& call, Stage stage, cudaStream_t stream) {
  return Run<false>(call, FpropSmall(call.g), stage, stream);
}

cudaError_t SmallDgrad(const ConvCall& call, Stage stage, cudaStream_t stream) {
  return Run<true>(call, DgradSmall(call.g), stage, stream);
}

}  // namespace jax_convbatch::hopper
