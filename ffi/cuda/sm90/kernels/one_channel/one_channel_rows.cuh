// SPDX-License-Identifier: Apache-2.0
// Layers of one input channel of f32 with 3x3 filters and outputs as large as
// the image, rows no wider than a warp: fprop, and the backward pass with relu
// in one look at dy, on the ordinary cores and in true f32.
//
// A warp goes down the rows of an image. A lane has four channels and four
// neighbouring pixels of a row; what it shares with its neighbours comes by
// shuffles and with the rows above and below stays in registers, so that each
// number is loaded once. dx of the three rows that a row of dy reaches are sums
// in registers, in the order of one_channel.cuh's dgrad.
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_ONE_CHANNEL_ONE_CHANNEL_ROWS_CUH_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_ONE_CHANNEL_ONE_CHANNEL_ROWS_CUH_

#include "cuda/common/dependent_launch.cuh"
#include "cuda/common/relu_bitmask.cuh"
#include "cuda/sm80/direct/staging.cuh"
#include "cuda/sm90/arch/ptx.cuh"
#include "cuda/sm90/kernels/one_channel/one_channel.cuh"

namespace jax_convbatch::hopper {

inline constexpr int kRowWarps = 8, kRowThreads = 32 * kRowWarps;

struct OneRowsProblem {
  const float *x, *w, *dy;
  const uint8_t* bitmask;
  float *y, *dx, *dz, *partials;  // dz or null
  int H, W;
  int rows;    // of a tile, which is as wide as the image
  int chunks;  // tiles of an image
  int tiles;
};

// A lane's four channels and four pixels.
template <int kQuads>
struct RowLane {
  int quad, col;

  __device__ RowLane()
      : quad(threadIdx.x % kQuads), col(threadIdx.x % 32 / kQuads * 4) {}

  // From the lane to the left or to the right; zero past the ends of the warp.
  __device__ float Left(float v) const {
    const float left = __shfl_up_sync(~0u, v, kQuads);
    return col == 0 ? 0.0f : left;
  }
  __device__ float Right(float v) const {
    const float right = __shfl_down_sync(~0u, v, kQuads);
    return threadIdx.x % 32 >= 32 - kQuads ? 0.0f : right;
  }
  __device__ void Widen(float4 v, float (&window)[6]) const {
    window[0] = Left(v.w);
    window[1] = v.x, window[2] = v.y, window[3] = v.z, window[4] = v.w;
    window[5] = Right(v.x);
  }
};

// A tile: the rows of an image from `first` to before `last`.
struct RowTile {
  int image, first, last;

  __device__ RowTile(const OneRowsProblem& p, int tile)
      : image(tile / p.chunks),
        first((tile - image * p.chunks) * p.rows),
        last(min(first + p.rows, p.H)) {}
};

template <int kQuads>
__device__ __forceinline__ void LoadRowFilter(const float* w, int quad,
                                              float4 (&filter)[9]) {
#pragma unroll
  for (int i = 0; i < 9; ++i) {
    filter[i] = __ldg(reinterpret_cast<const float4*>(w) + i * kQuads + quad);
  }
}

// A warp's next rows on their way: each lane copies what it reads itself, so
// that it waits for no other.
template <int kQuads>
struct RowStage {
  float4 dy[4][32], x[32];
  uint32_t bitmask[kQuads / 2][32];
};
inline constexpr int kRowStages = 4;

__device__ __forceinline__ void CopyAsync4(void* to, const void* from,
                                           bool inside) {
  asm volatile(
      "cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(SharedAddress(to)),
      "l"(from), "r"(inside ? 4 : 0));
}

// dx of four pixels from the sums of all their channels' lanes; a lane stores
// 4 / kQuads of them, or one where it is among the first four.
template <int kQuads>
__device__ __forceinline__ void StoreRow(const float (&sums)[4], int quad,
                                         bool is_there, float* to) {
  static_assert(kQuads >= 4);
  float v[4] = {sums[0], sums[1], sums[2], sums[3]};
  for (int apart = kQuads / 2; apart >= 4; apart /= 2) {
#pragma unroll
    for (int j = 0; j < 4; ++j) v[j] += __shfl_xor_sync(~0u, v[j], apart);
  }
  const bool high = quad & 2, odd = quad & 1;
  const float a = __shfl_xor_sync(~0u, high ? v[0] : v[2], 2);
  const float b = __shfl_xor_sync(~0u, high ? v[1] : v[3], 2);
  const float even_sum = (high ? v[2] : v[0]) + a;
  const float odd_sum = (high ? v[3] : v[1]) + b;
  const float c = __shfl_xor_sync(~0u, odd ? even_sum : odd_sum, 1);
  if (is_there && quad < 4) to[quad] = (odd ? odd_sum : even_sum) + c;
}

template <int kQuads>
__global__ void __launch_bounds__(kRowThreads, 1)
    OneRowsBackward(const __grid_constant__ OneRowsProblem p) {
  extern __shared__ __align__(128) char one_rows_shared[];
  const RowLane<kQuads> lane;
  const int warp = threadIdx.x / 32, id = threadIdx.x % 32;
  auto* const ring =
      reinterpret_cast<RowStage<kQuads>*>(one_rows_shared) + warp * kRowStages;
  const bool in_row = lane.col < p.W;
  float4 filter[9], acc[9] = {};
  LoadRowFilter<kQuads>(p.w, lane.quad, filter);
  float4 db = make_float4(0.0f, 0.0f, 0.0f, 0.0f);

  for (int tile = warp * gridDim.x + blockIdx.x; tile < p.tiles;
       tile += gridDim.x * kRowWarps) {
    const RowTile at(p, tile);
    const int begin = max(at.first - 1, 0), end = min(at.last + 1, p.H);
    const int64_t pixel = int64_t{at.image} * p.H * p.W + lane.col;
    const auto* const x = p.x + pixel;
    const auto* const dy =
        reinterpret_cast<const float4*>(p.dy) + pixel * kQuads + lane.quad;
    const auto* const bitmask = p.bitmask + pixel * (kQuads / 2);
    auto fetch = [&](int row, int slot) {
      RowStage<kQuads>& to = ring[slot];
      if (row < end) {
        const int offset = row * p.W;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          direct::CopyAsync16(reinterpret_cast<char*>(&to.dy[j][id]),
                              in_row ? dy + (offset + j) * kQuads
                                     : reinterpret_cast<const float4*>(p.dy),
                              in_row);
        }
        const bool below = in_row && row + 1 < p.H;
        direct::CopyAsync16(reinterpret_cast<char*>(&to.x[id]),
                            below ? x + offset + p.W : p.x, below);
#pragma unroll
        for (int j = 0; j < kQuads / 2; ++j) {
          CopyAsync4(
              &to.bitmask[j][id],
              in_row ? bitmask + offset * (kQuads / 2) + j * 4 : p.bitmask,
              in_row);
        }
      }
      direct::CommitCopies();
    };
#pragma unroll
    for (int i = 0; i < kRowStages - 1; ++i) fetch(begin + i, i);

    // x of the rows above, at and below dy's.
    float window[3][6];
    auto load = [&](int row) {
      return in_row && row >= 0
                 ? __ldg(reinterpret_cast<const float4*>(x + row * p.W))
                 : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    };
    lane.Widen(load(begin - 1), window[0]);
    lane.Widen(load(begin), window[1]);
    // dx of those rows. What the row of zeros above an image adds is no number
    // where the filter is none.
    float sums[3][4] = {};
    auto add_zeros = [&](int r, float (&to)[4]) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int s = 0; s < 3; ++s) {
          const float4 w = filter[r * 3 + s];
          to[j] = fmaf(0.0f, w.x, to[j]);
          to[j] = fmaf(0.0f, w.y, to[j]);
          to[j] = fmaf(0.0f, w.z, to[j]);
          to[j] = fmaf(0.0f, w.w, to[j]);
        }
      }
    };
    if (at.first == 0) add_zeros(2, sums[1]);
    float* const dx = p.dx + pixel;
    int slot = 0;
    for (int row = begin; row < end; ++row) {
      direct::WaitForCopies<kRowStages - 2>();
      const RowStage<kQuads>& stage = ring[slot];
      float4 dz[6];
#pragma unroll
      for (int j = 0; j < 4; ++j) dz[j + 1] = stage.dy[j][id];
      lane.Widen(stage.x[id], window[2]);
      uint32_t bitmask_of[kQuads / 2];
#pragma unroll
      for (int j = 0; j < kQuads / 2; ++j) bitmask_of[j] = stage.bitmask[j][id];
      fetch(row + kRowStages - 1, (slot + kRowStages - 1) % kRowStages);
      slot = (slot + 1) % kRowStages;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t four =
            bitmask_of[j * kQuads / 8] >> (j * kQuads % 8 + lane.quad) * 4;
        auto mask = [&](float& v, int i) {
          v = __uint_as_float(__float_as_uint(v) & ReluMask<4>(four, i));
        };
        float4& v = dz[j + 1];
        mask(v.x, 0), mask(v.y, 1), mask(v.z, 2), mask(v.w, 3);
      }
      dz[0] = make_float4(lane.Left(dz[4].x), lane.Left(dz[4].y),
                          lane.Left(dz[4].z), lane.Left(dz[4].w));
      dz[5] = make_float4(lane.Right(dz[1].x), lane.Right(dz[1].y),
                          lane.Right(dz[1].z), lane.Right(dz[1].w));
      if (row >= at.first && row < at.last) {
#pragma unroll
        for (int j = 1; j <= 4; ++j) {
          db.x += dz[j].x, db.y += dz[j].y, db.z += dz[j].z, db.w += dz[j].w;
        }
        if (p.dz != nullptr && in_row) {
          float4* const to = reinterpret_cast<float4*>(p.dz) +
                             (pixel + row * p.W) * kQuads + lane.quad;
#pragma unroll
          for (int j = 0; j < 4; ++j) to[j * kQuads] = dz[j + 1];
        }
#pragma unroll
        for (int r = 0; r < 3; ++r) {
#pragma unroll
          for (int s = 0; s < 3; ++s) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              MultiplyAdd(acc[r * 3 + s], window[r][s + j], dz[j + 1]);
            }
          }
        }
      }
#pragma unroll
      for (int r = 0; r < 3; ++r) {
#pragma unroll
        for (int s = 0; s < 3; ++s) {
          const float4 w = filter[r * 3 + s];
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const float4 v = dz[j + 2 - s];
            sums[r][j] = fmaf(v.x, w.x, sums[r][j]);
            sums[r][j] = fmaf(v.y, w.y, sums[r][j]);
            sums[r][j] = fmaf(v.z, w.z, sums[r][j]);
            sums[r][j] = fmaf(v.w, w.w, sums[r][j]);
          }
        }
      }
      StoreRow<kQuads>(sums[0], lane.quad, in_row && row > at.first,
                       dx + (row - 1) * p.W);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        sums[0][j] = sums[1][j], sums[1][j] = sums[2][j], sums[2][j] = 0.0f;
      }
#pragma unroll
      for (int i = 0; i < 6; ++i) {
        window[0][i] = window[1][i], window[1][i] = window[2][i];
      }
    }
    if (at.last == p.H) {
      add_zeros(0, sums[0]);
      StoreRow<kQuads>(sums[0], lane.quad, in_row, dx + (p.H - 1) * p.W);
    }
  }
  LaunchDependents();
  // The block's sums: [9 taps and db][channels], the warps' in order.
  float4* const all = reinterpret_cast<float4*>(one_rows_shared);
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 10; ++i) {
    float4 v = i == 9 ? db : acc[i < 9 ? i : 0];
    for (int apart = 16; apart >= kQuads; apart /= 2) {
      v.x += __shfl_xor_sync(~0u, v.x, apart);
      v.y += __shfl_xor_sync(~0u, v.y, apart);
      v.z += __shfl_xor_sync(~0u, v.z, apart);
      v.w += __shfl_xor_sync(~0u, v.w, apart);
    }
    if (id < kQuads) all[(warp * 10 + i) * kQuads + id] = v;
  }
  __syncthreads();
  constexpr int kSums = 10 * kQuads;
  for (int i = threadIdx.x; i < kSums; i += kRowThreads) {
    float4 total = all[i];
    for (int other = 1; other < kRowWarps; ++other) {
      const float4 add = all[other * kSums + i];
      total = make_float4(total.x + add.x, total.y + add.y, total.z + add.z,
                          total.w + add.w);
    }
    reinterpret_cast<float4*>(p.partials)[int64_t{blockIdx.x} * kSums + i] =
        total;
  }
}

inline constexpr int kRowColumns = 32, kRowTeams = 16;

// Adds the blocks' partials in order.
__global__ void __launch_bounds__(kRowColumns* kRowTeams)
    AddRowPartials(const float* __restrict__ partials, int blocks, int channels,
                   float* __restrict__ dw, float* __restrict__ db) {
  __shared__ float sums[kRowTeams][kRowColumns];
  const int column = threadIdx.x % kRowColumns;
  const int team = threadIdx.x / kRowColumns;
  const int at = blockIdx.x * kRowColumns + column, size = channels * 10;
  WaitForPrimary();
  float sum = 0.0f;
  if (at < size) {
#pragma unroll 8
    for (int b = team; b < blocks; b += kRowTeams) {
      sum += partials[int64_t{b} * size + at];
    }
  }
  sums[team][column] = sum;
  __syncthreads();
  if (team != 0 || at >= size) return;
  for (int i = 1; i < kRowTeams; ++i) sum += sums[i][column];
  (at < channels * 9 ? dw[at] : db[at - channels * 9]) = sum;
}

template <int kQuads>
__global__ void __launch_bounds__(kRowThreads, 2)
    OneRowsFprop(const __grid_constant__ OneRowsProblem p,
                 const __grid_constant__ Epilogue e) {
  const RowLane<kQuads> lane;
  const int warp = threadIdx.x / 32;
  const bool in_row = lane.col < p.W;
  float4 filter[9];
  LoadRowFilter<kQuads>(p.w, lane.quad, filter);
  const OneChannelScale scale(e, lane.quad);
  for (int tile = warp * gridDim.x + blockIdx.x; tile < p.tiles;
       tile += gridDim.x * kRowWarps) {
    const RowTile at(p, tile);
    const int64_t pixel = int64_t{at.image} * p.H * p.W + lane.col;
    const float* const x = p.x + pixel;
    auto load = [&](int row) {
      return in_row && Within(row, p.H)
                 ? __ldg(reinterpret_cast<const float4*>(x + row * p.W))
                 : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    };
    float window[3][6];
    lane.Widen(load(at.first - 1), window[0]);
    lane.Widen(load(at.first), window[1]);
    float4 next = load(at.first + 1);
    for (int row = at.first; row < at.last; ++row) {
      lane.Widen(next, window[2]);
      next = load(row + 2);
      float4 sums[4] = {};
#pragma unroll
      for (int r = 0; r < 3; ++r) {
#pragma unroll
        for (int s = 0; s < 3; ++s) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            MultiplyAdd(sums[j], window[r][s + j], filter[r * 3 + s]);
          }
        }
      }
      const int64_t to = (pixel + row * p.W) * kQuads + lane.quad;
      StoreOneChannel(e, scale, sums, kQuads, to, in_row, p.y);
      if (e.bitmask != nullptr) {
        uint32_t bits[kQuads / 2] = {};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float4 v = sums[j];
          const uint32_t four =
              (v.x > 0) | (v.y > 0) << 1 | (v.z > 0) << 2 | (v.w > 0) << 3;
          bits[j * kQuads / 8] |= four << (j * kQuads % 8 + lane.quad) * 4;
        }
#pragma unroll
        for (int j = 0; j < kQuads / 2; ++j) {
          for (int apart = kQuads / 2; apart > 0; apart /= 2) {
            bits[j] |= __shfl_xor_sync(~0u, bits[j], apart);
          }
          if (in_row && lane.quad == j) {
            reinterpret_cast<uint32_t*>(
                e.bitmask + (pixel + row * p.W) * (kQuads / 2))[j] = bits[j];
          }
        }
      }
#pragma unroll
      for (int i = 0; i < 6; ++i) {
        window[0][i] = window[1][i], window[1][i] = window[2][i];
      }
    }
  }
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_ONE_CHANNEL_ONE_CHANNEL_ROWS_CUH_
