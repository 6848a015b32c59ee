// SPDX-License-Identifier: Apache-2.0
// Launches plans of single_wave_tf32_plan.h.
#pragma once

#include <vector>

#include "cuda/sm90/kernels/single_wave/single_wave_launch.cuh"
#include "cuda/sm90/kernels/single_wave/single_wave_tf32_kernel.cuh"
#include "cuda/sm90/kernels/single_wave/single_wave_tf32_plan.h"

namespace jax_convbatch::hopper {

template <typename Config, int kSubs, typename EpilogueT>
cudaError_t LaunchSingleWaveTf32(const ConvCall& call, const Activations& in,
                                 const Activations& out,
                                 const std::vector<SubproblemAxes>& subs,
                                 Stage stage, cudaStream_t stream,
                                 const EpilogueT& epilogue) {
  constexpr bool kRows = Config::kWeights == Contiguous::kRows;
  ConvProblem<kSubs> problem{};
  const ConvBoxes boxes = {Config::kBoxPixels, Config::kStorePixels,
                           kRows ? kTf32Block : Config::kN,
                           kTf32Output<Config, kSubs>};
  if (!MakeConvProblem(call, in, out, subs, boxes, &problem)) {
    return cudaErrorInvalidValue;
  }
  if constexpr (Config::kOneBox) {
    const int64_t c = call.g.C, k = call.g.K;
    if (!EncodeStrided(&problem.weights, call.type, call.rhs,
                       {kTf32Block, c, k / kTf32Block, call.g.taps()},
                       {k, kTf32Block, c * k},
                       {kTf32Block, kTf32Block, Config::kN / kTf32Block, 1})) {
      return cudaErrorInvalidValue;
    }
  }
  return LaunchSingleWave<Config>(
      &SingleWaveTf32Kernel<Config, kSubs, EpilogueT>, problem, epilogue, stage,
      stream);
}

template <Contiguous kWeights, int kSubs, typename EpilogueT = NoEpilogue>
cudaError_t RunSingleWaveTf32(const ConvCall& call, const Activations& in,
                              const Activations& out,
                              const std::vector<SubproblemAxes>& subs,
                              Stage stage, cudaStream_t stream,
                              const EpilogueT& epilogue = {}) {
  if (!TakesSingleWave(subs) || (kSubs > 1 && Is3d(call.g))) {
    return cudaErrorInvalidValue;
  }
  return WithSingleWaveTile<kSingleWaveTf32Tiles>(
      call.plan, [&](auto pixels, auto groups) {
        constexpr int kM = decltype(pixels)::value;
        constexpr int kGroups = decltype(groups)::value;
        if constexpr (kSubs == 1 && kGroups == 1) {
          if (TapsShareInSingleWave(subs[0].w, 64)) {
            using Config = SingleWaveTf32Config<kM, kGroups, kWeights, 3>;
            return LaunchSingleWaveTf32<Config, kSubs>(
                call, in, out, {WithReach(subs[0])}, stage, stream, epilogue);
          }
        }
        if constexpr (kWeights == Contiguous::kRows && kGroups == 1 &&
                      kM <= 112 && !EpilogueT::kPresent) {
          if (call.g.K % kTf32Block == 0) {
            using Config = SingleWaveTf32Config<kM, kGroups, kWeights, 1, true>;
            return LaunchSingleWaveTf32<Config, kSubs>(call, in, out, subs,
                                                       stage, stream, epilogue);
          }
        }
        using Config = SingleWaveTf32Config<kM, kGroups, kWeights>;
        return LaunchSingleWaveTf32<Config, kSubs>(call, in, out, subs, stage,
                                                   stream, epilogue);
      });
}

}  // namespace jax_convbatch::hopper
