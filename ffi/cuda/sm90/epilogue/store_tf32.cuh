// SPDX-License-Identifier: Apache-2.0
// The way out of conv_tf32_kernel.cuh: each warpgroup writes its tile a few
// pixels at a time to a buffer of its own.
#pragma once

#include "cuda/sm90/copy/group_copies.cuh"
#include "cuda/sm90/copy/pipeline.cuh"
#include "cuda/sm90/epilogue/epilogue_f32.cuh"
#include "cuda/sm90/epilogue/store_tile.cuh"
#include "cuda/sm90/mainloop/tf32_fragments.cuh"
#include "cuda/sm90/problem/conv_problem.h"
#include "cuda/sm90/problem/group_width.h"

namespace jax_convbatch::hopper {

// [K], or null: what follows products of columns, see column_gemm.h.
struct ChannelBias {
  static constexpr bool kPresent = true;
  const float* bias;
};

template <typename Config, int kSubs>
inline constexpr Output kTf32Output = kSubs > 1            ? Output::kWalk
                                      : Config::kTaps == 1 ? Output::kMatrix
                                                           : Output::kThreads;

// One warpgroup's way out: boxes of kStorePixels pixels x 32 channels, written
// by every thread, stored by one, or by all.
template <typename Config, Output kOutput>
class Tf32Store {
 public:
  // volumes: of ConvProblem, where the output is walked.
  __device__ Tf32Store(int group, uint32_t buffer, bool volumes = false)
      : barrier_(1 + group), volumes_(volumes), buffer_(buffer) {
    const int warp = threadIdx.x % kWarpgroup / 32;
    const int g = threadIdx.x % 32 / 4;
    const int t = threadIdx.x % 4;
    if constexpr (Config::kWeights == Contiguous::kRows) {
      const FragmentLane<Config::kBlocks> lane(threadIdx.x);
      chunk_ = lane.chunk;
      offset_ = lane.box * Config::kStoreBoxBytes + 2 * t * 128 + lane.half * 8;
    } else {
      chunk_ = warp % 2 * 4 + g / 4;
      offset_ = warp / 2 * Config::kStoreBoxBytes + 2 * t * 128 + g % 4 * 4;
    }
  }

  // Of kAnyGroups: the channels of what is stored next are those of `group`,
  // and a pixel has `line` of them in all.
  __device__ __forceinline__ void EnterGroup(int group, int line) {
    group_ = group;
    line_ = line;
  }

  // Of kPartials: what is stored next is this K slice's.
  __device__ __forceinline__ void EnterKSlice(int k_slice) {
    k_slice_ = k_slice;
  }

  __device__ __forceinline__ void Store(
      const float (&acc)[Config::kBlocks][Config::kM / 2],
      const ConvSubproblem& sub, int pixel, int channel, int channels) {
#pragma unroll
    for (int p = 0; p < Config::kM; p += Config::kStorePixels) {
      if (pixel + p >= sub.pixels) return;
      const int thread = threadIdx.x % kWarpgroup;
      NextBuffer(thread);
#pragma unroll
      for (int j = 0; j < Config::kStorePixels; j += 8) {
        Write(acc, p + j, j, 0);
        Write(acc, p + j, j, 1);
      }
      Leave(sub, pixel + p, channel, channels);
    }
  }

  // The same with a bias, for filters whose rows are channels.
  __device__ __forceinline__ void Store(
      const ChannelBias& epilogue,
      float (&acc)[Config::kBlocks][Config::kM / 2], const ConvSubproblem& sub,
      int pixel, int channel, int channels) {
    static_assert(Config::kWeights == Contiguous::kReduction);
    if (epilogue.bias != nullptr) {
      const int row = threadIdx.x % kWarpgroup / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
      for (int m = 0; m < Config::kBlocks; ++m) {
        const int k = channel + m * 64 + row;
        const float low = k < channels ? __ldg(epilogue.bias + k) : 0.0f;
        const float high =
            k + 8 < channels ? __ldg(epilogue.bias + k + 8) : 0.0f;
#pragma unroll
        for (int i = 0; i < Config::kM / 2; ++i) {
          acc[m][i] += i & 2 ? high : low;
        }
      }
    }
    Store(acc, sub, pixel, channel, channels);
  }

  // The same with an epilogue, which fprop alone has.
  __device__ __forceinline__ void Store(const Epilogue& e,
                                        const float (&acc)[1][Config::kM / 2],
                                        const ConvSubproblem& sub, int pixel,
                                        int channel, int channels) {
    constexpr int kPixels = Config::kStorePixels;
    const FragmentLane<1> lane(threadIdx.x);
    const int k =
        channel + lane.box * kTf32Block + lane.chunk * 4 + lane.half * 2;
    const int thread = threadIdx.x % kWarpgroup;
    PairEpilogue<kPixels> epilogue(e, k, channels, pixel + 2 * (thread % 4),
                                   min(sub.pixels, pixel + Config::kM));
    DispatchActivation(e.activation, [&](auto tag) {
#pragma unroll
      for (int p = 0; p < Config::kM; p += kPixels) {
        if (pixel + p >= sub.pixels) return;
        float v[kPixels / 2];
#pragma unroll
        for (int i = 0; i < kPixels / 2; ++i) v[i] = acc[0][p / 2 + i];
        epilogue.template Apply<decltype(tag)::value>(e, p, v);
        NextBuffer(thread);
#pragma unroll
        for (int j = 0; j < kPixels; j += 8) {
#pragma unroll
          for (int odd = 0; odd < 2; ++odd) {
            const float* pair = &v[j / 2 + odd];
            StoreShared2(Address(j, odd, chunk_),
                         make_float2(pair[0], pair[2]));
          }
        }
        Leave(sub, pixel + p, channel, channels);
        if (e.bitmask != nullptr) {
          BitmaskAt(sub, pixel + p, channel, channels, e.bitmask);
        }
      }
    });
  }

  // Zeros to a tile of each sub-problem, where no tap reaches; before the
  // warpgroup's own.
  __device__ __forceinline__ void StoreZeros(const ConvSubproblem* subs,
                                             int count, int pixel, int channel,
                                             int channels) {
    const int thread = threadIdx.x % kWarpgroup;
    for (int i = thread * 16; i < Config::kStoreBytes; i += kWarpgroup * 16) {
      StoreShared4(buffer_ + i, make_float4(0, 0, 0, 0));
    }
    FenceAsyncProxy();
    NamedBarrier(barrier_, kWarpgroup);
    if (thread != 0) return;
    for (int i = 0; i < count; ++i) {
#pragma unroll
      for (int p = 0; p < Config::kM; p += Config::kStorePixels) {
        if (pixel + p < subs[i].pixels) {
          Send(subs[i], pixel + p, channel, channels);
        }
      }
    }
  }

  // Shared memory must outlive the stores that read it.
  __device__ void Finish() {
    if (threadIdx.x % kWarpgroup == 0) StoreWaitRead<0>();
  }

 private:
  // Until a buffer is free.
  __device__ __forceinline__ void NextBuffer(int thread) {
    constexpr int kBuffers = Config::kStoreBuffers;
    if (thread == 0) StoreWaitRead<kBuffers - 1>();
    NamedBarrier(barrier_, kWarpgroup);
    if constexpr (kBuffers == 2) {
      buffer_ += next_;
      next_ = -next_;
    } else if constexpr (kBuffers > 2) {
      next_ = next_ == kBuffers - 1 ? 0 : next_ + 1;
      buffer_ += next_ == 0 ? -(kBuffers - 1) * Config::kStoreBytes
                            : Config::kStoreBytes;
    }
  }

  // What every thread has written.
  __device__ __forceinline__ void Leave(const ConvSubproblem& sub, int pixel,
                                        int channel, int channels) {
    if constexpr (kOutput == Output::kThreads) {
      NamedBarrier(barrier_, kWarpgroup);
      Copy(sub, pixel, channel, channels);
    } else {
      FenceAsyncProxy();
      NamedBarrier(barrier_, kWarpgroup);
      if (threadIdx.x % kWarpgroup == 0) Send(sub, pixel, channel, channels);
    }
  }

  // 16 bytes of the pixel that Write speaks of.
  __device__ __forceinline__ uint32_t Address(int pixel, int odd,
                                              int chunk) const {
    const int swizzle = 2 * (threadIdx.x % 4) + odd;
    return buffer_ + offset_ + (pixel + odd) * 128 + ((chunk ^ swizzle) << 4);
  }

  // The thread's accumulators of column `column` + 2 t + odd, t its lane % 4,
  // to pixel `pixel` + 2 t + odd of the buffer.
  __device__ __forceinline__ void Write(
      const float (&acc)[Config::kBlocks][Config::kM / 2], int column,
      int pixel, int odd) {
    const int i = column / 2 + odd;
    auto at = [&](int chunk) { return Address(pixel, odd, chunk); };
    if constexpr (Config::kWeights == Contiguous::kReduction) {
      // Rows are channels in order: lane / 4 and 8 more of the warp's 16.
#pragma unroll
      for (int m = 0; m < Config::kBlocks; ++m) {
        const uint32_t box = m * 2 * Config::kStoreBoxBytes;
        StoreShared1(at(chunk_) + box, acc[m][i]);
        StoreShared1(at(chunk_ + 2) + box, acc[m][i + 2]);
      }
    } else if constexpr (Config::kBlocks == 2) {
      StoreShared4(at(chunk_), make_float4(acc[0][i], acc[0][i + 2], acc[1][i],
                                           acc[1][i + 2]));
    } else {
      StoreShared2(at(chunk_), make_float2(acc[0][i], acc[0][i + 2]));
    }
  }

  __device__ __forceinline__ void Send(const ConvSubproblem& sub, int pixel,
                                       int channel, int channels) {
    if constexpr (kInGroups && kOutput == Output::kWalk) {
      const int step = GroupStorePixels(sub.pixels, Config::kStorePixels);
      const int end = min(Config::kStorePixels, sub.pixels - pixel);
      for (int p = 0; p < end; p += step) {
        SendBoxes(sub, pixel + p, channel, channels, p * 128);
      }
    } else {
      SendBoxes(sub, pixel, channel, channels, 0);
    }
    StoreCommit();
  }

  // Those of pixels that lie `offset` bytes into the buffer's.
  __device__ __forceinline__ void SendBoxes(const ConvSubproblem& sub,
                                            int pixel, int channel,
                                            int channels, int offset) {
    const PixelPlace at = OutputPixel(sub, pixel);
#pragma unroll
    for (int n = 0; n < Config::kGroupN / kTf32Block; ++n) {
      const int c = channel + n * kTf32Block;
      if (c >= channels) break;
      const uint32_t box = buffer_ + n * Config::kStoreBoxBytes + offset;
      if constexpr (kInGroups && kOutput == Output::kMatrix) {
        StoreTile3(sub.output, box, c, group_, pixel);
      } else if constexpr (kInGroups) {
        StoreGroupIm2col(sub.output, box, c, at.w, at.h, at.image, group_);
      } else if constexpr (kOutput == Output::kMatrix) {
        StoreTile2(sub.output, box, c, pixel);
      } else if constexpr (kOutput == Output::kPartials) {
        StoreTile3(sub.output, box, c, pixel, k_slice_);
      } else {
        StorePixels(volumes_, sub.output, box, c, at);
      }
    }
  }

  // Calls visit(line, place) for the buffer's pixels that are stored, eight
  // neighbouring threads a pixel; place is its number among the output's.
  template <typename Visit>
  __device__ __forceinline__ void ForLines(const ConvSubproblem& sub, int pixel,
                                           Visit visit) {
    const int thread = threadIdx.x % kWarpgroup;
#pragma unroll
    for (int i = 0; i < Config::kStorePixels; i += kWarpgroup / 8) {
      const int line = thread / 8 + i;
      if (line >= Config::kStorePixels || pixel + line >= sub.pixels) continue;
      if constexpr (kOutput == Output::kThreads) {
        const int cols =
            sub.cols - (sub.taps_w.count - 1) * sub.taps_w.offset_step;
        const int row = (pixel + line) / sub.cols;
        const int col = pixel + line - row * sub.cols;
        if (col < cols) visit(line, int64_t{row} * cols + col);
      } else {
        visit(line, int64_t{pixel} + line);
      }
    }
  }

  __device__ __forceinline__ void Copy(const ConvSubproblem& sub, int pixel,
                                       int channel, int channels) {
    const int chunk = threadIdx.x % 8;
    ForLines(sub, pixel, [&](int line, int64_t place) {
      float* const to =
          static_cast<float*>(sub.output_data) +
          (kInGroups ? place * line_ + group_ * channels : place * channels);
      const uint32_t from = buffer_ + line * 128 + ((chunk ^ line % 8) << 4);
#pragma unroll
      for (int n = 0; n < Config::kGroupN / kTf32Block; ++n) {
        const int c = channel + n * kTf32Block + chunk * 4;
        if (c < channels) {
          *reinterpret_cast<float4*>(to + c) =
              LoadShared4(from + n * Config::kStoreBoxBytes);
        }
      }
    });
  }

  // Of fprop's pixels, as Epilogue says: a byte for two chunks.
  __device__ __forceinline__ void BitmaskAt(const ConvSubproblem& sub,
                                            int pixel, int channel,
                                            int channels, uint8_t* bitmask) {
    const int eight = threadIdx.x % 8;
    const int c = channel + eight * 8;
    if (c >= channels) return;
    const uint32_t box = buffer_ + eight / 4 * Config::kStoreBoxBytes;
    ForLines(sub, pixel, [&](int line, int64_t place) {
      uint32_t bits = 0;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int chunk = eight % 4 * 2 + i;
        const float4 v =
            LoadShared4(box + line * 128 + ((chunk ^ line % 8) << 4));
        bits |= ((v.x > 0) | (v.y > 0) << 1 | (v.z > 0) << 2 | (v.w > 0) << 3)
                << 4 * i;
      }
      bitmask[(place * channels + c) / 8] = static_cast<uint8_t>(bits);
    });
  }

  static constexpr bool kInGroups = Config::kWidth == kAnyGroups;

  // The next buffer of two lies so many bytes further; of more, which it is.
  int next_ = Config::kStoreBuffers == 2 ? Config::kStoreBytes : 0;
  int barrier_, chunk_;
  int group_ = 0, line_ = 0, k_slice_ = 0;
  bool volumes_;
  uint32_t buffer_, offset_;
};

}  // namespace jax_convbatch::hopper
