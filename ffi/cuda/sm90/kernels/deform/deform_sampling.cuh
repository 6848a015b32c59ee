// SPDX-License-Identifier: Apache-2.0
// Sampled columns for the multiplier: warps read the corners of each pixel's
// cell, blend them in f32 and write them into swizzled boxes.
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_DEFORM_DEFORM_SAMPLING_CUH_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_DEFORM_DEFORM_SAMPLING_CUH_

#include "cuda/sm90/kernels/deform/deform_tiles.cuh"

namespace jax_convbatch::hopper {

// Where and with what weights a pixel of a tap is read: pixel `at` of x is the
// upper left corner, bit k of `inside` says that corner k is in the image.
struct DeformCell {
  float4 weight;
  int at;
  uint32_t inside;
};

// A pixel outside the image is not inside, and an entry that is nowhere is 0.
// `image`: the first pixel of its image.
__device__ __forceinline__ DeformCell Decode(const PositionGrid& grid,
                                             const Position<float>& at,
                                             int image) {
  if (!at.inside) return {make_float4(0, 0, 0, 0), 0, 0};
  const uint32_t up = at.h >= 0;  // h < H, w < W
  const uint32_t down = at.h + 1 < grid.H;
  const uint32_t left = at.w >= 0;
  const uint32_t right = at.w + 1 < grid.W;
  return {
      make_float4(at.weights[0], at.weights[1], at.weights[2], at.weights[3]),
      image + at.h * grid.W + at.w,
      up & left | (up & right) << 1 | (down & left) << 2 | (down & right) << 3};
}

// The sum of weights times 16 bytes of channels, as the multiplier takes it.
template <typename T>
__device__ __forceinline__ uint4 Blend(const float4& weight, const uint4& a,
                                       const uint4& b, const uint4& c,
                                       const uint4& d) {
  auto blend = [&](float a, float b, float c, float d) {
    return fmaf(weight.w, d,
                fmaf(weight.z, c, fmaf(weight.y, b, weight.x * a)));
  };
  auto word = [&](uint32_t a, uint32_t b, uint32_t c, uint32_t d) -> uint32_t {
    if constexpr (std::is_same_v<T, float>) {
      // The multiplier drops the bits that TF32 has not.
      return __float_as_uint(blend(__uint_as_float(a), __uint_as_float(b),
                                   __uint_as_float(c), __uint_as_float(d)));
    } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
      auto low = [](uint32_t v) { return __uint_as_float(v << 16); };
      auto high = [](uint32_t v) { return __uint_as_float(v & 0xFFFF0000u); };
      return Pack<T>(blend(low(a), low(b), low(c), low(d)),
                     blend(high(a), high(b), high(c), high(d)));
    } else {
      auto both = [](uint32_t v) {
        return __half22float2(reinterpret_cast<const __half2&>(v));
      };
      const float2 e = both(a), f = both(b), g = both(c), h = both(d);
      return Pack<T>(blend(e.x, f.x, g.x, h.x), blend(e.y, f.y, g.y, h.y));
    }
  };
  return {word(a.x, b.x, c.x, d.x), word(a.y, b.y, c.y, d.y),
          word(a.z, b.z, c.z, d.z), word(a.w, b.w, c.w, d.w)};
}

__device__ __forceinline__ void StoreShared(uint32_t to, const uint4& v) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x),
               "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}

// A lane's entries of a warp's table of a run.
struct DeformEntry {
  int at;                // in the table
  bool there;            // whether there is such a pixel and tap
  int p, q, image, tap;  // image: its first pixel
  int64_t number;        // of offset and mask, or of cells and corners
};

constexpr int kEntriesOfLane = (kSampledTaps * kSampledRows + 31) / 32;

template <typename Config>
struct DeformEntries {
  int pixel, tap, count, offset_group;

  __device__ __forceinline__ DeformEntries(const DeformProblem& problem,
                                           const DeformWalk<Config>& walk,
                                           int first_row)
      : pixel(walk.tile.pixel + first_row + int(threadIdx.x) % kSampledRows),
        tap(walk.tap_begin),
        count((walk.tap_end - walk.tap_begin) * kSampledRows),
        offset_group(walk.OffsetGroup(problem)) {}

  __device__ __forceinline__ DeformEntry At(const DeformProblem& problem,
                                            int i) const {
    DeformEntry entry{};
    entry.at = threadIdx.x % 32 + 32 * i;
    entry.there = entry.at < count && pixel < problem.pixels;
    if (!entry.there) return entry;
    entry.tap = tap + entry.at / kSampledRows;
    entry.number =
        (int64_t{pixel} * problem.offset_groups + offset_group) * problem.taps +
        entry.tap;
    uint32_t p = pixel;
    const uint32_t n = problem.image_pixels.Divide(p);
    p -= n * problem.image_pixels.divisor();
    entry.q = int(TakeDigit(problem.image_row, p));
    entry.p = int(p);
    entry.image = int(n) * problem.grid.H * problem.grid.W;
    return entry;
  }
};

// A warp's cells of a run, tap by tap.
struct alignas(16) DeformTable {
  float4 weight[kSampledTaps * kSampledRows];
  int2 place[kSampledTaps * kSampledRows];  // at, inside

  // By all lanes.
  template <typename Config>
  __device__ __forceinline__ void Fill(const DeformProblem& problem,
                                       const DeformWalk<Config>& walk,
                                       int first_row) {
    using T = typename Config::T;
    const DeformEntries<Config> entries(problem, walk, first_row);
    if (problem.positions.cells != nullptr) {
#pragma unroll
      for (int i = 0; i < kEntriesOfLane; ++i) {
        const DeformEntry entry = entries.At(problem, i);
        Position<float> found{};
        if (entry.there) {
          found = PositionOf<T>(problem.grid, problem.positions, entry.p,
                                entry.q, entry.tap, entry.number);
        }
        Put(problem, entry, found);
      }
      return;
    }
    // All are on the way at once, as they lie in memory: decoded they would
    // take more registers than there are.
    Displacement<float> read[kEntriesOfLane];
#pragma unroll
    for (int i = 0; i < kEntriesOfLane; ++i) {
      const DeformEntry entry = entries.At(problem, i);
      read[i] = {};
      if (entry.there) {
        read[i] = LoadDisplacement<T>(problem.positions, entry.number);
      }
    }
#pragma unroll
    for (int i = 0; i < kEntriesOfLane; ++i) {
      const DeformEntry entry = entries.At(problem, i);
      Position<float> found{};
      if (entry.there) {
        found = Displaced(problem.grid, read[i], entry.p, entry.q, entry.tap);
      }
      Put(problem, entry, found);
    }
  }

 private:
  __device__ __forceinline__ void Put(const DeformProblem& problem,
                                      const DeformEntry& entry,
                                      const Position<float>& found) {
    if (entry.at >= kSampledTaps * kSampledRows) return;
    const DeformCell cell = Decode(problem.grid, found, entry.image);
    weight[entry.at] = cell.weight;
    place[entry.at] = make_int2(cell.at, int(cell.inside));
  }
};

template <typename Config>
struct DeformShared {
  RingBarriers<Config::kStages> ring;
  DeformTable tables[kSamplingWarps];
};

// Bytes of x.
struct DeformSource {
  const uint8_t* at;  // a lane's first channel of this stage
  int pixel;
  int64_t row;
  bool there;  // whether the lane has channels
};

// Starts loading 16 bytes of a pixel's corners.
__device__ __forceinline__ void LoadCorners(uint4 (&corner)[4],
                                            const DeformSource& source,
                                            const int2& place) {
  const uint8_t* at;
  asm("mad.wide.s32 %0, %1, %2, %3;"
      : "=l"(at)
      : "r"(place.x), "r"(source.pixel), "l"(source.at));
  auto pointer = [&](int k) {
    return reinterpret_cast<const uint4*>(at + (k & 2 ? source.row : 0) +
                                          (k & 1 ? source.pixel : 0));
  };
  if (__all_sync(~0u, source.there && place.y == 15)) {
#pragma unroll
    for (int k = 0; k < 4; ++k) corner[k] = __ldg(pointer(k));
  } else {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      corner[k] = uint4{};
      if (source.there && place.y >> k & 1) corner[k] = __ldg(pointer(k));
    }
  }
}

template <typename Config>
__device__ __forceinline__ void CopyFilter(const DeformProblem& problem, int k,
                                           int channel, int tap, uint32_t to,
                                           uint64_t* full) {
  // As few copies as there can be: it is a sampling thread that issues them.
  constexpr int kBox = 128 / sizeof(typename Config::T);
  BarrierArriveExpect(SharedAddress(full), Config::kN * 128);
  if (problem.whole_boxes) {
    LoadTile4(to, problem.weights, SharedAddress(full), 0, channel, k / kBox,
              tap);
    return;
  }
#pragma unroll
  for (int n = 0; n < Config::kN; n += kBox) {
    LoadTile3(to + n * 128, problem.weights, SharedAddress(full), k + n,
              channel, tap);
  }
}

// The stages of all of this block's tiles, by the sampling warps: 8 lanes, 16
// bytes each, are a pixel's 128 bytes, and a warp blends 4 pixels at a time.
// Once it has, it loads later ones into the same registers, so that loads are
// always on the way. `wait` is called before the first stage of a tile.
template <typename Config, typename Wait>
__device__ __forceinline__ void SampleTiles(const DeformProblem& problem,
                                            const DeformRange& range, int first,
                                            int clusters, uint32_t ring,
                                            DeformShared<Config>& shared,
                                            Wait wait) {
  using T = typename Config::T;
  constexpr int kPixels = kSampledRows / 4, kBuffers = Config::kBuffers;
  static_assert(kPixels % kBuffers == 0);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int in_pixel = lane % 8, row = lane / 8;
  const int first_row = warp * kSampledRows;
  auto& table = shared.tables[warp];
  // A row's place in the swizzle is that of its number modulo 8.
  const uint32_t line = ring + (first_row + row) * 128;
  const uint32_t in_line[2] = {uint32_t(in_pixel ^ row) << 4,
                               uint32_t(in_pixel ^ (row + 4)) << 4};
  static_assert(kSampledRows % 8 == 0);
  if (first >= problem.tiles) return;

  DeformSource source;
  source.pixel = problem.channels * int(sizeof(T));
  source.row = int64_t{source.pixel} * problem.grid.W;
  DeformWalk<Config> walk;
  walk.Start(problem, range, first);
  // Of the stage that is loaded.
  int slot, tap, channel, k;
  bool starts;
  auto turn = [&] {
    if (walk.run_begins) {
      __syncwarp();
      table.Fill(problem, walk, first_row);
      __syncwarp();
      walk.run_begins = false;
    }
    slot = (walk.tap - walk.tap_begin) * kSampledRows + row;
    tap = walk.tap, channel = walk.chunk * Config::kChannels;
    k = walk.tile.channel;
    starts = walk.left == range.end - range.first;
    const int own = channel + in_pixel * (16 / int(sizeof(T)));
    source.there = own < problem.group_channels;
    source.at =
        static_cast<const uint8_t*>(problem.x) +
        (walk.tile.group * problem.group_channels + own) * int64_t{sizeof(T)};
    walk.Advance(problem, range, clusters);
  };

  float4 weights[kBuffers];
  uint4 corners[kBuffers][4];
  auto load = [&](int buffer, int i) {
    weights[buffer] = table.weight[slot + 4 * i];
    LoadCorners(corners[buffer], source, table.place[slot + 4 * i]);
  };
  const int tiles = (problem.tiles - 1 - first) / clusters + 1;
  const int stages = tiles * (range.end - range.first);
  turn();
#pragma unroll
  for (int i = 0; i < kBuffers; ++i) load(i, i);
  RingPosition<Config::kStages> at;
#pragma unroll 1
  for (int j = 0; j < stages; ++j) {
    if (starts && j > 0) wait();
    BarrierWait(SharedAddress(&shared.ring.empty[at.stage]), at.round ^ 1);
    const uint32_t stage = at.stage * Config::kStageBytes;
    if (threadIdx.x == 0) {
      CopyFilter<Config>(problem, k, channel, tap,
                         ring + stage + Config::kColumnBytes,
                         &shared.ring.full[at.stage]);
    }
#pragma unroll
    for (int i = 0; i < kPixels; ++i) {
      const int buffer = i % kBuffers;
      auto& corner = corners[buffer];
      StoreShared(line + stage + i * 512 + in_line[i % 2],
                  Blend<T>(weights[buffer], corner[0], corner[1], corner[2],
                           corner[3]));
      constexpr int kAhead = kPixels - kBuffers;  // the last of this stage
      if (i < kAhead) {
        load(buffer, i + kBuffers);
      } else if (j + 1 < stages) {
        if (i == kAhead) turn();
        load(buffer, i - kAhead);
      }
    }
    __syncwarp();
    if (lane == 0) BarrierArrive(SharedAddress(&shared.ring.full[at.stage]));
    at.Advance();
  }
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_DEFORM_DEFORM_SAMPLING_CUH_
