// The filter for six_conv.cuh.
#ifndef JAX_CONVBATCH_CUDA_HOPPER_SIX_FILTER_CUH_
#define JAX_CONVBATCH_CUDA_HOPPER_SIX_FILTER_CUH_

#include "cuda/hopper/six_parts.cuh"

namespace jax_convbatch::hopper {

// From w [taps, C, K] to parts [3, taps, depth, width]: rows are channels that
// are summed over, columns those of the result, both with zeros up to a
// multiple of kSixDepth and of 8.
struct SixFilterProblem {
  const float* w;
  __nv_bfloat16* parts;
  int taps, C, K;
  int depth, width;
};

// A block has a tap's 32 x 32 weights. kTurned: rows are K (dgrad), not C.
template <bool kTurned>
__global__ void __launch_bounds__(256)
    SixFilterKernel(const __grid_constant__ SixFilterProblem p) {
  __shared__ float tile[32][33];
  const int across = (p.width + 31) / 32, down = p.depth / 32;
  const int tap = blockIdx.x / (across * down);
  const int at = blockIdx.x - tap * across * down;
  const int d = at / across * 32, n = at % across * 32;
  const int lane = threadIdx.x % 32;
  const int c = kTurned ? n : d, k = kTurned ? d : n;
  for (int i = threadIdx.x / 32; i < 32; i += 8) {
    const bool there = c + i < p.C && k + lane < p.K;
    tile[i][lane] =
        there ? p.w[(int64_t{tap} * p.C + c + i) * p.K + k + lane] : 0.0f;
  }
  __syncthreads();
  if (n + lane >= p.width) return;
  const int64_t part = int64_t{p.taps} * p.depth * p.width;
  for (int i = threadIdx.x / 32; i < 32; i += 8) {
    // A lane of the multiplier has of 16 rows 2 t, 2 t + 1 and 8 further, and
    // loads pixels' channels 4 t to 4 t + 3.
    const int channel = i / 16 * 16 + i % 8 / 2 * 4 + i % 16 / 8 * 2 + i % 2;
    float rest = kTurned ? tile[lane][channel] : tile[channel][lane];
    __nv_bfloat16* to =
        p.parts + (int64_t{tap} * p.depth + d + i) * p.width + n + lane;
#pragma unroll
    for (int j = 0; j < 3; ++j) {
      const __nv_bfloat16 rounded = __float2bfloat16_rn(rest);
      rest -= __bfloat162float(rounded);
      to[j * part] = rounded;
    }
  }
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_HOPPER_SIX_FILTER_CUH_
