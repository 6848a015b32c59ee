// fprop and dgrad of f32, multiplied as TF32: the transpose of the product that
// conv_kernel.cuh computes, in the same persistent, warp-specialised way.
//
// The multiplier takes TF32 from shared memory only where the reduction is
// contiguous. Pixels have their channels so, and are the right operand; the
// filter is the left one, which may come from registers. dgrad's filter has the
// reduction contiguous too; fprop's has output channels contiguous, and the
// registers are loaded across its rows. Swapped roles also suit few output
// channels: a multiplication of 64 rows by 256 columns reads shared memory
// less than one of 64 by 64.
//
// The reduction is never split: every tile shape adds in the same order.
#ifndef JAX_CONVBATCH_CUDA_HOPPER_CONV_TF32_KERNEL_CUH_
#define JAX_CONVBATCH_CUDA_HOPPER_CONV_TF32_KERNEL_CUH_

#include "cuda/hopper/conv_kernel.cuh"
#include "cuda/hopper/epilogue_f32.cuh"
#include "cuda/hopper/tf32_fragments.cuh"

namespace jax_convbatch::hopper {

// Named barriers: 1 and 2 are the stores', these order the warpgroups' turns.
inline constexpr int kTurnBarrier = 3;

// kM pixels by kN channels. kWeights: kRows where output channels are
// contiguous (fprop), kReduction where input channels are (dgrad).
template <int kM_, int kN_, int kStages_, Contiguous kWeights_>
struct Tf32Config {
  static constexpr int kM = kM_, kN = kN_, kStages = kStages_;
  static constexpr Contiguous kWeights = kWeights_;

  static constexpr int kBlocks = kN / 64;  // rows of the multiplication
  static constexpr int kInputBytes = kM * 128;
  static constexpr int kStageBytes = kInputBytes + kN * 128;
  static constexpr int kRingBytes = kStages * kStageBytes;
  // A warpgroup writes its tile this many pixels at a time. More would cost
  // 256 x 64 its fifth stage.
  static constexpr int kStorePixels = 32;
  static constexpr int kStoreBoxBytes = kStorePixels * 128;
  static constexpr int kStoreBytes = kN / kTf32Block * kStoreBoxBytes;
  static constexpr int kSharedBytes =
      kRingBytes + kConsumers * kStoreBytes + 1024;
};

template <typename Config, Operand kOperand, int kParts>
__device__ __forceinline__ void IssueTf32Copies(
    const ConvProblem<kParts>& problem, uint32_t ring,
    RingBarriers<Config::kStages>& barriers) {
  RingPosition<Config::kStages> at;
  for (int t = blockIdx.x; t < problem.tiles; t += gridDim.x) {
    const ConvTile tile = TileAt<Config>(problem, t);
    const ConvPart& part = *tile.part;
    const int row = tile.pixel / part.cols;
    const int image = row / part.rows;
    const int w =
        part.input_w + (tile.pixel - row * part.cols) * part.input_step_w;
    const int h = part.input_h + (row - image * part.rows) * part.input_step_h;
    // Boxes past the last channel are left out, and what they would have given
    // is not written.
    const int boxes =
        (min(Config::kN, problem.channels - tile.channel) + kTf32Block - 1) /
        kTf32Block;

    int r = 0, s = 0, block = 0;
    for (int i = 0; i < tile.iterations; ++i) {
      const uint32_t full = SharedAddress(&barriers.full[at.stage]);
      const uint32_t input = ring + at.stage * Config::kStageBytes;
      const uint32_t weights = input + Config::kInputBytes;
      const int c = block * kTf32Block;
      BarrierWait(SharedAddress(&barriers.empty[at.stage]), at.round ^ 1);
      if constexpr (kOperand == Operand::kInput) {
        BarrierArriveExpect(full, Config::kInputBytes);
        LoadIm2col(input, part.input, full, c, w, h, image,
                   s * part.taps_w.offset_step, r * part.taps_h.offset_step);
      } else {
        const int filter_tap = (part.taps_h.tap + r * part.taps_h.tap_step) *
                                   problem.filter_width +
                               part.taps_w.tap + s * part.taps_w.tap_step;
        if constexpr (Config::kWeights == Contiguous::kRows) {
          BarrierArriveExpect(full, boxes * kTf32Block * 128);
#pragma unroll
          for (int n = 0; n < Config::kN / kTf32Block; ++n) {
            if (n >= boxes) break;
            LoadTile3(weights + n * kTf32Block * 128, problem.weights, full,
                      tile.channel + n * kTf32Block, c, filter_tap);
          }
        } else {
          BarrierArriveExpect(full, Config::kN * 128);
          LoadTile3(weights, problem.weights, full, c, tile.channel,
                    filter_tap);
        }
      }
      at.Advance();
      if (++block == problem.channel_blocks) {
        block = 0;
        if (++s == part.taps_w.count) {
          s = 0;
          ++r;
        }
      }
    }
  }
}

// One warpgroup's way out: boxes of kStorePixels pixels x 32 channels, written
// by every thread, stored by one. A kDense output is one matrix of pixels and
// channels.
template <typename Config, bool kDense>
class Tf32Store {
 public:
  __device__ Tf32Store(int group, uint32_t buffer)
      : barrier_(1 + group), buffer_(buffer) {
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

  __device__ __forceinline__ void Store(
      const float (&acc)[Config::kBlocks][Config::kM / 2], const ConvPart& part,
      int pixel, int channel, int channels) {
#pragma unroll
    for (int p = 0; p < Config::kM; p += Config::kStorePixels) {
      if (pixel + p >= part.pixels) return;
      const int thread = threadIdx.x % kWarpgroup;
      if (thread == 0) StoreWaitRead<0>();
      NamedBarrier(barrier_, kWarpgroup);
#pragma unroll
      for (int j = 0; j < Config::kStorePixels; j += 8) {
        Write(acc, p + j, j, 0);
        Write(acc, p + j, j, 1);
      }
      FenceAsyncProxy();
      NamedBarrier(barrier_, kWarpgroup);
      if (thread == 0) Send(part, pixel + p, channel, channels);
    }
  }

  // The same with an epilogue, which fprop alone has.
  __device__ __forceinline__ void Store(const Epilogue& e,
                                        const float (&acc)[1][Config::kM / 2],
                                        const ConvPart& part, int pixel,
                                        int channel, int channels) {
    constexpr int kPixels = Config::kStorePixels;
    const FragmentLane<1> lane(threadIdx.x);
    const int k =
        channel + lane.box * kTf32Block + lane.chunk * 4 + lane.half * 2;
    const int thread = threadIdx.x % kWarpgroup;
    PairEpilogue<kPixels> epilogue(e, k, channels, pixel + 2 * (thread % 4),
                                   min(part.pixels, pixel + Config::kM));
    DispatchActivation(e.activation, [&](auto tag) {
#pragma unroll
      for (int p = 0; p < Config::kM; p += kPixels) {
        if (pixel + p >= part.pixels) return;
        float v[kPixels / 2];
#pragma unroll
        for (int i = 0; i < kPixels / 2; ++i) v[i] = acc[0][p / 2 + i];
        epilogue.template Apply<decltype(tag)::value>(e, p, v);
        if (thread == 0) StoreWaitRead<0>();
        NamedBarrier(barrier_, kWarpgroup);
#pragma unroll
        for (int j = 0; j < kPixels; j += 8) {
#pragma unroll
          for (int odd = 0; odd < 2; ++odd) {
            const float* pair = &v[j / 2 + odd];
            StoreShared2(Address(j, odd, chunk_),
                         make_float2(pair[0], pair[2]));
          }
        }
        FenceAsyncProxy();
        NamedBarrier(barrier_, kWarpgroup);
        if (thread == 0) Send(part, pixel + p, channel, channels);
      }
    });
  }

  // Shared memory must outlive the stores that read it.
  __device__ void Finish() {
    if (threadIdx.x % kWarpgroup == 0) StoreWaitRead<0>();
  }

 private:
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

  __device__ __forceinline__ void Send(const ConvPart& part, int pixel,
                                       int channel, int channels) {
    const int row = pixel / part.cols;
    const int image = row / part.rows;
    const int w =
        part.output_w + (pixel - row * part.cols) * part.output_step_w;
    const int h =
        part.output_h + (row - image * part.rows) * part.output_step_h;
#pragma unroll
    for (int n = 0; n < Config::kN / kTf32Block; ++n) {
      const int c = channel + n * kTf32Block;
      if (c >= channels) break;
      const uint32_t box = buffer_ + n * Config::kStoreBoxBytes;
      if constexpr (kDense) {
        StoreTile2(part.output, box, c, pixel);
      } else {
        StoreIm2col(part.output, box, c, w, h, image);
      }
    }
    StoreCommit();
  }

  int barrier_, chunk_;
  uint32_t buffer_, offset_;
};

template <typename Config, int kParts, typename After>
__device__ __forceinline__ void ConsumeTf32(
    const ConvProblem<kParts>& problem, const After& after, int group,
    uint32_t ring, RingBarriers<Config::kStages>& barriers) {
  Tf32Store<Config, kParts == 1> out(
      group, ring + Config::kRingBytes + group * Config::kStoreBytes);
  // Lane % 4 takes rows of the filter in order, as the multiplier takes the
  // pixels' channels.
  const FragmentLoader<Config::kBlocks> loader(threadIdx.x % 4, 4);
  RingPosition<Config::kStages> at;
  int turn = 0;
  for (int t = blockIdx.x; t < problem.tiles; t += gridDim.x, ++turn) {
    const ConvTile tile = TileAt<Config>(problem, t);
    if (turn % kConsumers != group) {
      at.Skip(tile.iterations);
      continue;
    }
    // As in conv_kernel.cuh.
    if (turn > 0) NamedBarrier(kTurnBarrier + group, 2 * kWarpgroup);
    float acc[Config::kBlocks][Config::kM / 2];
    if constexpr (Config::kWeights == Contiguous::kRows) {
      MultiplyFragments(acc, tile.iterations, ring + Config::kInputBytes, ring,
                        Config::kStageBytes, loader, barriers, at);
    } else {
      MultiplyStages<float, Contiguous::kReduction, Contiguous::kReduction>(
          acc, tile.iterations, ring + Config::kInputBytes, ring,
          Config::kStageBytes, barriers, at);
    }
    if (t + gridDim.x < problem.tiles) {
      NamedBarrierArrive(kTurnBarrier + 1 - group, 2 * kWarpgroup);
    }
    if constexpr (After::kPresent) {
      out.Store(after, acc, *tile.part, tile.pixel, tile.channel,
                problem.channels);
    } else {
      out.Store(acc, *tile.part, tile.pixel, tile.channel, problem.channels);
    }
  }
  out.Finish();
}

template <typename Config, int kParts, typename After>
__global__ void __launch_bounds__(kThreads, 1)
    ConvTf32Kernel(const __grid_constant__ ConvProblem<kParts> problem,
                   const __grid_constant__ After after) {
  extern __shared__ uint8_t shared[];
  __shared__ RingBarriers<Config::kStages> barriers;
  const uint32_t ring = (SharedAddress(shared) + 1023) & ~1023u;
  if (threadIdx.x == 0) barriers.Init(2, kWarpgroup / 32);
  __syncthreads();

  const int warpgroup = threadIdx.x / kWarpgroup;
  if (warpgroup == 0) {
    GiveRegisters<kProducerRegisters>();
    if (threadIdx.x == 0) {
      IssueTf32Copies<Config, Operand::kInput>(problem, ring, barriers);
    } else if (threadIdx.x == 32) {
      IssueTf32Copies<Config, Operand::kWeights>(problem, ring, barriers);
    }
  } else {
    TakeRegisters<kConsumerRegisters>();
    ConsumeTf32<Config>(problem, after, warpgroup - 1, ring, barriers);
  }
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_HOPPER_CONV_TF32_KERNEL_CUH_
