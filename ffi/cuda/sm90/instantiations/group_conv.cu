// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "cuda/sm90/kernels/conv/conv_launch.cuh"
#include "cuda/sm90/kernels/conv/group_conv.h"
#include "cuda/sm90/kernels/row_band/group_row_band.cuh"
#include "cuda/sm90/problem/dense_output.h"

namespace jax_convbatch::hopper {
namespace {

template <typename T, Contiguous kWeights, int kWidth>
cudaError_t RowBands(const ConvCall& call, const Activations& in,
                     const Activations& out, const SubproblemAxes& sub,
                     Stage stage, cudaStream_t stream) {
  if constexpr (kIsNarrow<kWidth>) {
    auto run = [&](const auto& few) {
      return RunGroupRowBand<T, kWeights, kWidth>(call, in, out, sub, few,
                                                  stage, stream);
    };
    if constexpr (kWidth == kFewWidth) {
      const int64_t channels = call.g.group_C();
      if (channels < kFewWidth) {
        return run(FewGroups{
            call.lhs, call.rhs, static_cast<int>(in.h), static_cast<int>(in.w),
            static_cast<int>(sub.h.input), static_cast<int>(sub.w.input),
            channels == 2   ? 1
            : channels == 4 ? 2
                            : 3});
      }
    }
    return run(Whole{});
  } else {
    return RunRowBand<T, kWeights, kWidth>(call, in, out, sub, stage, stream);
  }
}

// kWidth: see group_width.h.
template <typename T, Contiguous kWeights, int kSubs, int kWidth,
          typename Subproblems>
cudaError_t Run(const ConvCall& call, const Activations& in,
                const Activations& out, const Subproblems& subs, Stage stage,
                cudaStream_t stream) {
  if constexpr (kSubs == 1 && kWidth != kAnyGroups) {
    if (call.plan.kernel == TileKernel::kRowBand) {
      return RowBands<T, kWeights, kWidth>(call, in, out, subs[0], stage,
                                           stream);
    }
  }
  const int m = call.plan.tile_m, n = call.plan.tile_n;
  constexpr bool kFprop = kWeights == Contiguous::kRows;
  const int box_c = kIsNarrow<kWidth> ? kWidth : kFprop ? 64 : n;
  const ConvBoxes boxes = {m, 64, box_c,
                           kSubs > 1 ? Output::kWalk : Output::kMatrix};
  ConvProblem<kSubs> problem{};
  if (!MakeConvProblem(call, in, out, subs, boxes, &problem)) {
    return cudaErrorInvalidValue;
  }
  auto launch = [&](auto config) {
    return LaunchConv<decltype(config), kSubs>(problem, NoEpilogue{},
                                               call.plan.blocks, stage, stream);
  };
  constexpr Schedule kPingPong = Schedule::kPingPong;
  constexpr bool kZeros = kSubs > 1;
  constexpr int kStores = kZeros ? 1 : 2;
  if (m == 64 && n == 64) {
    return launch(
        ConvConfig<T, 64, 64, kPingPong, 12, 2, kZeros, kWeights, 0, kWidth>());
  }
  if (m == 128 && n == 64) {
    return launch(ConvConfig<T, 128, 64, kPingPong, 7, kStores, kZeros,
                             kWeights, 0, kWidth>());
  }
  if (m == 256 && n == 64) {
    return launch(ConvConfig<T, 256, 64, kPingPong, 4, kStores, kZeros,
                             kWeights, 0, kWidth>());
  }
  if constexpr (kWidth == kBoxGroups) {
    if (m == 128 && n == 128) {
      return launch(ConvConfig<T, 128, 128, kPingPong, 5, 1, kZeros, kWeights,
                               0, kWidth>());
    }
  }
  return cudaErrorInvalidValue;
}

template <typename T, Contiguous kWeights, int kSubs, typename Subproblems>
cudaError_t RunWidth(const ConvCall& call, const Activations& in,
                     const Activations& out, const Subproblems& subs,
                     Stage stage, cudaStream_t stream) {
  switch (GroupWidth(call.g)) {
    case 16:
      return Run<T, kWeights, kSubs, 16>(call, in, out, subs, stage, stream);
    case 32:
      return Run<T, kWeights, kSubs, 32>(call, in, out, subs, stage, stream);
    case kBoxGroups:
      return Run<T, kWeights, kSubs, kBoxGroups>(call, in, out, subs, stage,
                                                 stream);
    default:
      return Run<T, kWeights, kSubs, kAnyGroups>(call, in, out, subs, stage,
                                                 stream);
  }
}

template <typename T>
cudaError_t RunFprop(const ConvCall& call, Stage stage, cudaStream_t stream) {
  const std::array<SubproblemAxes, 1> subs = {FpropSubproblem(call.g)};
  return RunWidth<T, Contiguous::kRows, 1>(
      call, InputOf(call.g), OutputOf(call.g), subs, stage, stream);
}

template <typename T>
cudaError_t RunDgrad(const ConvCall& call, Stage stage, cudaStream_t stream) {
  const auto subs = DgradSubproblems(call.g);
  const Activations in = OutputOf(call.g), out = InputOf(call.g);
  return IsDense(subs) ? RunWidth<T, Contiguous::kReduction, 1>(
                             call, in, out, subs, stage, stream)
                       : RunWidth<T, Contiguous::kReduction, kMaxSubproblems>(
                             call, in, out, subs, stage, stream);
}

}  // namespace

cudaError_t GroupFprop(const ConvCall& call, Stage stage, cudaStream_t stream) {
  switch (call.type) {
    case Type::kBf16:
      return RunFprop<__nv_bfloat16>(call, stage, stream);
    case Type::kF16:
      return RunFprop<__half>(call, stage, stream);
    default:
      return GroupFpropTf32(call, stage, stream);
  }
}

cudaError_t GroupDgrad(const ConvCall& call, Stage stage, cudaStream_t stream) {
  switch (call.type) {
    case Type::kBf16:
      return RunDgrad<__nv_bfloat16>(call, stage, stream);
    case Type::kF16:
      return RunDgrad<__half>(call, stage, stream);
    default:
      return GroupDgradTf32(call, stage, stream);
  }
}

}  // namespace jax_convbatch::hopper
