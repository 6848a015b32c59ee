// SPDX-License-Identifier: Apache-2.0
// A left operand of TF32 that goes through registers: it lies in shared memory
// with its rows contiguous, 32 of them in the 128 bytes of a swizzled line, and
// is loaded across the lines of the reduction.
#pragma once

#include "cuda/sm90/arch/wgmma_tf32_columns.cuh"
#include "cuda/sm90/copy/pipeline.cuh"

namespace jax_convbatch::hopper {

inline constexpr int kTf32Block = 32;  // channels in a line of 128 bytes
inline constexpr int kTf32BoxBytes = kTf32Block * 128;

// Which rows of the operand a lane has: 4 consecutive ones of the warp's 32,
// where the warpgroup multiplies two blocks of 64; 2 of 16, where one. A lane
// loads them at once, and any other lane that loads at the same time finds
// other banks, whether lane % 4 counts lines one by one or (as in stores of
// results) every other.
template <int kBlocks>
struct FragmentLane {
  int box, chunk, half;  // of 32 rows, 16 bytes and 8 bytes

  __device__ explicit FragmentLane(int thread) {
    const int warp = thread % kWarpgroup / 32;
    const int g = thread % 32 / 4;
    if constexpr (kBlocks == 2) {
      box = warp;
      chunk = (g & 1) * 5 ^ g >> 1;
      half = 0;
    } else {
      box = warp / 2;
      chunk = (g >> 1 & 1) * 5 ^ g >> 2 ^ warp % 2 * 2;
      half = g & 1;
    }
  }
};

// Loads what one multiplication takes, 8 lines. A lane has two of them: `low`,
// and `apart` further. `box_bytes`: from box to box.
template <int kBlocks>
class FragmentLoader {
 public:
  __device__ FragmentLoader(int low, int apart, int box_bytes = kTf32BoxBytes) {
    const FragmentLane<kBlocks> lane(threadIdx.x);
    auto offset = [&](int line) {
      return lane.box * box_bytes + line * 128 +
             ((lane.chunk ^ line % 8) << 4) + lane.half * 8;
    };
    low_ = offset(low);
    high_ = offset(low + apart);
  }

  __device__ __forceinline__ void Load(uint32_t operand, int eight,
                                       uint32_t (&a)[kBlocks][4]) const {
    const uint32_t lines = operand + eight * 8 * 128;
    if constexpr (kBlocks == 2) {
      const float4 low = LoadShared4(lines + low_);
      const float4 high = LoadShared4(lines + high_);
      a[0][0] = __float_as_uint(low.x), a[0][1] = __float_as_uint(low.y);
      a[0][2] = __float_as_uint(high.x), a[0][3] = __float_as_uint(high.y);
      a[1][0] = __float_as_uint(low.z), a[1][1] = __float_as_uint(low.w);
      a[1][2] = __float_as_uint(high.z), a[1][3] = __float_as_uint(high.w);
    } else {
      const float2 low = LoadShared2(lines + low_);
      const float2 high = LoadShared2(lines + high_);
      a[0][0] = __float_as_uint(low.x), a[0][1] = __float_as_uint(low.y);
      a[0][2] = __float_as_uint(high.x), a[0][3] = __float_as_uint(high.y);
    }
  }

 private:
  uint32_t low_, high_;
};

// Where a stage holds the filter of several taps and pixels for all of them:
// bytes from tap to tap in either operand.
struct TapStep {
  int a, b;
};

// MultiplyStages with the left operand from registers. Four multiplications
// make a unit: a tap of a stage, or half of a tap where the warpgroup has two
// blocks of rows. The registers of a unit are loaded while the multiplier has
// the unit before. A kResident left operand begins with the sum, its stages
// step.a bytes apart.
template <int kTaps = 1, bool kResident = false, int kBlocks, int kHalfN,
          int kStages>
__device__ __forceinline__ void MultiplyFragments(
    float (&acc)[kBlocks][kHalfN], int count, uint32_t address_a,
    uint32_t address_b, int stage_bytes, const FragmentLoader<kBlocks>& loader,
    RingBarriers<kStages>& barriers, RingPosition<kStages>& at,
    TapStep step = {}) {
  static_assert(kTaps == 1 || (kBlocks == 1 && !kResident));
#pragma unroll
  for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
    for (int i = 0; i < kHalfN; ++i) acc[m][i] = 0.0f;
  }
  if (count == 0) return;
  constexpr int kUnits = kBlocks * kTaps;  // of a stage
  constexpr int kEights = 4 / kBlocks;
  using Fragments = uint32_t[kEights][kBlocks][4];
  const bool signals = threadIdx.x % 32 == 0;
  const int units = count * kUnits;
  int previous = -1;
  [[maybe_unused]] int number = 0;  // of the stage

  auto load = [&](int part, Fragments& a) {
    if (part == 0) {
      BarrierWait(SharedAddress(&barriers.full[at.stage]), at.round);
    }
    const uint32_t from =
        address_a + (kResident ? number * step.a : at.stage * stage_bytes) +
        (kTaps == 1 ? 0 : part * step.a);
    const int first = kTaps == 1 ? part * kEights : 0;
#pragma unroll
    for (int k = 0; k < kEights; ++k) loader.Load(from, first + k, a[k]);
  };
  // Multiplies unit `unit`, the `part`-th of its stage, and loads the next.
  auto multiply = [&](int unit, int part, const Fragments& a, Fragments& next) {
    const uint64_t b = Descriptor(address_b + at.stage * stage_bytes +
                                  (kTaps == 1 ? 0 : part * step.b));
    const int first = kTaps == 1 ? part * kEights : 0;
    WgmmaFence();
#pragma unroll
    for (int k = 0; k < kEights; ++k) {
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
        const uint64_t columns =
            b + (first + k) * kReductionStep<Contiguous::kReduction>;
        WgmmaTf32Columns<2 * kHalfN>(acc[m], a[k][m], columns);
      }
    }
    WgmmaCommit();
    WgmmaWait<1>();
    if (part == 0 && previous >= 0 && signals) {
      BarrierArrive(SharedAddress(&barriers.empty[previous]));
    }
    if (part == kUnits - 1) {
      previous = at.stage;
      at.Advance();
      if constexpr (kResident) ++number;
    }
    if (unit + 1 < units) load(part == kUnits - 1 ? 0 : part + 1, next);
  };

  Fragments even, odd;
  load(0, even);
  int part = 0;
  for (int unit = 0; unit < units; unit += 2) {
    if constexpr (kUnits <= 2) part = 0;  // known when compiling
    multiply(unit, part, even, odd);
    part = part == kUnits - 1 ? 0 : part + 1;
    if (unit + 1 == units) break;
    multiply(unit + 1, part, odd, even);
    part = part == kUnits - 1 ? 0 : part + 1;
  }
  WgmmaWait<0>();
  if (signals) BarrierArrive(SharedAddress(&barriers.empty[previous]));
}

}  // namespace jax_convbatch::hopper
