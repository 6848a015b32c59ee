// SPDX-License-Identifier: Apache-2.0
// wgrad of grouped convolutions of bf16 and f16, on the tensor cores: for each
// tap the product of 16 channels of x, transposed, and 16 of dy over 16 pixels
// at a time. Products of channels of different groups are computed with the
// others and dropped.
#pragma once

#include "cuda/sm80/direct/grouped.h"
#include "cuda/sm80/direct/grouped_problem.h"
#include "cuda/sm80/direct/mma.cuh"
#include "cuda/sm80/direct/tile_ring.cuh"

namespace jax_convbatch::direct {

template <typename T>
__global__ void __launch_bounds__(kGroupedThreads, 2)
    GroupedWgradKernel(const __grid_constant__ GroupedWgradProblem p) {
  constexpr int kStages = kGroupedWgradStages;
  constexpr int kWarps = kGroupedThreads / 32, kTaps = kRoleTaps;
  extern __shared__ __align__(128) char shared[];
  __shared__ uint4 zeros;
  const WgradRoles& roles = p.roles;
  const int stage_bytes = p.in.bytes() + p.out.bytes();
  uint32_t block = blockIdx.x;
  const int channel_tile = block % p.channel_tiles;
  block /= p.channel_tiles;
  const int role_block = block % roles.blocks;
  const int worker = block / roles.blocks;
  const int first_in = channel_tile * roles.tile_groups * roles.in_group;
  const int first_out = channel_tile * roles.tile_groups * roles.out_group;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (threadIdx.x == 0) zeros = {};

  // What this warp adds up: some taps of 16 x 16 channels.
  const int of_block = min(roles.count - role_block * kWarps, kWarps);
  const int streams = kWarps / of_block;
  const int stream = warp / of_block;
  const int role = role_block * kWarps + warp % of_block;
  const int pair = role / roles.chunks;
  const int first_tap = role % roles.chunks * kTaps;
  const int taps = p.h.filter_size * p.w.filter_size;
  uint32_t offsets[kTaps];
#pragma unroll
  for (int i = 0; i < kTaps; ++i) {
    const int tap = min(first_tap + i, taps - 1);
    offsets[i] = tap / p.w.filter_size * p.h.offset_step * p.in.row_bytes +
                 tap % p.w.filter_size * p.w.offset_step * p.in.pixel_bytes;
  }

  const Stager<T, true> x_stager(p.in, p.x, first_in);
  const Stager<T, true> dy_stager(p.out, p.dy, first_out);
  auto fill = [&](int stage, const TilePlace& place) {
    char* const to = shared + stage * stage_bytes;
    x_stager.Fill(to, place.sample, place.row * p.h.in_step + p.h.origin,
                  place.col * p.w.in_step + p.w.origin);
    dy_stager.Fill(to + p.in.bytes(), place.sample, place.row, place.col);
  };
  TileRing<kStages, decltype(fill)> ring(p.grid, worker, p.workers, fill);

  // Lanes name rows of 8 channels: of x the pixels' halves are in the upper bit
  // of lane / 8, of dy in the lower.
  const int x_pixel = lane % 8 + lane / 16 * 8;
  const int dy_pixel = lane % 8 + lane / 8 % 2 * 8;
  const uint32_t x_channel = (roles.in[pair] * 16 + lane / 8 % 2 * 8) * 2;
  const uint32_t dy_channel = (roles.out[pair] * 16 + lane / 16 * 8) * 2;

  float sums[kTaps][2][4] = {};
  for (int tile = worker; tile < p.grid.tiles; tile += p.workers) {
    const TilePlace place = ring.Wait(tile);
    const uint32_t x_tile = SharedAddress(shared + ring.stage() * stage_bytes);
    const uint32_t dy_tile = x_tile + p.in.bytes();
    const int rows = min(p.grid.tile_h, p.h.out_size - place.row);
    const int cols = min(p.grid.tile_w, p.w.out_size - place.col);
    for (int set = stream < streams ? stream : p.pixel_sets; set < p.pixel_sets;
         set += streams) {
      // Pixels that do not exist are zeros in both: a zero in one would meet
      // the infinities of the other.
      uint32_t row = set * 16 + x_pixel;
      int col = TakeDigit(p.tile_w, row);
      const bool x_exists = static_cast<int>(row) < rows && col < cols;
      const uint32_t x = x_exists ? x_tile + x_channel +
                                        row * p.h.in_step * p.in.row_bytes +
                                        col * p.w.in_step * p.in.pixel_bytes
                                  : SharedAddress(&zeros);
      const uint32_t mask = x_exists ? ~0u : 0u;
      row = set * 16 + dy_pixel;
      col = TakeDigit(p.tile_w, row);
      const bool dy_exists = static_cast<int>(row) < rows && col < cols;
      uint32_t b[4];
      LoadTransposed(b, dy_exists
                            ? dy_tile + dy_channel + row * p.out.row_bytes +
                                  col * p.out.pixel_bytes
                            : SharedAddress(&zeros));
#pragma unroll
      for (int i = 0; i < kTaps; i += 3) {
        if (first_tap + i >= taps) break;
        uint32_t a[3][4];
#pragma unroll
        for (int j = 0; j < 3; ++j) {
          LoadTransposed(a[j], x + (offsets[i + j] & mask));
        }
#pragma unroll
        for (int j = 0; j < 3; ++j) {
          Multiply16<T>(sums[i + j][0], a[j][0], a[j][1], a[j][2], a[j][3],
                        b[0], b[1]);
          Multiply16<T>(sums[i + j][1], a[j][0], a[j][1], a[j][2], a[j][3],
                        b[2], b[3]);
        }
      }
    }
    ring.Advance();
  }
  WaitForCopies<0>();
  __syncthreads();

  // [warp][tap][16 x 16 channels], in place of the tiles.
  auto* const gathered = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int i = 0; i < kTaps; ++i) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int in = lane / 4 + j / 2 % 2 * 8;
      const int out = lane % 4 * 2 + j % 2 + j / 4 * 8;
      gathered[((warp * kTaps + i) * 16 + in) * 16 + out] =
          sums[i][j / 4][j % 4];
    }
  }
  __syncthreads();
  const int count = of_block * kTaps * 256;
  const int channels_in = p.in.channels, channels_out = p.out.channels;
  for (int i = threadIdx.x; i < count; i += kGroupedThreads) {
    const int mine = role_block * kWarps + i / (kTaps * 256);
    const int tap = mine % roles.chunks * kTaps + i / 256 % kTaps;
    const int of_pair = mine / roles.chunks;
    const int in = first_in + roles.in[of_pair] * 16 + i / 16 % 16;
    const int out = first_out + roles.out[of_pair] * 16 + i % 16;
    uint32_t in_group = in, out_group = out;
    const int in_digit = TakeDigit(p.in_group, in_group);
    TakeDigit(p.out_group, out_group);
    if (tap >= taps || in >= channels_in || out >= channels_out ||
        in_group != out_group) {
      continue;
    }
    float sum = 0.0f;
    for (int s = 0; s < streams; ++s) sum += gathered[s * count + i];
    p.partials[((int64_t{worker} * taps + tap) * roles.in_group + in_digit) *
                   channels_out +
               out] = sum;
  }
}

}  // namespace jax_convbatch::direct
