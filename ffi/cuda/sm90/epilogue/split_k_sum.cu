// SPDX-License-Identifier: Apache-2.0
#include <type_traits>

#include "cuda/sm90/arch/launch.cuh"
#include "cuda/sm90/epilogue/add_in_order.cuh"
#include "cuda/sm90/epilogue/split_k_sum.h"

namespace jax_convbatch::hopper {
namespace {

// Four elements of the result.
template <typename T>
using Quad = std::conditional_t<std::is_same_v<T, float>, float4, uint2>;

template <typename T>
__device__ __forceinline__ Quad<T> Round(const float4& sum) {
  if constexpr (std::is_same_v<T, float>) {
    return sum;
  } else {
    return make_uint2(Pack<T>(sum.x, sum.y), Pack<T>(sum.z, sum.w));
  }
}

template <typename T>
__global__ void __launch_bounds__(kAddThreads)
    SplitKSumKernel(const float4* __restrict__ partials,
                    Quad<T>* __restrict__ result, int count, int64_t quads,
                    AddTeams teams) {
  __shared__ AddRing ring;
  const int64_t quad = (int64_t{blockIdx.x} << teams.lane_bits) + teams.lane();
  const int begin = teams.Begin(teams.group(), count);
  const int end = teams.Begin(teams.group() + 1, count);
  const bool has = quad < quads;
  float4 sum[1];
  WaitForPrimary();
  AddInOrder<1, 0>(
      sum,
      {partials + begin * quads + quad, quads, quads, has ? end - begin : 0},
      ring, [] {});
  if (!teams.Join(sum, ring) || !has) return;
  result[quad] = Round<T>(sum[0]);
}

template <typename T>
cudaError_t Run(int64_t count, int64_t size, const void* partials, void* result,
                Stage stage, cudaStream_t stream) {
  const auto kernel = &SplitKSumKernel<T>;
  if (stage == Stage::kPrepare) {
    cudaFuncAttributes loads;
    return cudaFuncGetAttributes(&loads, kernel);
  }
  const int64_t quads = size / 4;
  const AddTeams teams = AddTeams::For(quads, count);
  return LaunchKernel(
      kernel, {(quads - 1) / teams.lanes() + 1, kAddThreads, Start::kEarly},
      stream, static_cast<const float4*>(partials),
      static_cast<Quad<T>*>(result), static_cast<int>(count), quads, teams);
}

}  // namespace

cudaError_t SplitKSum(Type type, int64_t count, int64_t size,
                      const void* partials, void* result, Stage stage,
                      cudaStream_t stream) {
  switch (type) {
    case Type::kBf16:
      return Run<__nv_bfloat16>(count, size, partials, result, stage, stream);
    case Type::kF16:
      return Run<__half>(count, size, partials, result, stage, stream);
    default:
      return Run<float>(count, size, partials, result, stage, stream);
  }
}

}  // namespace jax_convbatch::hopper
