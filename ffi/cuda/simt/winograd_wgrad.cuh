// wgrad of 3x3 filters of stride 1 by Winograd's F(3x3, 2x2): its 16 products
// have the same transform of x as F(2x2, 3x3), dy in the filter's place, and
// are summed over tiles of 2x2 outputs.
#ifndef JAX_CONVBATCH_CUDA_SIMT_WINOGRAD_WGRAD_CUH_
#define JAX_CONVBATCH_CUDA_SIMT_WINOGRAD_WGRAD_CUH_

#include "cuda/simt/winograd_tile.cuh"

namespace jax_convbatch::simt {

// Each of `workers` sums up a range of tiles, to dw + worker * 9 C K.
struct WinogradWgradProblem {
  const float *x, *dy;
  float* dw;
  int height, width, channels;
  int out_height, out_width, out_channels;
  int pad_h, pad_w;
  int tiles, workers;
  Divisor tiles_w, tiles_h, n_tiles, blocks;  // blocks of a worker
};

// Row i of the transform of 2x2 pixels of dy, to the stage.
template <int i>
__device__ __forceinline__ void StoreDeltaRow(const float (&g)[2][2],
                                              float* u) {
  float row[2];
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    row[j] = i == 0   ? g[0][j]
             : i == 1 ? 0.5f * (g[0][j] + g[1][j])
             : i == 2 ? 0.5f * (g[0][j] - g[1][j])
                      : g[1][j];
  }
  const float out[4] = {row[0], 0.5f * (row[0] + row[1]),
                        0.5f * (row[0] - row[1]), row[1]};
#pragma unroll
  for (int j = 0; j < 4; ++j) u[(4 * i + j) * WinogradTile::kPlaceU] = out[j];
}

// Three rows from four.
__device__ __forceinline__ void BackTransform(const float4 (&m)[4],
                                              float4 (&out)[3]) {
  out[0] = Plus(Plus(m[0], m[1]), m[2]);
  out[1] = Minus(m[1], m[2]);
  out[2] = Minus(Plus(m[1], m[2]), m[3]);
}

// Tap r, s of channel c and four output channels from k on, summed over a
// worker's tiles; padding is zeros as elsewhere.
static __device__ __noinline__ float4 DirectDw(const WinogradWgradProblem& p,
                                               int r, int s, int c, int k,
                                               int begin, int end) {
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  for (int tile = begin; tile < end; ++tile) {
    const int line = tile / p.tiles_w, n = line / p.tiles_h;
    for (int i = 0; i < 4; ++i) {
      const int y = (line - n * p.tiles_h) * 2 + i / 2;
      const int z = (tile - line * p.tiles_w) * 2 + i % 2;
      if (y >= p.out_height || z >= p.out_width) continue;
      const int h = y - p.pad_h + r, w = z - p.pad_w + s;
      const bool inside = static_cast<unsigned>(h) < p.height &&
                          static_cast<unsigned>(w) < p.width;
      const float4 dy = *reinterpret_cast<const float4*>(
          p.dy +
          ((int64_t{n} * p.out_height + y) * p.out_width + z) * p.out_channels +
          k);
      const float* const x =
          p.x + ((int64_t{n} * p.height + h) * p.width + w) * p.channels + c;
      sum = MultiplyAdd(inside ? *x : 0.0f, dy, sum);
    }
  }
  return sum;
}

static __global__ void __launch_bounds__(WinogradTile::kThreads, 1)
    WinogradWgradKernel(const __grid_constant__ WinogradWgradProblem p) {
  using T = WinogradTile;
  extern __shared__ float4 shared[];
  float* const v_ring = reinterpret_cast<float*>(shared);
  float* const u_ring = v_ring + 2 * T::kV;
  const int worker = blockIdx.x / p.blocks;
  const int block = blockIdx.x - worker * p.blocks;
  const int first_row = block / p.n_tiles * T::kRows;
  const int first_channel = block % p.n_tiles * T::kChannels;

  // A warp loads a tile, a thread two channels of x and one of dy.
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int c = first_row + 2 * lane, k = first_channel + lane;
  const float* const x = p.x + c;
  const float* const dy = p.dy + k;
  const int to_v = warp * T::kPitchV + 2 * lane;
  const int to_u = warp * T::kChannels + (lane ^ 1);
  const int x_line = p.width * p.channels;
  const int dy_line = p.out_width * p.out_channels;

  auto load = [&](int step, Patch& d, float (&g)[2][2]) {
    const int tile = step * T::kDepth + warp;
    const int line = tile / p.tiles_w, n = line / p.tiles_h;
    const int row = (line - n * p.tiles_h) * 2;
    const int col = (tile - line * p.tiles_w) * 2;
    const int h = row - p.pad_h, w = col - p.pad_w;
    const bool there = tile < p.tiles;
    const float* const from =
        x + ((int64_t{n} * p.height + h) * p.width + w) * p.channels;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* const pixel = Opaque(from + int64_t{i} * x_line);
      const bool inside =
          there && c < p.channels && static_cast<unsigned>(h + i) < p.height;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        d.at[i][j] = make_float2(0.0f, 0.0f);
        if (inside && static_cast<unsigned>(w + j) < p.width) {
          d.at[i][j] =
              __ldg(reinterpret_cast<const float2*>(pixel + j * p.channels));
        }
      }
    }
    const float* const delta =
        dy + ((int64_t{n} * p.out_height + row) * p.out_width + col) *
                 p.out_channels;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        g[i][j] = 0.0f;
        if (there && k < p.out_channels && row + i < p.out_height &&
            col + j < p.out_width) {
          g[i][j] = __ldg(delta + int64_t{i} * dy_line + j * p.out_channels);
        }
      }
    }
  };

  const int64_t steps = (p.tiles + T::kDepth - 1) / T::kDepth;
  const int begin = static_cast<int>(steps * worker / p.workers);
  const int end = static_cast<int>(steps * (worker + 1) / p.workers);
  WinogradSums sums;
  sums.Clear();
  Patch d;
  float g[2][2];
  auto store = [&](auto i, int slot) {
    StoreRow<i, 1>(d, v_ring + slot * T::kV + to_v);
    StoreDeltaRow<i>(g, u_ring + slot * T::kU + to_u);
  };
  load(begin, d, g);
  store(std::integral_constant<int, 0>(), 0);
  store(std::integral_constant<int, 1>(), 0);
  store(std::integral_constant<int, 2>(), 0);
  store(std::integral_constant<int, 3>(), 0);
#pragma unroll 1
  for (int s = begin; s < end; ++s) {
    const int slot = (s - begin) % 2;
    __syncthreads();
    load(s + 1, d, g);  // after the last step, what nobody reads
    WinogradStage(v_ring + slot * T::kV + WinogradSums::AtV(),
                  u_ring + slot * T::kU + WinogradSums::AtU(), s + 1 < end,
                  sums, [&](auto i) { store(i, 1 - slot); });
  }

  float* const m = v_ring;
  __syncthreads();
  sums.Store(m);
  __syncthreads();
  const int channel = first_channel + threadIdx.x % 8 * 4;
  const int64_t taps_apart = int64_t{p.channels} * p.out_channels;
  float* const dw = p.dw + worker * 9 * taps_apart + channel;
#pragma unroll 1
  for (int t = threadIdx.x / 8; t < T::kRows; t += T::kThreads / 8) {
    if (first_row + t >= p.channels || channel >= p.out_channels) continue;
    const float4* const from = reinterpret_cast<const float4*>(
        m + t * T::kPitchM + threadIdx.x % 8 * 4);
    constexpr int kApart = T::kRows * T::kPitchM / 4;
    float4 rows[4][3];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float4 line[4] = {from[4 * i * kApart], from[(4 * i + 1) * kApart],
                              from[(4 * i + 2) * kApart],
                              from[(4 * i + 3) * kApart]};
      BackTransform(line, rows[i]);
    }
    float* const to = dw + int64_t{first_row + t} * p.out_channels;
#pragma unroll
    for (int j = 0; j < 3; ++j) {
      const float4 line[4] = {rows[0][j], rows[1][j], rows[2][j], rows[3][j]};
      float4 out[3];
      BackTransform(line, out);
#pragma unroll
      for (int i = 0; i < 3; ++i) {
        if (!IsFinite(out[i])) {
          out[i] = Mend(out[i], DirectDw(p, i, j, first_row + t, channel,
                                         begin * T::kDepth,
                                         min(end * T::kDepth, p.tiles)));
        }
        *reinterpret_cast<float4*>(to + (3 * i + j) * taps_apart) = out[i];
      }
    }
  }
}

}  // namespace jax_convbatch::simt

#endif  // JAX_CONVBATCH_CUDA_SIMT_WINOGRAD_WGRAD_CUH_
