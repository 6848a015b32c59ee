// SPDX-License-Identifier: Apache-2.0
// Launches of skinny_conv.cuh.
#include "cuda/common/most_shared.h"
#include "cuda/sm90/arch/launch.cuh"
#include "cuda/sm90/kernels/skinny/skinny_conv.cuh"
#include "cuda/sm90/kernels/skinny/skinny_plan.h"
#include "cuda/sm90/problem/given_epilogue.h"

namespace jax_convbatch::hopper {
namespace {

template <typename T, int kIn, bool kLayer>
cudaError_t Launch(const ConvCall& call, const SkinnyProblem& p, Stage stage,
                   cudaStream_t stream) {
  using Config = SkinnyConfig<T, kIn, kLayer>;
  const auto kernel = &SkinnyKernel<Config>;
  const cudaError_t raised = RaiseSharedMemory(kernel, kMostShared);
  if (raised != cudaSuccess || stage == Stage::kPrepare) return raised;
  const Epilogue epilogue = EpilogueOf(call);
  kernel<<<call.plan.blocks, kSkinnyThreads, FilterBytes<Config>(p), stream>>>(
      p, epilogue);
  return cudaGetLastError();
}

template <typename T, int kIn>
cudaError_t Launch(const ConvCall& call, const SkinnyProblem& p, Stage stage,
                   cudaStream_t stream) {
  return call.epilogue != nullptr
             ? Launch<T, kIn, true>(call, p, stage, stream)
             : Launch<T, kIn, false>(call, p, stage, stream);
}

template <typename T>
cudaError_t Launch(const ConvCall& call, const SkinnyProblem& p, int groups,
                   Stage stage, cudaStream_t stream) {
  switch (groups) {
    case 1:
      return Launch<T, 1>(call, p, stage, stream);
    case 2:
      return Launch<T, 2>(call, p, stage, stream);
    case 3:
      return Launch<T, 3>(call, p, stage, stream);
    case 5:
      return Launch<T, 5>(call, p, stage, stream);
    case 6:
      return Launch<T, 6>(call, p, stage, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t Run(const ConvCall& call, bool flipped, Stage stage,
                cudaStream_t stream) {
  const ConvGeometry& g = call.g;
  SkinnyProblem p{};
  p.in = call.lhs;
  p.w = call.rhs;
  p.out = call.result;
  p.pixels = g.N * g.output_pixels();
  p.in_channels = static_cast<int>(flipped ? g.K : g.C);
  p.out_channels = static_cast<int>(flipped ? g.C : g.K);
  p.flipped = flipped;
  p.divide_row = FastDivmod<uint32_t>(g.K);
  const int groups = NarrowGroups(p.in_channels, call.type);
  switch (call.type) {
    case Type::kBf16:
      return Launch<__nv_bfloat16>(call, p, groups, stage, stream);
    case Type::kF16:
      return Launch<__half>(call, p, groups, stage, stream);
    default:
      return Launch<float>(call, p, groups, stage, stream);
  }
}

}  // namespace

cudaError_t SkinnyFprop(const ConvCall& call, Stage stage,
                        cudaStream_t stream) {
  return Run(call, false, stage, stream);
}

cudaError_t SkinnyDgrad(const ConvCall& call, Stage stage,
                        cudaStream_t stream) {
  return Run(call, true, stage, stream);
}

}  // namespace jax_convbatch::hopper
