// fprop, and dgrad of stride 1, with 3x3 filters by Winograd's F(2x2, 3x3).
#ifndef JAX_CONVBATCH_CUDA_SIMT_WINOGRAD_CUH_
#define JAX_CONVBATCH_CUDA_SIMT_WINOGRAD_CUH_

#include "cuda/simt/winograd_tile.cuh"

namespace jax_convbatch::simt {

// Written in fprop's words. `u` is the transformed filter, [16, channels,
// out_channels], neighbours of the latter in each other's place. Chunks are as
// ConvProblem's.
struct WinogradProblem {
  const float *in, *u, *w;
  bool turned;  // dgrad: w with its taps in reverse, and channels exchanged
  float* out;
  int height, width, channels;
  int out_height, out_width, out_channels;
  int pad_h, pad_w;
  int tiles;  // of 2x2 outputs, over all images
  int blocks_of_depth, chunks;
  bool split;
  int64_t chunk_size;
  Divisor tiles_w, tiles_h, n_tiles, blocks;  // blocks of a chunk
};

// The sum over a chunk's channels for four neighbours in `out`; padding is
// zeros as elsewhere.
static __device__ __noinline__ float4 DirectSum(const WinogradProblem& p, int n,
                                                int y, int z, int channel,
                                                int begin, int end) {
  const int64_t size = int64_t{p.channels} * p.out_channels;
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  for (int tap = 0; tap < 9; ++tap) {
    const int h = y - p.pad_h + tap / 3, w = z - p.pad_w + tap % 3;
    const bool inside = static_cast<unsigned>(h) < p.height &&
                        static_cast<unsigned>(w) < p.width;
    const float* const x =
        p.in + ((int64_t{n} * p.height + h) * p.width + w) * p.channels;
    const float* const filter = p.w + (p.turned ? 8 - tap : tap) * size;
    for (int c = begin; c < end; ++c) {
      const float* const at =
          filter + (p.turned ? int64_t{channel} * p.channels + c
                             : int64_t{c} * p.out_channels + channel);
      const int64_t next = p.turned ? p.channels : 1;
      const float4 weights =
          make_float4(at[0], at[next], at[2 * next], at[3 * next]);
      sum = MultiplyAdd(inside ? x[c] : 0.0f, weights, sum);
    }
  }
  return sum;
}

static __global__ void __launch_bounds__(WinogradTile::kThreads, 1)
    WinogradKernel(const __grid_constant__ WinogradProblem p) {
  using T = WinogradTile;
  extern __shared__ float4 shared[];
  float* const v_ring = reinterpret_cast<float*>(shared);
  float* const u_ring = v_ring + 2 * T::kV;
  const int chunk = blockIdx.x / p.blocks;
  const int block = blockIdx.x - chunk * p.blocks;
  const int first_tile = block / p.n_tiles * T::kRows;
  const int first_channel = block % p.n_tiles * T::kChannels;
  const int64_t image = int64_t{p.height} * p.width * p.channels;

  // What the thread loads: two channels of a tile, and weights.
  const int tile = first_tile + threadIdx.x / 4, pair = threadIdx.x % 4 * 2;
  const int first_image = first_tile / p.tiles_w / p.tiles_h;
  const int line = tile / p.tiles_w, n = line / p.tiles_h;
  const int h = (line - n * p.tiles_h) * 2 - p.pad_h;
  const int w = (tile - line * p.tiles_w) * 2 - p.pad_w;
  const float* const x =
      p.in + first_image * image +
      (int64_t{(n - first_image) * p.height + h} * p.width + w) * p.channels +
      pair;
  unsigned inside = 0;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const bool there = static_cast<unsigned>(h + i / 4) < p.height &&
                       static_cast<unsigned>(w + i % 4) < p.width &&
                       tile < p.tiles;
    inside |= static_cast<unsigned>(there) << i;
  }
  const int to_v = pair * T::kPitchV + threadIdx.x / 4;
  const int u_channel = first_channel + threadIdx.x % 8 * 4;
  const int u_depth = threadIdx.x / 8 % 8;
  const float* const u =
      p.u +
      (int64_t{threadIdx.x / 64} * p.channels + u_depth) * p.out_channels +
      u_channel;
  const int to_u = threadIdx.x / 64 * T::kPlaceU + threadIdx.x % 64 * 4;
  const int64_t u_step = 4 * int64_t{p.channels} * p.out_channels;

  const int row_floats = p.width * p.channels;
  auto load = [&](int depth_block, Patch& d) {
    const float* const from = Opaque(x + depth_block * T::kDepth);
    const unsigned mask =
        depth_block * T::kDepth + pair < p.channels ? inside : 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* const line = Opaque(from + i * row_floats);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        d.at[i][j] = make_float2(0.0f, 0.0f);
        if (mask & 1u << (4 * i + j)) {
          d.at[i][j] =
              __ldg(reinterpret_cast<const float2*>(line + j * p.channels));
        }
      }
    }
  };
  auto copy_u = [&](int depth_block, float* stage) {
    const bool there = depth_block * T::kDepth + u_depth < p.channels &&
                       u_channel < p.out_channels;
    const float* const from =
        u + int64_t{depth_block} * T::kDepth * p.out_channels;
    const uint32_t to = SharedAddress(stage + to_u);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      Copy16(to + i * 4 * T::kPlaceU * 4, from + i * u_step, there);
    }
    CommitCopies();
  };

  bool adds = false;
  const int begin_chunk = p.split ? chunk : 0;
  const int end_chunk = p.split ? chunk + 1 : p.chunks;
  float* const out = p.out + (p.split ? chunk * p.chunk_size : 0);
#pragma unroll 1
  for (int c = begin_chunk; c < end_chunk; ++c) {
    const int begin = p.blocks_of_depth * c / p.chunks;
    const int end = p.blocks_of_depth * (c + 1) / p.chunks;
    WinogradSums sums;
    sums.Clear();
    Patch d;
    load(begin, d);
    copy_u(begin, u_ring);
    StoreRow<0, T::kPitchV>(d, v_ring + to_v);
    StoreRow<1, T::kPitchV>(d, v_ring + to_v);
    StoreRow<2, T::kPitchV>(d, v_ring + to_v);
    StoreRow<3, T::kPitchV>(d, v_ring + to_v);
#pragma unroll 1
    for (int s = begin; s < end; ++s) {
      const int slot = (s - begin) % 2;
      WaitForCopies<0>();
      __syncthreads();
      // The next stage's, or, after the last one, what nobody reads.
      load(s + 1, d);
      copy_u(s + 1, u_ring + (1 - slot) * T::kU);
      float* const next = v_ring + (1 - slot) * T::kV + to_v;
      WinogradStage(v_ring + slot * T::kV + WinogradSums::AtV(),
                    u_ring + slot * T::kU + WinogradSums::AtU(), s + 1 < end,
                    sums, [&](auto i) { StoreRow<i, T::kPitchV>(d, next); });
    }

    // A' m A: the 16 sums of an output tile meet in shared memory.
    float* const m = v_ring;
    WaitForCopies<0>();
    __syncthreads();
    sums.Store(m);
    __syncthreads();
    const int channel = first_channel + threadIdx.x % 8 * 4;
#pragma unroll 1
    for (int t = threadIdx.x / 8; t < T::kRows; t += T::kThreads / 8) {
      const int at_tile = first_tile + t;
      if (at_tile >= p.tiles || channel >= p.out_channels) continue;
      const float4* const from = reinterpret_cast<const float4*>(
          m + t * T::kPitchM + threadIdx.x % 8 * 4);
      constexpr int kApart = T::kRows * T::kPitchM / 4;
      float4 half[2][4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float4 m0 = from[j * kApart], m1 = from[(4 + j) * kApart];
        const float4 m2 = from[(8 + j) * kApart], m3 = from[(12 + j) * kApart];
        half[0][j] = Plus(Plus(m0, m1), m2);
        half[1][j] = Minus(Minus(m1, m2), m3);
      }
      const int out_line = at_tile / p.tiles_w, out_n = out_line / p.tiles_h;
      const int y = (out_line - out_n * p.tiles_h) * 2;
      const int z = (at_tile - out_line * p.tiles_w) * 2;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float4 results[2] = {Plus(Plus(half[i][0], half[i][1]), half[i][2]),
                             Minus(Minus(half[i][1], half[i][2]), half[i][3])};
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          if (y + i >= p.out_height || z + j >= p.out_width) continue;
          float4* const to = reinterpret_cast<float4*>(
              out +
              ((int64_t{out_n} * p.out_height + y + i) * p.out_width + z + j) *
                  p.out_channels +
              channel);
          if (!IsFinite(results[j])) {
            results[j] =
                Mend(results[j], DirectSum(p, out_n, y + i, z + j, channel,
                                           begin * T::kDepth,
                                           min(end * T::kDepth, p.channels)));
          }
          *to = adds ? Plus(*to, results[j]) : results[j];
        }
      }
    }
    adds = true;
    __syncthreads();
  }
}

// G g G' of a filter, `place` from one product to the next.
__device__ __forceinline__ void StoreFilter(const float (&g)[3][3],
                                            int64_t place, float* u) {
  float rows[4][3];
#pragma unroll
  for (int j = 0; j < 3; ++j) {
    rows[0][j] = g[0][j];
    rows[1][j] = 0.5f * (g[0][j] + g[1][j] + g[2][j]);
    rows[2][j] = 0.5f * (g[0][j] - g[1][j] + g[2][j]);
    rows[3][j] = g[2][j];
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float a = rows[i][0], b = rows[i][1], c = rows[i][2];
    const float out[4] = {a, 0.5f * (a + b + c), 0.5f * (a - b + c), c};
#pragma unroll
    for (int j = 0; j < 4; ++j) u[(4 * i + j) * place] = out[j];
  }
}

// Of 32 x 32 filters a block. dgrad's are turned, and their channels exchanged,
// in shared memory.
template <bool kDgrad>
__global__ void __launch_bounds__(256)
    TransformFilters(int channels, int out_channels, const float* w, float* u) {
  __shared__ float tile[kDgrad ? 9 : 1][32][33];
  const int across = (out_channels + 31) / 32;
  const int c = blockIdx.x / across * 32, k = blockIdx.x % across * 32;
  const int lane = threadIdx.x % 32, line = threadIdx.x / 32;
  const int64_t size = int64_t{channels} * out_channels;
  if constexpr (kDgrad) {
#pragma unroll
    for (int i = 0; i < 9; ++i) {
      for (int r = line; r < 32; r += 8) {
        if (c + r < channels && k + lane < out_channels) {
          tile[i][r][lane] =
              w[i * size + int64_t{c + r} * out_channels + k + lane];
        }
      }
    }
    __syncthreads();
  }
  for (int r = line; r < 32; r += 8) {
    const int at_c = c + (kDgrad ? lane : r), at_k = k + (kDgrad ? r : lane);
    if (at_c >= channels || at_k >= out_channels) continue;
    const int64_t at = int64_t{at_c} * out_channels + at_k;
    float g[3][3];
#pragma unroll
    for (int i = 0; i < 9; ++i) {
      g[i / 3][i % 3] = kDgrad ? tile[8 - i][lane][r] : w[i * size + at];
    }
    StoreFilter(g, size,
                u + (kDgrad ? int64_t{at_k} * channels + (at_c ^ 1)
                            : int64_t{at_c} * out_channels + (at_k ^ 1)));
  }
}

}  // namespace jax_convbatch::simt

#endif  // JAX_CONVBATCH_CUDA_SIMT_WINOGRAD_CUH_
