// SPDX-License-Identifier: Apache-2.0
// Launches the kernel of a TF32 plan.
#pragma once

#include <algorithm>
#include <array>
#include <type_traits>

#include "cuda/sm90/arch/wgmma_tf32_fprop.cuh"
#include "cuda/sm90/epilogue/split_k_sum.h"
#include "cuda/sm90/kernels/conv/conv_launch.cuh"
#include "cuda/sm90/kernels/conv/conv_tf32_kernel.cuh"

namespace jax_convbatch::hopper {

template <typename Config, int kSubs, typename Subproblems, typename EpilogueT>
cudaError_t LaunchConvTf32(const ConvCall& call, const Activations& in,
                           const Activations& out, const Subproblems& subs,
                           int box_c, Stage stage, cudaStream_t stream,
                           const EpilogueT& epilogue) {
  constexpr bool kPartial = Config::kSum == Sum::kPartial;
  Tf32ProblemOf<Config, kSubs> problem{};
  const ConvBoxes boxes = {Config::kBoxPixels, Config::kStorePixels, box_c,
                           kTf32OutputOf<Config, kSubs>};
  if (!MakeConvProblem(call, in, out, subs, boxes, &problem)) {
    return cudaErrorInvalidValue;
  }
  [[maybe_unused]] const int k_slices = call.plan.k_slices;
  if constexpr (Config::kSum != Sum::kWhole) problem.count = k_slices;
  if constexpr (kPartial) {
    problem.k_slices = MakeKSlices(problem.sub[0], k_slices);
    problem.slice_tiles = problem.tiles;
    problem.tiles *= k_slices;
  }
  const auto kernel = &ConvTf32Kernel<Config, kSubs, EpilogueT>;
  cudaError_t error = RaiseSharedMemory(kernel, Config::kSharedBytes);
  if (error == cudaSuccess && stage == Stage::kLaunch) {
    int blocks = std::min(problem.tiles, call.plan.blocks);
    if (Config::kResident > 0) blocks -= blocks % int(problem.n_tiles);
    kernel<<<blocks, kThreads, Config::kSharedBytes, stream>>>(problem,
                                                               epilogue);
    error = cudaGetLastError();
  }
  if constexpr (kPartial) {
    if (error != cudaSuccess) return error;
    return SplitKSum(call.type, k_slices,
                     int64_t{problem.sub[0].pixels} * problem.channels,
                     call.workspace, call.result, stage, stream);
  }
  return error;
}

// Of sums in K slices; kAddedKSlicePixels says which tiles leave partial sums.
template <Contiguous kWeights, typename Launch>
cudaError_t RunTf32KSlices(const Plan& plan, Launch launch) {
  constexpr Schedule kCooperative = Schedule::kCooperative;
  constexpr int kAdded = kAddedKSlicePixels;
  const int m = plan.tile_m, n = plan.tile_n;
  if (m == kAdded && n == 128) {
    return launch(
        InKSlices<Tf32Config<kAdded, 128, 5, kWeights, 1, kCooperative>>());
  }
  if (n != 64) return cudaErrorInvalidValue;
  switch (m) {
    case kAdded:
      return launch(InKSlices<Tf32Config<kAdded, 64, 7, kWeights>>());
    case 64:
      return launch(Tf32Partial<Tf32Config<64, 64, 8, kWeights>>());
    case 128:
      return launch(Tf32Partial<Tf32Config<128, 64, 8, kWeights>>());
    case 256:
      return launch(Tf32Partial<Tf32Config<256, 64, 5, kWeights>>());
    default:
      return cudaErrorInvalidValue;
  }
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
  if (call.plan.k_slices > 1) {
    if constexpr (kSubs == 1 && kWidth == kOneGroup && !EpilogueT::kPresent) {
      return RunTf32KSlices<kWeights>(
          call.plan, [&](auto config) { return launch(config, subs); });
    }
    return cudaErrorInvalidValue;
  }
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
  if constexpr (kSubs == 1 && kWidth == kOneGroup) {
    if (m == kResidentTf32Pixels && call.g.taps() == 1 &&
        HasResidentTf32Tiles(in.c, out.c, n)) {
      if (n == 64) return launch(ResidentTf32Config<64, kWeights>(), subs);
      if constexpr (!EpilogueT::kPresent) {
        return launch(ResidentTf32Config<128, kWeights>(), subs);
      }
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
