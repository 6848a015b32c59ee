// f32 convolutions of one input channel, on the ordinary cores: a few products
// for each number of y that is read or written.
//
// A thread keeps the filter of four output channels in registers (wgrad: its
// sums) and goes through a block's pixels, which are neighbours, so that x, and
// dy in dgrad, come from the L1 for all taps but the first.
#ifndef JAX_CONVBATCH_CUDA_HOPPER_ONE_CHANNEL_CUH_
#define JAX_CONVBATCH_CUDA_HOPPER_ONE_CHANNEL_CUH_

#include <cstdint>

#include "activation_math.h"
#include "cuda/fast_divmod.h"
#include "cuda/hopper/epilogue.h"

namespace jax_convbatch::hopper {

inline constexpr int kOneThreads = 256;

struct OneChannelProblem {
  const float *x, *w, *y;  // y: dy, where it is read
  float* out;
  int H, W, P, Q;
  int stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
  int quads;                          // of output channels: threads of a pixel
  int pixels;                         // of the batch, of y, in dgrad of x
  int per_block;                      // of them
  FastDivmod<uint32_t> across, down;  // of an image with those pixels
};

// Where a thread works: its four channels, and a pixel among those that the
// block's threads take at once.
struct OneChannelThread {
  int quad, lane, step;

  __device__ explicit OneChannelThread(const OneChannelProblem& p)
      : quad(threadIdx.x % p.quads),
        lane(threadIdx.x / p.quads),
        step(kOneThreads / p.quads) {}
};

struct OnePixel {
  int col, row, image;

  __device__ OnePixel(const OneChannelProblem& p, int pixel) {
    uint32_t rest = pixel;
    col = TakeDigit(p.across, rest);
    row = TakeDigit(p.down, rest);
    image = rest;
  }
};

// Calls visit(pixel, is_there) for the pixels of a thread; all threads of a
// block call as often.
template <typename Visit>
__device__ __forceinline__ void ForPixels(const OneChannelProblem& p,
                                          const OneChannelThread& thread,
                                          Visit visit) {
  const int first = blockIdx.x * p.per_block;
  const int last = min(p.pixels, first + p.per_block);
  for (int base = first; base < last; base += thread.step) {
    const int pixel = base + thread.lane;
    visit(min(pixel, last - 1), pixel < last);
  }
}

// The x of each tap of an output; zeros outside the image.
template <int kTaps>
__device__ __forceinline__ void LoadPatch(const OneChannelProblem& p,
                                          const OnePixel& at,
                                          float (&v)[kTaps * kTaps]) {
  const float* const image = p.x + int64_t{at.image} * p.H * p.W;
  const int h0 = at.row * p.stride_h - p.pad_h;
  const int w0 = at.col * p.stride_w - p.pad_w;
#pragma unroll
  for (int r = 0; r < kTaps; ++r) {
    const int h = h0 + r * p.dilation_h;
#pragma unroll
    for (int s = 0; s < kTaps; ++s) {
      const int w = w0 + s * p.dilation_w;
      const bool inside =
          static_cast<unsigned>(h) < static_cast<unsigned>(p.H) &
          static_cast<unsigned>(w) < static_cast<unsigned>(p.W);
      v[r * kTaps + s] = inside ? __ldg(image + int64_t{h} * p.W + w) : 0.0f;
    }
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

template <int kTaps>
__global__ void __launch_bounds__(kOneThreads)
    OneChannelFprop(const __grid_constant__ OneChannelProblem p,
                    const __grid_constant__ Epilogue e) {
  const OneChannelThread thread(p);
  float4 filter[kTaps * kTaps];
  LoadFilter<kTaps>(p, thread.quad, filter);
  auto channels = [&](const void* from, float none) {
    return from == nullptr
               ? make_float4(none, none, none, none)
               : __ldg(static_cast<const float4*>(from) + thread.quad);
  };
  const float4 scale = channels(e.scale, 1.0f), bias = channels(e.bias, 0.0f);
  ForPixels(p, thread, [&](int pixel, bool is_there) {
    float x[kTaps * kTaps];
    LoadPatch<kTaps>(p, OnePixel(p, pixel), x);
    const int64_t at = int64_t{pixel} * p.quads + thread.quad;
    float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int i = 0; i < kTaps * kTaps; ++i) MultiplyAdd(v, x[i], filter[i]);
    v = make_float4(fmaf(v.x, scale.x, bias.x), fmaf(v.y, scale.y, bias.y),
                    fmaf(v.z, scale.z, bias.z), fmaf(v.w, scale.w, bias.w));
    if (e.residual != nullptr) {
      const float4 add = __ldg(static_cast<const float4*>(e.residual) + at);
      v = make_float4(v.x + add.x, v.y + add.y, v.z + add.z, v.w + add.w);
    }
    if (e.z != nullptr && is_there) static_cast<float4*>(e.z)[at] = v;
    DispatchActivation(e.activation, [&](auto tag) {
      constexpr Activation kActivation = decltype(tag)::value;
      v = make_float4(Activate(kActivation, v.x), Activate(kActivation, v.y),
                      Activate(kActivation, v.z), Activate(kActivation, v.w));
    });
    if (is_there) reinterpret_cast<float4*>(p.out)[at] = v;
    if (e.signs == nullptr) return;
    const uint32_t bits =
        (v.x > 0) | (v.y > 0) << 1 | (v.z > 0) << 2 | (v.w > 0) << 3;
    const uint32_t next = __shfl_down_sync(~0u, bits, 1);
    if (is_there && thread.quad % 2 == 0) {
      e.signs[at / 2] = static_cast<uint8_t>(bits | next << 4);
    }
  });
}

// Of stride 1.
template <int kTaps>
__global__ void __launch_bounds__(kOneThreads)
    OneChannelDgrad(const __grid_constant__ OneChannelProblem p) {
  const OneChannelThread thread(p);
  float4 filter[kTaps * kTaps];
  LoadFilter<kTaps>(p, thread.quad, filter);
  ForPixels(p, thread, [&](int pixel, bool is_there) {
    const OnePixel at(p, pixel);
    const float4* const image = reinterpret_cast<const float4*>(p.y) +
                                int64_t{at.image} * p.P * p.Q * p.quads +
                                thread.quad;
    float sum = 0.0f;
#pragma unroll
    for (int r = 0; r < kTaps; ++r) {
      const int row = at.row + p.pad_h - r * p.dilation_h;
#pragma unroll
      for (int s = 0; s < kTaps; ++s) {
        const int col = at.col + p.pad_w - s * p.dilation_w;
        const bool inside =
            static_cast<unsigned>(row) < static_cast<unsigned>(p.P) &
            static_cast<unsigned>(col) < static_cast<unsigned>(p.Q);
        const float4 dy =
            inside ? __ldg(image + (int64_t{row} * p.Q + col) * p.quads)
                   : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        const float4 w = filter[r * kTaps + s];
        sum = fmaf(dy.x, w.x, sum);
        sum = fmaf(dy.y, w.y, sum);
        sum = fmaf(dy.z, w.z, sum);
        sum = fmaf(dy.w, w.w, sum);
      }
    }
    for (int apart = p.quads / 2; apart > 0; apart /= 2) {
      sum += __shfl_xor_sync(~0u, sum, apart);
    }
    if (is_there && thread.quad == 0) p.out[pixel] = sum;
  });
}

// out: [blocks, taps, K], each block's own sums.
template <int kTaps>
__global__ void __launch_bounds__(kOneThreads)
    OneChannelWgrad(const __grid_constant__ OneChannelProblem p) {
  constexpr int kWarps = kOneThreads / 32;
  extern __shared__ float4 sums[];  // [warps, taps, quads]
  const OneChannelThread thread(p);
  float4 acc[kTaps * kTaps] = {};
  ForPixels(p, thread, [&](int pixel, bool is_there) {
    if (!is_there) return;
    float x[kTaps * kTaps];
    LoadPatch<kTaps>(p, OnePixel(p, pixel), x);
    const float4 dy = __ldg(reinterpret_cast<const float4*>(p.y) +
                            int64_t{pixel} * p.quads + thread.quad);
#pragma unroll
    for (int i = 0; i < kTaps * kTaps; ++i) MultiplyAdd(acc[i], x[i], dy);
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

#endif  // JAX_CONVBATCH_CUDA_HOPPER_ONE_CHANNEL_CUH_
