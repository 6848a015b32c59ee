// SPDX-License-Identifier: Apache-2.0
// How the sums of wgrad's tiles get to dw.
//
// Of the wgmma's 64 x 64 blocks of a thread's tile, Config's kTransposed says
// that rows are output channels and columns input channels (otherwise it is the
// other way round), and Origin() where one lies in dw.
#pragma once

#include <type_traits>

#include "cuda/sm90/copy/pipeline.cuh"
#include "cuda/sm90/mainloop/tf32_fragments.cuh"
#include "cuda/sm90/problem/group_width.h"
#include "cuda/sm90/problem/wgrad_problem.h"
#include "cuda/sm90/problem/wgrad_tiling.h"

namespace jax_convbatch::hopper {

// The kWidth of narrow groups of f32, of any width: it is the dw's C.
inline constexpr int kNarrowTf32 = 32;

// A block: input channels of a tap from c on, output channels from k on, of
// those up to k_end.
struct BlockOrigin {
  int tap, c, k, k_end;
};

// Whether a thread's quad of a tile is in dw: of narrow groups it must lie on
// the diagonal, where a group's input channels meet its own output channels.
// The same for all threads of a warp.
template <typename Config>
__device__ __forceinline__ bool HasQuad(const WgradTiles& tiles, int tile,
                                        int quad, int thread) {
  if constexpr (kIsNarrow<Config::kWidth>) {
    if constexpr (std::is_same_v<typename Config::T, float>) {
      // Of 32 channels or fewer; PlaceOf says which threads have narrower ones.
      if (quad % 8 / 4 != FragmentLane<1>(thread).box) return false;
    } else {
      const int group = thread % kWarpgroup / 32 * 16 / Config::kWidth;
      if (quad % 8 * 8 / Config::kWidth != group) return false;
    }
  }
  return Config::Has(tiles, tile, quad / 8, thread);
}

// Where eight quads of a wgmma's thread lie in dw. A quad is four accumulators:
// of eight columns of the product two, of two rows; eight quads are a block of
// 64 columns.
template <typename T>
struct QuadsPlace {
  T* first;
  int64_t quad_stride, row_stride;
  int quads;                   // that are in dw
  bool has_first, has_second;  // of the two rows
  // Groups of 8 channels or fewer: of even quads only the first row is in dw,
  // of odd ones the second.
  bool in_eights = false;
};

template <typename Config>
__device__ __forceinline__ QuadsPlace<typename Config::T> PlaceOf(
    const WgradTiles& tiles, int tile, int block, int thread) {
  using T = typename Config::T;
  auto [tap, c, k, k_end] = Config::Origin(tiles, tile, block, thread);
  const int row = thread % kWarpgroup / 32 * 16;
  QuadsPlace<T> place;
  if constexpr (std::is_same_v<T, float>) {
    // Two output channels of two input channels: wgrad_halo_tf32_kernel.cuh.
    const FragmentLane<1> lane(thread);
    c += thread % 4 * 8;
    k += lane.box * 32 + lane.chunk * 4 + lane.half * 2;
    place.quad_stride = tiles.K;
    place.row_stride = int64_t{4} * tiles.K;
    place.quads = (tiles.C - c + 31) / 32 * 4;
    place.has_first = place.has_second = k < k_end;
    if constexpr (kIsNarrow<Config::kWidth>) {
      // A thread's input channels are of one group: eight of 32.
      const int group = thread % 4 * 8 / tiles.C;
      c -= lane.box * 32 + group * tiles.C;
      place.quads = 8;
      place.has_first &= k < tiles.K && k % 32 / tiles.C == group;
      place.has_second = place.has_first;
    }
  } else if constexpr (Config::kTransposed) {
    // TransposeMatrix gives a lane two output channels of one input channel.
    c += thread % 32 / 4;
    if constexpr (kIsNarrow<Config::kWidth>)
      c -= row / Config::kWidth * Config::kWidth;
    k += row + thread % 4 * 2;
    place.quad_stride = int64_t{8} * tiles.K;
    place.row_stride = 8;
    place.quads = kIsNarrow<Config::kWidth> ? 8 : (tiles.C - c + 7) / 8;
    place.has_first = k < k_end;
    place.has_second = k + 8 < k_end;
  } else {
    c += row + thread % 32 / 4;
    if constexpr (kIsNarrow<Config::kWidth>)
      c -= row / Config::kWidth * Config::kWidth;
    place.quads = (k_end - k) / 8;
    k += thread % 4 * 2;
    place.quad_stride = 8;
    place.row_stride = int64_t{8} * tiles.K;
    place.has_first = c < tiles.C;
    place.has_second = c + 8 < tiles.C;
  }
  if constexpr (Config::kWidth == kFewWidth && !std::is_same_v<T, float>) {
    if (tiles.C < kFewWidth) {
      // Both rows are those of one input channel of a group, as is every quad.
      const int row_of_eight = thread % 32 / 4, column = thread % 4 * 2;
      const bool together = (row_of_eight ^ column) < tiles.C;
      c = row_of_eight & (tiles.C - 1);
      (Config::kTransposed ? place.quad_stride : place.row_stride) = 0;
      place.has_first = together && (!Config::kTransposed || place.has_first);
      place.has_second = together && (!Config::kTransposed || place.has_second);
      place.in_eights = true;
    }
  }
  place.first =
      static_cast<T*>(tiles.dw) + (int64_t{tap} * tiles.C + c) * tiles.K + k;
  return place;
}

// By whole warps.
template <typename Config>
__device__ __forceinline__ void WriteQuad(
    const QuadsPlace<typename Config::T>& place, int quad, float4 v) {
  using T = typename Config::T;
  if constexpr (std::is_same_v<T, float>) {
    if (quad >= place.quads || !place.has_first) return;
    T* to = place.first + (quad / 4 * 32 + quad % 4) * place.quad_stride;
    *reinterpret_cast<float2*>(to) = make_float2(v.x, v.y);
    *reinterpret_cast<float2*>(to + place.row_stride) = make_float2(v.z, v.w);
  } else {
    uint32_t first = Pack<T>(v.x, v.y), second = Pack<T>(v.z, v.w);
    if constexpr (Config::kTransposed) {
      first = TransposeMatrix(first);
      second = TransposeMatrix(second);
    }
    if (quad >= place.quads) return;
    T* to = place.first + quad * place.quad_stride;
    const bool odd = quad % 2 != 0;
    if (place.has_first && !(place.in_eights && odd)) {
      *reinterpret_cast<uint32_t*>(to) = first;
    }
    if (place.has_second && !(place.in_eights && !odd)) {
      *reinterpret_cast<uint32_t*>(to + place.row_stride) = second;
    }
  }
}

// A 4 x 4 transposition: lane i of a row's four gets word i of each lane, lane
// 0's first. By whole warps.
__device__ __forceinline__ uint4 TransposeInFours(uint32_t w0, uint32_t w1,
                                                  uint32_t w2, uint32_t w3) {
  const bool odd = threadIdx.x % 2 != 0, high = threadIdx.x % 4 >= 2;
  const uint32_t own01 = odd ? w1 : w0, own23 = odd ? w3 : w2;
  const uint32_t other01 = __shfl_xor_sync(~0u, odd ? w0 : w1, 1);
  const uint32_t other23 = __shfl_xor_sync(~0u, odd ? w2 : w3, 1);
  const uint2 of01 =
      odd ? make_uint2(other01, own01) : make_uint2(own01, other01);
  const uint2 of23 =
      odd ? make_uint2(other23, own23) : make_uint2(own23, other23);
  const uint32_t x = __shfl_xor_sync(~0u, high ? of01.x : of23.x, 2);
  const uint32_t y = __shfl_xor_sync(~0u, high ? of01.y : of23.y, 2);
  return high ? make_uint4(x, y, of23.x, of23.y)
              : make_uint4(of01.x, of01.y, x, y);
}

// Four quads from `quad` on, 16 bytes a lane. WriteQuad stores 4 bytes a lane,
// half a sector of the L2 at a time. Of sums that are not kTransposed, nor of
// narrow groups. By whole warps.
template <typename Config, typename Quad>
__device__ __forceinline__ void WriteFourQuads(
    const QuadsPlace<typename Config::T>& place, int quad, Quad quad_of) {
  using T = typename Config::T;
  static_assert(!Config::kTransposed);
  const int lane = threadIdx.x % 4;
  const float4 v[] = {quad_of(quad), quad_of(quad + 1), quad_of(quad + 2),
                      quad_of(quad + 3)};
  const uint4 first =
      TransposeInFours(Pack<T>(v[0].x, v[0].y), Pack<T>(v[1].x, v[1].y),
                       Pack<T>(v[2].x, v[2].y), Pack<T>(v[3].x, v[3].y));
  const uint4 second =
      TransposeInFours(Pack<T>(v[0].z, v[0].w), Pack<T>(v[1].z, v[1].w),
                       Pack<T>(v[2].z, v[2].w), Pack<T>(v[3].z, v[3].w));
  if (quad + lane >= place.quads) return;
  // The row's eight channels of this quad, from the first lane's on.
  T* const to = place.first - lane * 2 + (quad + lane) * place.quad_stride;
  if (place.has_first) *reinterpret_cast<uint4*>(to) = first;
  if (place.has_second) {
    *reinterpret_cast<uint4*>(to + place.row_stride) = second;
  }
}

// To shared memory, of two quads of each thread's sums, 16 filter rows of a
// warp's output channels: lanes 8 j to 8 j + 7 say where the rows of matrix j
// are.
template <typename T>
__device__ __forceinline__ void WriteRows(uint32_t to, const float4& first,
                                          const float4& second) {
  StoreMatrix4Transposed(to, Pack<T>(first.x, first.y),
                         Pack<T>(first.z, first.w), Pack<T>(second.x, second.y),
                         Pack<T>(second.z, second.w));
}

// Sums of a tile, in whole rows of 64 output channels, by way of shared memory
// from `shared` on, which nobody uses any more. By a tile's consumers.
template <typename Config, typename Quad>
__device__ __forceinline__ void StoreBlocks(const WgradTiles& tiles, int tile,
                                            int thread, uint32_t shared,
                                            Quad quad_of) {
  using T = typename Config::T;
  constexpr int kBlocks = Config::kQuads / 8;
  const int lane = thread % 32, warp = thread % kWarpgroup / 32;
  const uint32_t own = shared + thread / kWarpgroup * (kBlocks * kBoxBytes);
  // A row is 64 output channels of an input channel, in chunks of 16 bytes. It
  // lies swizzled: rows that are written at a time meet in no bank.
  auto chunk_at = [&](int block, int row, int chunk) {
    return own + block * kBoxBytes + row * 128 + (chunk ^ row % 8) * 16;
  };
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      const float4 u = quad_of(block * 8 + i), v = quad_of(block * 8 + i + 1);
      // Lanes 8 j to 8 j + 7 say where the rows of matrix j are.
      const int low = lane % 8, second = lane / 8 % 2, next = lane / 16;
      if constexpr (Config::kTransposed) {
        WriteRows<T>(chunk_at(block, (i + next) * 8 + low, warp * 2 + second),
                     u, v);
      } else {
        StoreMatrix4(chunk_at(block, warp * 16 + second * 8 + low, i + next),
                     Pack<T>(u.x, u.y), Pack<T>(u.z, u.w), Pack<T>(v.x, v.y),
                     Pack<T>(v.z, v.w));
      }
    }
  }
  // A warp stores the 16 rows that it wrote, or of which it wrote a part.
  if constexpr (Config::kTransposed) {
    NamedBarrier(2 + thread / kWarpgroup, kWarpgroup);
  } else {
    __syncwarp();
  }
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    if (!Config::Has(tiles, tile, block, thread)) continue;
    const BlockOrigin origin = Config::Origin(tiles, tile, block, thread);
    const int k = origin.k + lane % 8 * 8;
    T* to = static_cast<T*>(tiles.dw) + int64_t{origin.tap} * tiles.C * tiles.K;
#pragma unroll
    for (int i = 0; i < 16; i += 4) {
      const int row = warp * 16 + i + lane / 8;
      const int c = origin.c + row;
      if (c >= tiles.C || k >= origin.k_end) continue;
      *reinterpret_cast<float4*>(to + int64_t{c} * tiles.K + k) =
          LoadShared4(chunk_at(block, row, lane % 8));
    }
  }
}

// The same while other stages of the ring are filled: 32 rows at a time, by way
// of kRowsBytes of each warpgroup. Of kTransposed sums.
inline constexpr int kRowsBytes = 32 * 128;
template <typename Config, typename Quad>
__device__ __forceinline__ void StoreRows(const WgradTiles& tiles, int tile,
                                          int thread, uint32_t shared,
                                          Quad quad_of) {
  using T = typename Config::T;
  static_assert(Config::kTransposed);
  const int group = thread / kWarpgroup, lane = thread % 32;
  const uint32_t own = shared + group * kRowsBytes;
  auto chunk_at = [&](int row, int chunk) {  // swizzled, as above
    return own + row * 128 + (chunk ^ row % 8) * 16;
  };
  const int written = lane / 16 * 8 + lane % 8;
  const int row = thread % kWarpgroup / 8, chunk = thread % 8;
#pragma unroll
  for (int quad = 0; quad < Config::kQuads; quad += 4) {
    if (!Config::Has(tiles, tile, quad / 8, thread)) continue;
    NamedBarrier(2 + group, kWarpgroup);  // what was there has been read
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      WriteRows<T>(chunk_at(i * 8 + written,
                            thread % kWarpgroup / 32 * 2 + lane / 8 % 2),
                   quad_of(quad + i), quad_of(quad + i + 1));
    }
    NamedBarrier(2 + group, kWarpgroup);
    const BlockOrigin origin = Config::Origin(tiles, tile, quad / 8, thread);
    const int k = origin.k + chunk * 8;
    T* to = static_cast<T*>(tiles.dw) + int64_t{origin.tap} * tiles.C * tiles.K;
#pragma unroll
    for (int i = 0; i < 32; i += 16) {
      const int c = origin.c + quad % 8 * 8 + i + row;
      if (c >= tiles.C || k >= origin.k_end) continue;
      *reinterpret_cast<float4*>(to + int64_t{c} * tiles.K + k) =
          LoadShared4(chunk_at(i + row, chunk));
    }
  }
}

}  // namespace jax_convbatch::hopper
