// SPDX-License-Identifier: Apache-2.0
// What fprop and wgrad of few channels share: bands of image rows in shared
// memory, and pairs of elements of their columns.
//
// Columns are never laid out anywhere: the multiplier takes its left operand
// from registers, and a register is one 4-byte load from the row band.
#pragma once

#include "cuda/sm90/copy/cp_async.cuh"
#include "cuda/sm90/kernels/few_channels/few_channels_problem.h"

namespace jax_convbatch::hopper {

// A stage: the row band, then where in it each pixel of the tile begins (-1:
// there is no such pixel), and for wgrad dy.
inline constexpr int kFewChannelsStages = 3;

__device__ __forceinline__ uint32_t LoadShared(uint32_t address) {
  uint32_t v;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(address));
  return v;
}

__device__ __forceinline__ int2 LoadTwo(uint32_t address) {
  int2 v;
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
               : "=r"(v.x), "=r"(v.y)
               : "r"(address));
  return v;
}

__device__ __forceinline__ int BandBytes(const FewChannelsProblem& problem) {
  return (problem.rows * problem.layout.pitch * 2 + 127) & ~127;
}

// A tile of one image.
struct FewChannelsTile {
  int image, pixel;  // the first

  __device__ FewChannelsTile(const FewChannelsProblem& problem, int tile) {
    image = problem.tiles_image.Divide(tile);
    pixel = (tile - image * int(problem.tiles_image.divisor())) * problem.tile;
  }
};

// Elements [2 pair, 2 pair + 1] of a column: their place relative to the
// pixel's first in bytes, and which of the two belong to the column.
struct BandPair {
  int offset;
  uint32_t mask;

  __device__ BandPair(const FewChannelsLayout& layout, int pair) {
    const int run = layout.pairs.Divide(pair);
    if (run >= layout.runs) {
      offset = 0, mask = 0;
      return;
    }
    const int u = (pair - run * int(layout.pairs.divisor())) * 2;
    const int row = layout.run_cols.Divide(run);
    offset =
        (row * layout.run_row +
         (run - row * int(layout.run_cols.divisor())) * layout.run_col + u) *
        2;
    auto own = [&](int e) {
      return e >= layout.lead && e < layout.lead + layout.length;
    };
    mask = (own(u) ? 0xFFFFu : 0) | (own(u + 1) ? ~0xFFFFu : 0);
  }
};

// The pair at `address`, which is even and, unless kOdd, a multiple of 4.
template <bool kOdd>
__device__ __forceinline__ uint32_t LoadPair(uint32_t address) {
  if constexpr (!kOdd) return LoadShared(address);
  const uint32_t low = LoadShared(address & ~3u);
  const uint32_t high = LoadShared((address & ~3u) + 4);
  return __byte_perm(low, high, address & 2 ? 0x5432 : 0x3210);
}

// Row of the filter matrix that an element of a padded column belongs to, or
// -1.
__device__ __forceinline__ int FilterRow(const FewChannelsLayout& layout,
                                         int j) {
  const int run = layout.pairs.Divide(j / 2);
  const int u = j - run * int(layout.pairs.divisor()) * 2 - layout.lead;
  return run < layout.runs && u >= 0 && u < layout.length
             ? run * layout.length + u
             : -1;
}

// By kThreads threads: where in the row band at `to` each pixel of a tile
// begins.
template <int kThreads>
__device__ __forceinline__ void FillTable(const FewChannelsProblem& problem,
                                          const FewChannelsTile& tile,
                                          uint32_t to) {
  const FewChannelsLayout& layout = problem.layout;
  const int last = min(tile.pixel + problem.tile, problem.pixels) - 1;
  const int first_p = problem.Q.Divide(tile.pixel);
  const uint32_t table = to + BandBytes(problem);
  for (int i = threadIdx.x % kThreads; i < problem.tile; i += kThreads) {
    const int pixel = tile.pixel + i;
    const int p = problem.Q.Divide(pixel);
    const int q = pixel - p * int(problem.Q.divisor());
    const int at = (p - first_p) * problem.stride_h * layout.pitch +
                   q * problem.pixel_step - tile.pixel * problem.part_step +
                   layout.first;
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(table + 4 * i),
                 "r"(pixel <= last ? 2 * at : -1)
                 : "memory");
  }
}

// By kThreads threads: the row band of a tile and its table of pixels, at `to`.
template <int kThreads = kWarpgroup>
__device__ __forceinline__ void FillBand(const FewChannelsProblem& problem,
                                         const FewChannelsTile& tile,
                                         uint32_t to) {
  const int thread = threadIdx.x % kThreads;
  const FewChannelsLayout& layout = problem.layout;
  const int last = min(tile.pixel + problem.tile, problem.pixels) - 1;
  const int first_p = problem.Q.Divide(tile.pixel);
  const int last_p = problem.Q.Divide(last);
  const int first_h = first_p * problem.stride_h - problem.pad_h;
  const int origin = layout.origin + tile.pixel * problem.part_step;
  const int rows = problem.rows -
                   (problem.rows_p - 1 - (last_p - first_p)) * problem.stride_h;
  for (int row = thread / 32; row < rows; row += kThreads / 32) {
    const int h = first_h + row;
    const bool in_image = unsigned(h) < unsigned(problem.H);
    const uint16_t* from =
        problem.x + (int64_t{tile.image} * problem.H + h) * problem.image_row;
    const uint32_t line = to + row * layout.pitch * 2;
    auto copy = [&](auto vector) {
      constexpr int kVector = decltype(vector)::value;
      for (int e = thread % 32 * kVector; e < layout.pitch; e += 32 * kVector) {
        const int v = origin + e;
        const bool in = in_image && unsigned(v) < unsigned(problem.image_row);
        if constexpr (kVector == 1) {
          const uint16_t element = in ? __ldg(from + v) : uint16_t{0};
          asm volatile("st.shared.u16 [%0], %1;" ::"r"(line + 2 * e),
                       "h"(element)
                       : "memory");
        } else {
          CopyAsync<2 * kVector>(line + 2 * e, in ? from + v : problem.x,
                                 in ? 2 * kVector : 0);
        }
      }
    };
    switch (problem.vector) {
      case 8:
        copy(std::integral_constant<int, 8>());
        break;
      case 4:
        copy(std::integral_constant<int, 4>());
        break;
      case 2:
        copy(std::integral_constant<int, 2>());
        break;
      default:
        copy(std::integral_constant<int, 1>());
    }
  }
  FillTable<kThreads>(problem, tile, to);
}

}  // namespace jax_convbatch::hopper
