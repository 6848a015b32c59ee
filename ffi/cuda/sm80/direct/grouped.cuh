// SPDX-License-Identifier: Apache-2.0
// fprop and dgrad of grouped convolutions of bf16 and f16, on the tensor cores.
// As in depthwise.cuh, a block keeps a range of channels and goes through tiles
// of the batch. The columns are not formed: each row of the left operand is
// read from where its pixel lies in the tile. The filter is kept in shared
// memory in the order of the right operand.
#pragma once

#include "cuda/common/dtypes.h"
#include "cuda/sm80/direct/grouped.h"
#include "cuda/sm80/direct/grouped_problem.h"
#include "cuda/sm80/direct/mma.cuh"
#include "cuda/sm80/direct/pairs.cuh"
#include "cuda/sm80/direct/tile_ring.cuh"

namespace jax_convbatch::direct {

// Where a tap of the filter has the value between an input and an output
// channel; negative between groups, where it is zero.
inline __device__ int64_t FilterPlace(const GroupedProblem& p, int in,
                                      int out) {
  uint32_t in_group = in, out_group = out;
  const int in_digit = TakeDigit(p.in_group, in_group);
  const int out_digit = TakeDigit(p.out_group, out_group);
  const ChannelBlocks& c = p.channels;
  if (out >= c.out || in_group != out_group) return -1;
  return p.is_dgrad ? int64_t{out_digit} * c.in + in
                    : int64_t{in_digit} * c.out + out;
}

// Elements of a tap.
inline __device__ int64_t FilterTap(const GroupedProblem& p) {
  const ChannelBlocks& c = p.channels;
  return p.is_dgrad ? int64_t{c.out_group} * c.in : int64_t{c.in_group} * c.out;
}

// One output by itself.
template <typename T>
__device__ float OutputAt(const GroupedProblem& p, int sample, int pixel,
                          int out) {
  const ChannelBlocks& c = p.channels;
  const int h = pixel / p.w.out_size, w = pixel % p.w.out_size;
  const ClassTaps& taps_h = p.h.taps[h % p.h.classes];
  const ClassTaps& taps_w = p.w.taps[w % p.w.classes];
  const int first = out / c.out_group * c.in_group;
  float sum = 0.0f;
  for (int r = 0; r < taps_h.count; ++r) {
    const int y = p.h.origin + taps_h.input + h / p.h.classes * p.h.in_step +
                  r * p.h.offset_step;
    for (int s = 0; s < taps_w.count; ++s) {
      const int x = p.w.origin + taps_w.input + w / p.w.classes * p.w.in_step +
                    s * p.w.offset_step;
      const int tap = (taps_h.first + r * p.h.tap_step) * p.w.filter_size +
                      taps_w.first + s * p.w.tap_step;
      const bool inside =
          y >= 0 && y < p.h.in_size && x >= 0 && x < p.w.in_size;
      const T* from = static_cast<const T*>(p.source) +
                      sample * p.in.sample_stride + y * p.in.row_stride +
                      x * c.in;
      for (int in = first; in < first + c.in_group; ++in) {
        const float value = inside ? Convert<float>(from[in]) : 0.0f;
        const int64_t at = tap * FilterTap(p) + FilterPlace(p, in, out);
        sum = fmaf(value, Convert<float>(static_cast<const T*>(p.filter)[at]),
                   sum);
      }
    }
  }
  return sum;
}

// Where several groups share a matrix, an infinity or nan in one of them meets
// the zeros of the others. This computes again what became nan of a warp's
// outputs; `pixel` is each lane's, or negative.
template <typename T>
__device__ __noinline__ void Repair(const GroupedProblem& p, int sample,
                                    int pixel, int first_out, int outs) {
  __syncwarp();  // Other lanes have written what this one looks at.
  if (pixel < 0) return;
  T* const result =
      static_cast<T*>(p.result) +
      (int64_t{sample} * p.h.out_size * p.w.out_size + pixel) * p.channels.out;
  for (int out = first_out; out < min(first_out + outs, p.channels.out);
       ++out) {
    if (isnan(Convert<float>(result[out]))) {
      result[out] = Convert<T>(OutputAt<T>(p, sample, pixel, out));
    }
  }
}

// Thread t of every four has the pairs of channels 2 t, 2 t + 1 of four blocks;
// afterwards it has block t's eight channels.
__device__ inline void TransposeQuad(uint32_t (&v)[4]) {
  const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t got = __shfl_xor_sync(0xffffffff, odd ? v[i] : v[i + 1], 1);
    (odd ? v[i] : v[i + 1]) = got;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t got = __shfl_xor_sync(0xffffffff, high ? v[i] : v[i + 2], 2);
    (high ? v[i] : v[i + 2]) = got;
  }
}

// kBlocks blocks of channels for each warp; kShared: all of the same input
// channels. kStep of those are multiplied at a time, 8 or 16.
template <typename T, int kBlocks, bool kShared, int kStep>
__global__ void __launch_bounds__(kGroupedThreads, GroupedBlocks(kShared))
    GroupedKernel(const __grid_constant__ GroupedProblem p) {
  static_assert(kShared || kStep == 8);
  extern __shared__ __align__(128) char shared[];
  __shared__ int block_inputs[32];
  const int stage_bytes = p.in.bytes();
  auto* const weights =
      reinterpret_cast<uint32_t*>(shared + kGroupedStages * stage_bytes);
  const ChannelBlocks& channels = p.channels;
  const int tiles = channels.tiles();
  const int first_block = blockIdx.x % tiles * channels.blocks;
  const int worker = blockIdx.x / tiles;
  const int first_in = channels.InOf(first_block);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warps = blockDim.x / 32;

  const Stager<T, true> stager(p.in, p.source, first_in);
  auto fill = [&](int stage, const TilePlace& place) {
    stager.Fill(shared + stage * stage_bytes, place.sample,
                place.row * p.h.in_step + p.h.origin,
                place.col * p.w.in_step + p.w.origin);
  };
  TileRing<kGroupedStages, decltype(fill)> ring(p.grid, worker, p.workers,
                                                fill);

  // [tap][block][step][lane][1 or 2 pairs of input channels]. A warp takes all
  // taps of eight by eight channels: their loads are under way together.
  const int taps = p.h.filter_size * p.w.filter_size;
  const int block_words = channels.depth / 8 * 32;
  const int squares = channels.blocks * channels.depth / 8;
  const int64_t tap_size = FilterTap(p);
  for (int i = warp; i < squares; i += warps) {
    uint32_t block = i;
    const int step = TakeDigit(p.depth_blocks, block);
    const int in = channels.InOf(first_block + static_cast<int>(block)) +
                   step * 8 + lane % 4 * 2;
    const int out = (first_block + static_cast<int>(block)) * 8 + lane / 4;
    const int64_t place[2] = {FilterPlace(p, in, out),
                              FilterPlace(p, in + 1, out)};
    const T* const filter = static_cast<const T*>(p.filter);
    constexpr int kAhead = 9;
    for (int first_tap = 0; first_tap < taps; first_tap += kAhead) {
      T pairs[kAhead][2];
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        const T* const of_tap =
            filter + min(first_tap + j, taps - 1) * tap_size;
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          pairs[j][k] = of_tap[place[k] < 0 ? 0 : place[k]];
        }
      }
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        if (first_tap + j >= taps) break;
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          if (place[k] < 0) pairs[j][k] = T(0.0f);
        }
        constexpr int kHalves = kStep / 8;
        const int row = (first_tap + j) * squares + i;
        weights[(row / kHalves * 32 + lane) * kHalves + row % kHalves] =
            *reinterpret_cast<const uint32_t*>(pairs[j]);
      }
    }
  }
  if (threadIdx.x < channels.blocks) {
    const int block = first_block + threadIdx.x;
    block_inputs[threadIdx.x] =
        block * 8 < channels.out ? (channels.InOf(block) - first_in) * 2 : 0;
  }

  for (int tile = worker; tile < p.grid.tiles; tile += p.workers) {
    const TilePlace place = ring.Wait(tile);

    for (int item = warp; item < p.items; item += warps) {
      uint32_t rest = item;
      const int set = TakeDigit(p.pixel_sets, rest);
      const int class_w = TakeDigit(p.classes_w, rest);
      const int class_h = rest % p.h.classes;
      const int block = rest / p.h.classes * kBlocks;
      const ClassTaps& taps_h = p.h.taps[class_h];
      const ClassTaps& taps_w = p.w.taps[class_w];

      // Each lane's pixel is a row of the left operand.
      uint32_t row = min(set * 32 + lane, p.outputs - 1);
      const int col = TakeDigit(p.tile_w, row);
      const int h = (place.row + static_cast<int>(row)) * p.h.classes + class_h;
      const int w = (place.col + col) * p.w.classes + class_w;
      const bool exists =
          set * 32 + lane < p.outputs && h < p.h.out_size && w < p.w.out_size;
      const int pixel = exists ? h * p.w.out_size + w : -1;
      const uint32_t origin =
          SharedAddress(shared + ring.stage() * stage_bytes) +
          (taps_h.input + row * p.h.in_step) * p.in.row_bytes +
          (taps_w.input + col * p.w.in_step) * p.in.pixel_bytes;

      float sums[2][kBlocks][4] = {};
      uint32_t inputs[kBlocks];
#pragma unroll
      for (int j = 0; j < kBlocks; ++j) {
        inputs[j] = j == 0 || !kShared ? block_inputs[block + j] : 0;
      }
      const uint32_t* const first_weight =
          weights +
          ((taps_h.first * p.w.filter_size + taps_w.first) * channels.blocks +
           block) *
              block_words +
          lane * (kStep / 8);
      const int weight_step = channels.blocks * block_words;
      const int next_row = p.h.tap_step * p.w.filter_size;
      if constexpr (!kShared) {
        // A tap's operands are loaded while those of the tap before are
        // multiplied.
        struct Operands {
          uint32_t a[kBlocks][4], b[kBlocks];
        } even, odd;
        int r = 0, s = 0;
        auto load = [&](Operands& to) {
          const uint32_t at = origin + r * p.h.offset_step * p.in.row_bytes +
                              s * p.w.offset_step * p.in.pixel_bytes;
          const uint32_t* weight =
              first_weight + (r * next_row + s * p.w.tap_step) * weight_step;
#pragma unroll
          for (int j = 0; j < kBlocks; ++j) {
            LoadMatrices(to.a[j], at + inputs[j]);
            to.b[j] = weight[j * 32];
          }
          if (++s == taps_w.count) {
            s = 0;
            ++r;
          }
        };
        auto multiply = [&](const Operands& from) {
#pragma unroll
          for (int j = 0; j < kBlocks; ++j) {
            Multiply8<T>(sums[0][j], from.a[j][0], from.a[j][1], from.b[j]);
            Multiply8<T>(sums[1][j], from.a[j][2], from.a[j][3], from.b[j]);
          }
        };
        const int count = taps_h.count * taps_w.count;
        if (count > 0) load(even);
        for (int i = 0; i < count; i += 2) {
          if (i + 1 < count) load(odd);
          multiply(even);
          if (i + 1 == count) break;
          if (i + 2 < count) load(even);
          multiply(odd);
        }
      } else {
        const int steps = channels.depth / kStep;
        for (int r = 0; r < taps_h.count; ++r) {
          uint32_t at =
              origin + inputs[0] + r * p.h.offset_step * p.in.row_bytes;
          const uint32_t* weight = first_weight + r * next_row * weight_step;
          for (int s = 0; s < taps_w.count; ++s) {
            for (int k = 0; k < steps; ++k) {
              uint32_t a[kStep / 8][4];
#pragma unroll
              for (int i = 0; i < kStep / 8; ++i) {
                LoadMatrices(a[i], at + k * kStep * 2 + i * 16);
              }
#pragma unroll
              for (int j = 0; j < kBlocks; ++j) {
                const uint32_t* b = weight + j * block_words + k * kStep * 4;
                if constexpr (kStep == 8) {
                  Multiply8<T>(sums[0][j], a[0][0], a[0][1], *b);
                  Multiply8<T>(sums[1][j], a[0][2], a[0][3], *b);
                } else {
                  const uint2 both = *reinterpret_cast<const uint2*>(b);
                  Multiply16<T>(sums[0][j], a[0][0], a[0][1], a[1][0], a[1][1],
                                both.x, both.y);
                  Multiply16<T>(sums[1][j], a[0][2], a[0][3], a[1][2], a[1][3],
                                both.x, both.y);
                }
              }
            }
            at += p.w.offset_step * p.in.pixel_bytes;
            weight += p.w.tap_step * weight_step;
          }
        }
      }

      T* const result =
          static_cast<T*>(p.result) +
          int64_t{place.sample} * p.h.out_size * p.w.out_size * channels.out;
      float poison = 0.0f;  // nan where any sum is
#pragma unroll
      for (int quarter = 0; quarter < 4; ++quarter) {
        // Sums of pixel lane / 4 of this quarter.
        const int of_row =
            __shfl_sync(0xffffffff, pixel, quarter * 8 + lane / 4);
        uint32_t rounded[kBlocks];
#pragma unroll
        for (int j = 0; j < kBlocks; ++j) {
          const float* sum = &sums[quarter / 2][j][quarter % 2 * 2];
          typename PairOf<T>::type value;
          Round({sum[0], sum[1]}, &value);
          rounded[j] = *reinterpret_cast<uint32_t*>(&value);
          poison += sum[0] + sum[1];
        }
        T* const to = result + of_row * channels.out;
        if constexpr (kBlocks == 4) {
          TransposeQuad(rounded);
          const int out = (first_block + block + lane % 4) * 8;
          if (of_row >= 0 && out < channels.out) {
            *reinterpret_cast<uint4*>(to + out) =
                *reinterpret_cast<uint4*>(rounded);
          }
        } else {
#pragma unroll
          for (int j = 0; j < kBlocks; ++j) {
            const int out = (first_block + block + j) * 8 + lane % 4 * 2;
            if (of_row >= 0 && out < channels.out) {
              *reinterpret_cast<uint32_t*>(to + out) = rounded[j];
            }
          }
        }
      }
      if (channels.mixed() && __any_sync(0xffffffff, isnan(poison))) {
        Repair<T>(p, place.sample, pixel, (first_block + block) * 8,
                  kBlocks * 8);
      }
    }
    ring.Advance();
  }
}

}  // namespace jax_convbatch::direct
