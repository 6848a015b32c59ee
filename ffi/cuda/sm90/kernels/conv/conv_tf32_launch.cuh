// SPDX-License-Identifier: Apache-2.0
// Launches the kernel of a TF32 plan.
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_CONV_CONV_TF32_LAUNCH_CUH_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_CONV_CONV_TF32_LAUNCH_CUH_

#include <algorithm>
#include <array>
#include <type_traits>

#include "cuda/sm90/arch/wgmma_tf32_fprop.cuh"
#include "cuda/sm90/kernels/conv/conv_launch.cuh"
#include "cuda/sm90/kernels/conv/conv_tf32_kernel.cuh"

namespace jax_convbatch::hopper {

template <typename Config, int kSubs, typename Subproblems, typename EpilogueT>
cudaError_t LaunchConvTf32(const ConvCall& call, const Activations& in,
                           const Activations& out, const Subproblems& subs,
                           int box_c, Stage stage, cudaStream_t stream,
                           const EpilogueT& epilogue) {
  ConvProblem<kSubs> problem{};
  const ConvBoxes boxes = {Config::kBoxPixels, Config::kStorePixels, box_c,
                           kTf32Output<Config, kSubs>};
  if (!MakeConvProblem(call, in, out, subs, boxes, &problem)) {
    return cudaErrorInvalidValue;
  }
  const auto kernel = &ConvTf32Kernel<Config, kSubs, EpilogueT>;
  const cudaError_t raised = RaiseSharedMemory(kernel, Config::kSharedBytes);
  if (raised != cudaSuccess || stage == Stage::kPrepare) return raised;
  kernel<<<std::min(problem.tiles, call.plan.blocks), kThreads,
           Config::kSharedBytes, stream>>>(problem, epilogue);
  return cudaGetLastError();
}

// The filter is copied in boxes of box_c input channels.
template <Contiguous kWeights, int kSubs, int kWidth = kOneGroup,
          typename Subproblems, typename EpilogueT = NoEpilogue>
cudaError_t RunConvTf32(const ConvCall& call, const Activations& in,
                        const Activations& out, const Subproblems& subs,
                        int box_c, Stage stage, cudaStream_t stream,
                        const EpilogueT& epilogue = {}) {
  constexpr Schedule kPingPong = Schedule::kPingPong,
                     kCooperative = Schedule::kCooperative;
  auto launch = [&](auto config, const auto& walked) {
    return LaunchConvTf32<decltype(config), kSubs>(call, in, out, walked, box_c,
                                                   stage, stream, epilogue);
  };
  const int m = call.plan.tile_m, n = call.plan.tile_n;
  // The same bits. Residual and z lie in memory without the columns that are
  // walked but not stored.
  bool walks = true;
  if constexpr (EpilogueT::kPresent) {
    walks = epilogue.residual == nullptr && epilogue.z == nullptr;
  }
  if constexpr (kSubs == 1) {
    if (walks && m == 256 && n == 64 && TapsShare(subs[0].w)) {
      return launch(Tf32Config<256, 64, 3, kWeights, 3, kPingPong, kWidth>(),
                    std::array{WithReach(subs[0])});
    }
  }
  // Only dgrad has it: with filters from registers, multiplications of 128
  // columns are slower than those of 256.
  if constexpr (kWeights == Contiguous::kReduction) {
    if (m == 128 && n == 128) {
      // The short sums of a stride's classes wait for their stores.
      using Strided =
          Tf32Config<128, 128, 5, kWeights, 1, kPingPong, kWidth, 2>;
      using Dense = Tf32Config<128, 128, 6, kWeights, 1, kPingPong, kWidth>;
      return launch(std::conditional_t<(kSubs > 1), Strided, Dense>(), subs);
    }
  }
  if (m == 256 && n == 64) {
    return launch(Tf32Config<256, 64, 5, kWeights, 1, kPingPong, kWidth>(),
                  subs);
  }
  // By 128 channels together. Only fprop has these: dgrad's 128 x 128 store
  // while the other multiplies.
  if constexpr (kWeights == Contiguous::kRows) {
    if (m == 256 && n == 128) {
      return launch(
          Tf32Config<256, 128, 4, kWeights, 1, kCooperative, kWidth>(), subs);
    }
    if (m == 192 && n == 128) {
      return launch(
          Tf32Config<192, 128, 5, kWeights, 1, kCooperative, kWidth>(), subs);
    }
  }
  // What leaves less of the last wave empty; HasTf32Epilogue() knows of them.
  if constexpr (kSubs == 1 && kWidth == kOneGroup && !EpilogueT::kPresent) {
    if (m == 224 && n == 64) {
      return launch(Tf32Config<224, 64, 5, kWeights, 1, kPingPong>(), subs);
    }
    if (m == 192 && n == 64) {
      return launch(Tf32Config<192, 64, 6, kWeights, 1, kPingPong>(), subs);
    }
    if (m == 160 && n == 64) {
      return launch(Tf32Config<160, 64, 7, kWeights, 1, kPingPong>(), subs);
    }
    if constexpr (kWeights == Contiguous::kReduction) {
      if (m == 192 && n == 128) {
        return launch(Tf32Config<192, 128, 5, kWeights, 1, kPingPong>(), subs);
      }
    } else if (m == 224 && n == 128) {
      return launch(Tf32Config<224, 128, 4, kWeights, 1, kCooperative>(), subs);
    }
    if (m == 160 && n == 128) {
      return launch(Tf32Config<160, 128, 5, kWeights, 1, kCooperative>(), subs);
    }
  }
  if (m == 64 && n == 64) {
    return launch(Tf32Config<64, 64, 8, kWeights, 1, kPingPong, kWidth>(),
                  subs);
  }
  if (m == 32 && n == 64) {
    return launch(Tf32Config<32, 64, 8, kWeights, 1, kPingPong, kWidth>(),
                  subs);
  }
  return cudaErrorInvalidValue;
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_CONV_CONV_TF32_LAUNCH_CUH_
