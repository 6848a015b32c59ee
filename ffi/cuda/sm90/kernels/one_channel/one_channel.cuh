// SPDX-License-Identifier: Apache-2.0
// f32 convolutions of one input channel, on the ordinary cores: a few products
// for each number of y that is read or written.
//
// A thread keeps the filter of four output channels in registers (wgrad: its
// sums) and goes through a block's pixels, which are neighbours, kCols of a row
// at a time: four where they divide rows and the taps of a row are neighbours,
// else one. What they share of x, and in dgrad of dy, is loaded once; what
// neighbouring threads share comes from the L1.
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_ONE_CHANNEL_ONE_CHANNEL_CUH_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_ONE_CHANNEL_ONE_CHANNEL_CUH_

#include <cstdint>

#include "activation_math.h"
#include "cuda/common/fast_divmod.h"
#include "cuda/sm90/problem/epilogue.h"

namespace jax_convbatch::hopper {

inline constexpr int kOneThreads = 256;
// Blocks of an SM; registers hold no more.
constexpr int OneChannelBlocks(int taps) { return taps == 3 ? 2 : 1; }

struct OneChannelProblem {
  const float *x, *w, *y;  // y: dy, where it is read
  float* out;
  int H, W, P, Q;
  int stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
  int quads;      // of output channels: threads of a pixel
  int groups;     // kCols pixels of a row each, of the batch
  int per_block;  // of them
  FastDivmod<uint32_t> across, down;  // of an image with those groups
};

// Where a thread works: its four channels, and a group among those that the
// block's threads take at once.
struct OneChannelThread {
  int quad, lane, step;

  __device__ explicit OneChannelThread(const OneChannelProblem& p)
      : quad(threadIdx.x % p.quads),
        lane(threadIdx.x / p.quads),
        step(kOneThreads / p.quads) {}
};

// The first pixel of a group.
struct OnePlace {
  int col, row, image;

  __device__ OnePlace(const OneChannelProblem& p, int group, int cols) {
    uint32_t rest = group;
    col = TakeDigit(p.across, rest) * cols;
    row = TakeDigit(p.down, rest);
    image = rest;
  }
};

// Calls visit(group, is_there) for the groups of a thread; all threads of a
// block call as often.
template <typename Visit>
__device__ __forceinline__ void ForGroups(const OneChannelProblem& p,
                                          const OneChannelThread& thread,
                                          Visit visit) {
  const int first = blockIdx.x * p.per_block;
  const int last = min(p.groups, first + p.per_block);
  for (int base = first; base < last; base += thread.step) {
    const int group = base + thread.lane;
    visit(min(group, last - 1), group < last);
  }
}

__device__ __forceinline__ bool Within(int i, int size) {
  return static_cast<unsigned>(i) < static_cast<unsigned>(size);
}

// Calls visit(r, x) for each filter row r with the x that kCols neighbouring
// outputs read there, zeros outside the image: for one output its taps, for
// more, which take steps of one, all between the first's first tap and the
// last's last.
template <int kTaps, int kCols, typename Visit>
__device__ __forceinline__ void ForRows(const OneChannelProblem& p,
                                        const OnePlace& at, Visit visit) {
  constexpr int kWindow = kTaps + kCols - 1;
  const float* const image = p.x + int64_t{at.image} * p.H * p.W;
  const int h0 = at.row * p.stride_h - p.pad_h;
  const int w0 = at.col * p.stride_w - p.pad_w;
  const int step = kCols == 1 ? p.dilation_w : 1;
#pragma unroll
  for (int r = 0; r < kTaps; ++r) {
    const int h = h0 + r * p.dilation_h;
    const bool in_image = Within(h, p.H);
    const float* const row = image + int64_t{h} * p.W;
    float x[kWindow];
#pragma unroll
    for (int i = 0; i < kWindow; ++i) {
      const int w = w0 + i * step;
      x[i] = in_image & Within(w, p.W) ? __ldg(row + w) : 0.0f;
    }
    visit(r, x);
  }
}

template <int kTaps>
__device__ __forceinline__ void LoadFilter(const OneChannelProblem& p, int quad,
                                           float4 (&w)[kTaps * kTaps]) {
#pragma unroll
  for (int i = 0; i < kTaps * kTaps; ++i) {
    w[i] = __ldg(reinterpret_cast<const float4*>(p.w) + i * p.quads + quad);
  }
}

__device__ __forceinline__ void MultiplyAdd(float4& sum, float x, float4 w) {
  sum.x = fmaf(x, w.x, sum.x);
  sum.y = fmaf(x, w.y, sum.y);
  sum.z = fmaf(x, w.z, sum.z);
  sum.w = fmaf(x, w.w, sum.w);
}

// What an epilogue does to a thread's four channels.
struct OneChannelScale {
  float4 scale, bias;

  __device__ OneChannelScale(const Epilogue& e, int quad) {
    auto channels = [&](const void* from, float none) {
      return from == nullptr ? make_float4(none, none, none, none)
                             : __ldg(static_cast<const float4*>(from) + quad);
    };
    scale = channels(e.scale, 1.0f);
    bias = channels(e.bias, 0.0f);
  }
};

// Stores y of kCols neighbouring pixels of `quads` fours each, from four
// `first` on, and leaves it in `v`.
template <int kCols>
__device__ __forceinline__ void StoreOneChannel(const Epilogue& e,
                                                const OneChannelScale& by,
                                                float4 (&v)[kCols], int quads,
                                                int64_t first, bool is_there,
                                                float* y) {
#pragma unroll
  for (int j = 0; j < kCols; ++j) {
    v[j] = make_float4(fmaf(v[j].x, by.scale.x, by.bias.x),
                       fmaf(v[j].y, by.scale.y, by.bias.y),
                       fmaf(v[j].z, by.scale.z, by.bias.z),
                       fmaf(v[j].w, by.scale.w, by.bias.w));
    if (!is_there) continue;
    const int64_t at = first + j * quads;
    if (e.residual != nullptr) {
      const float4 add = __ldg(static_cast<const float4*>(e.residual) + at);
      v[j] = make_float4(v[j].x + add.x, v[j].y + add.y, v[j].z + add.z,
                         v[j].w + add.w);
    }
    if (e.z != nullptr) static_cast<float4*>(e.z)[at] = v[j];
  }
  DispatchActivation(e.activation, [&](auto tag) {
    constexpr Activation kActivation = decltype(tag)::value;
#pragma unroll
    for (int j = 0; j < kCols; ++j) {
      v[j] = make_float4(
          Activate(kActivation, v[j].x), Activate(kActivation, v[j].y),
          Activate(kActivation, v[j].z), Activate(kActivation, v[j].w));
    }
  });
  if (!is_there) return;
#pragma unroll
  for (int j = 0; j < kCols; ++j) {
    reinterpret_cast<float4*>(y)[first + j * quads] = v[j];
  }
}

template <int kTaps, int kCols>
__global__ void __launch_bounds__(kOneThreads, OneChannelBlocks(kTaps))
    OneChannelFprop(const __grid_constant__ OneChannelProblem p,
                    const __grid_constant__ Epilogue e) {
  const OneChannelThread thread(p);
  float4 filter[kTaps * kTaps];
  LoadFilter<kTaps>(p, thread.quad, filter);
  const OneChannelScale scale(e, thread.quad);
  ForGroups(p, thread, [&](int group, bool is_there) {
    const OnePlace place(p, group, kCols);
    float4 sums[kCols] = {};
    ForRows<kTaps, kCols>(p, place, [&](int r, const auto& x) {
#pragma unroll
      for (int s = 0; s < kTaps; ++s) {
#pragma unroll
        for (int j = 0; j < kCols; ++j) {
          MultiplyAdd(sums[j], x[s + j], filter[r * kTaps + s]);
        }
      }
    });
    const int64_t first =
        ((int64_t{place.image} * p.P + place.row) * p.Q + place.col) * p.quads +
        thread.quad;
    StoreOneChannel(e, scale, sums, p.quads, first, is_there, p.out);
    if (e.bitmask == nullptr) return;
#pragma unroll
    for (int j = 0; j < kCols; ++j) {
      const int64_t at = first + j * p.quads;
      const float4 v = sums[j];
      const uint32_t bits =
          (v.x > 0) | (v.y > 0) << 1 | (v.z > 0) << 2 | (v.w > 0) << 3;
      const uint32_t next = __shfl_down_sync(~0u, bits, 1);
      if (is_there && thread.quad % 2 == 0) {
        e.bitmask[at / 2] = static_cast<uint8_t>(bits | next << 4);
      }
    }
  });
}

// Of stride 1.
template <int kTaps, int kCols>
__global__ void __launch_bounds__(kOneThreads, OneChannelBlocks(kTaps))
    OneChannelDgrad(const __grid_constant__ OneChannelProblem p) {
  constexpr int kWindow = kTaps + kCols - 1;
  const OneChannelThread thread(p);
  float4 filter[kTaps * kTaps];
  LoadFilter<kTaps>(p, thread.quad, filter);
  ForGroups(p, thread, [&](int group, bool is_there) {
    const OnePlace place(p, group, kCols);
    const float4* const image = reinterpret_cast<const float4*>(p.y) +
                                int64_t{place.image} * p.P * p.Q * p.quads +
                                thread.quad;
    // Of the last tap and the first pixel.
    const int step = kCols == 1 ? p.dilation_w : 1;
    const int col0 = place.col + p.pad_w - (kTaps - 1) * step;
    float sums[kCols] = {};
#pragma unroll
    for (int r = kTaps - 1; r >= 0; --r) {  // dy's rows from the first on
      const int row = place.row + p.pad_h - r * p.dilation_h;
      const bool in_image = Within(row, p.P);
      float4 dy[kWindow];
#pragma unroll
      for (int i = 0; i < kWindow; ++i) {
        const int col = col0 + i * step;
        dy[i] = in_image & Within(col, p.Q)
                    ? __ldg(image + (int64_t{row} * p.Q + col) * p.quads)
                    : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      }
#pragma unroll
      for (int s = 0; s < kTaps; ++s) {
        const float4 w = filter[r * kTaps + s];
#pragma unroll
        for (int j = 0; j < kCols; ++j) {
          const float4 v = dy[kTaps - 1 - s + j];
          sums[j] = fmaf(v.x, w.x, sums[j]);
          sums[j] = fmaf(v.y, w.y, sums[j]);
          sums[j] = fmaf(v.z, w.z, sums[j]);
          sums[j] = fmaf(v.w, w.w, sums[j]);
        }
      }
    }
    float* const to =
        p.out + (int64_t{place.image} * p.H + place.row) * p.W + place.col;
#pragma unroll
    for (int j = 0; j < kCols; ++j) {
      for (int apart = p.quads / 2; apart > 0; apart /= 2) {
        sums[j] += __shfl_xor_sync(~0u, sums[j], apart);
      }
      if (is_there && thread.quad == 0) to[j] = sums[j];
    }
  });
}

// out: [blocks, taps, K], each block's own sums.
template <int kTaps, int kCols>
__global__ void __launch_bounds__(kOneThreads, OneChannelBlocks(kTaps))
    OneChannelWgrad(const __grid_constant__ OneChannelProblem p) {
  constexpr int kWarps = kOneThreads / 32;
  extern __shared__ float4 sums[];  // [warps, taps, quads]
  const OneChannelThread thread(p);
  float4 acc[kTaps * kTaps] = {};
  ForGroups(p, thread, [&](int group, bool is_there) {
    if (!is_there) return;
    const OnePlace place(p, group, kCols);
    const float4* const from =
        reinterpret_cast<const float4*>(p.y) +
        ((int64_t{place.image} * p.P + place.row) * p.Q + place.col) * p.quads +
        thread.quad;
    float4 dy[kCols];
#pragma unroll
    for (int j = 0; j < kCols; ++j) {
      dy[j] = __ldg(from + j * p.quads);
    }
    ForRows<kTaps, kCols>(p, place, [&](int r, const auto& x) {
#pragma unroll
      for (int s = 0; s < kTaps; ++s) {
#pragma unroll
        for (int j = 0; j < kCols; ++j) {
          MultiplyAdd(acc[r * kTaps + s], x[s + j], dy[j]);
        }
      }
    });
  });
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kTaps * kTaps; ++i) {
    for (int apart = 16; apart >= p.quads; apart /= 2) {
      acc[i].x += __shfl_xor_sync(~0u, acc[i].x, apart);
      acc[i].y += __shfl_xor_sync(~0u, acc[i].y, apart);
      acc[i].z += __shfl_xor_sync(~0u, acc[i].z, apart);
      acc[i].w += __shfl_xor_sync(~0u, acc[i].w, apart);
    }
    if (lane < p.quads) {
      sums[(warp * kTaps * kTaps + i) * p.quads + lane] = acc[i];
    }
  }
  __syncthreads();
  const int size = kTaps * kTaps * p.quads;
  for (int i = threadIdx.x; i < size; i += kOneThreads) {
    float4 total = sums[i];
    for (int other = 1; other < kWarps; ++other) {
      const float4 add = sums[other * size + i];
      total = make_float4(total.x + add.x, total.y + add.y, total.z + add.z,
                          total.w + add.w);
    }
    reinterpret_cast<float4*>(p.out)[int64_t{blockIdx.x} * size + i] = total;
  }
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_ONE_CHANNEL_ONE_CHANNEL_CUH_
