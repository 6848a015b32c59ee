// SPDX-License-Identifier: Apache-2.0
// Launches of few_channels_wgrad.cuh.
#include "cuda/common/most_shared.h"
#include "cuda/sm90/epilogue/multiply_then_add.cuh"
#include "cuda/sm90/kernels/few_channels/few_channels_launch.cuh"
#include "cuda/sm90/kernels/few_channels/few_channels_wgrad.cuh"
#include "cuda/sm90/kernels/few_channels/few_channels_wgrad_short.cuh"

namespace jax_convbatch::hopper {
namespace {

template <typename Config>
cudaError_t LaunchWgrad(const ConvCall& call, const FewChannelsProblem& problem,
                        Stage stage, cudaStream_t stream) {
  const bool is_short =
      IsShortFewChannels(call.g, call.plan.tile_m, call.plan.blocks);
  auto kernel = &FewChannelsWgradKernel<Config>;
  if (is_short) {
    // Elements of images begin in a row band at its first, or after.
    const bool copies = problem.vector == 8 && problem.layout.origin <= 0 &&
                        problem.copied_row > 0;
    const bool walks = call.g.Q % 16 == 0;
    kernel = copies
                 ? (walks ? &FewChannelsWgradShortKernel<Config, true, true>
                          : &FewChannelsWgradShortKernel<Config, false, true>)
                 : (walks ? &FewChannelsWgradShortKernel<Config, true, false>
                          : &FewChannelsWgradShortKernel<Config, false, false>);
  }
  const int threads = is_short ? kFewChannelsShortThreads<Config> : kThreads;
  const int bytes =
      static_cast<int>(is_short ? FewChannelsShortBytes(call.g, problem.tile)
                                : FewChannelsWgradBytes(call.g, problem.tile));
  const cudaError_t error = RaiseSharedMemory(kernel, kMostShared);
  if (error != cudaSuccess) return error;
  const auto adds = &AddFewChannelsPartials<Config>;
  return MultiplyThenAdd(
      stage, /*whole=*/false, adds,
      [&] {
        return LaunchOne(kernel, call.plan.blocks, threads, bytes, stream,
                         problem);
      },
      [&] {
        const int64_t quads = problem.n_tiles * Config::kQuads * kWarpgroup;
        // Few sums: where they are long, sixteen threads share one.
        const AddTeams teams = problem.splits >= 64
                                   ? AddTeams{kAddBits - 4}
                                   : AddTeams::For(quads, problem.splits);
        return LaunchKernel(adds,
                            {quads / teams.lanes(), kAddThreads, Start::kEarly},
                            stream, problem, teams);
      });
}

template <typename T, bool kOdd>
cudaError_t RunWgrad(const ConvCall& call, const FewChannelsProblem& problem,
                     Stage stage, cudaStream_t stream) {
  auto launch = [&](auto config) {
    return LaunchWgrad<decltype(config)>(call, problem, stage, stream);
  };
  switch ((FewChannelsShape(call.g).steps() + 3) / 4) {
    case 1:
      return launch(FewChannelsWgradConfig<T, 1, kOdd>());
    case 2:
      return launch(FewChannelsWgradConfig<T, 2, kOdd>());
    case 3:
      return launch(FewChannelsWgradConfig<T, 3, kOdd>());
    case 4:
      return launch(FewChannelsWgradConfig<T, 4, kOdd>());
    default:
      return cudaErrorInvalidValue;
  }
}

template <typename T>
cudaError_t RunWgrad(const ConvCall& call, const FewChannelsProblem& problem,
                     Stage stage, cudaStream_t stream) {
  return FewChannelsShape(call.g).odd
             ? RunWgrad<T, true>(call, problem, stage, stream)
             : RunWgrad<T, false>(call, problem, stage, stream);
}

// `flipped`: see FewChannelsProblem.
cudaError_t Run(const ConvCall& call, int flipped, Stage stage,
                cudaStream_t stream) {
  FewChannelsProblem problem = MakeFewChannelsProblem(call, true);
  problem.taps = static_cast<int>(call.g.taps());
  problem.flipped = flipped;
  problem.dw = call.result;
  problem.partials = static_cast<float*>(call.workspace);
  problem.n_tiles = static_cast<int>((call.g.K + 63) / 64);
  problem.splits = call.plan.blocks / problem.n_tiles;
  if (!EncodeOutput(&problem.dy_map, call, call.rhs)) {
    return cudaErrorInvalidValue;
  }
  return call.type == Type::kBf16
             ? RunWgrad<__nv_bfloat16>(call, problem, stage, stream)
             : RunWgrad<__half>(call, problem, stage, stream);
}

}  // namespace

cudaError_t FewChannelsWgrad(const ConvCall& call, Stage stage,
                             cudaStream_t stream) {
  if (!BandsOfDy(call.g)) return Run(call, 0, stage, stream);
  const ConvGeometry g = DgradAsFprop(call.g);
  return Run({g, call.type, call.plan, call.rhs, call.lhs, call.result,
              call.workspace},
             static_cast<int>(g.C), stage, stream);
}

}  // namespace jax_convbatch::hopper
