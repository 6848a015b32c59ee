// A left operand of TF32 that goes through registers: it lies in shared memory
// with its rows contiguous, 32 of them in the 128 bytes of a swizzled line, and
// is loaded across the lines of the reduction.
#ifndef JAX_CONVBATCH_CUDA_HOPPER_TF32_FRAGMENTS_CUH_
#define JAX_CONVBATCH_CUDA_HOPPER_TF32_FRAGMENTS_CUH_

#include "cuda/hopper/pipeline.cuh"

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
// and `apart` further.
template <int kBlocks>
class FragmentLoader {
 public:
  __device__ FragmentLoader(int low, int apart) {
    const FragmentLane<kBlocks> lane(threadIdx.x);
    auto offset = [&](int line) {
      return lane.box * kTf32BoxBytes + line * 128 +
             ((lane.chunk ^ line) << 4) + lane.half * 8;
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

// MultiplyStages with the left operand from registers. Four multiplications
// make a unit, which is a stage, or half of one where the warpgroup has two
// blocks of rows; the registers of a unit are loaded while the multiplier has
// the unit before.
template <int kBlocks, int kHalfN, int kStages>
__device__ __forceinline__ void MultiplyFragments(
    float (&acc)[kBlocks][kHalfN], int count, uint32_t address_a,
    uint32_t address_b, int stage_bytes, const FragmentLoader<kBlocks>& loader,
    RingBarriers<kStages>& barriers, RingPosition<kStages>& at) {
#pragma unroll
  for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
    for (int i = 0; i < kHalfN; ++i) acc[m][i] = 0.0f;
  }
  if (count == 0) return;
  constexpr int kUnits = kBlocks;  // of a stage
  constexpr int kEights = 4 / kUnits;
  using Fragments = uint32_t[kEights][kBlocks][4];
  const bool signals = threadIdx.x % 32 == 0;
  const int units = count * kUnits;
  int previous = -1;

  auto load = [&](int part, Fragments& a) {
    if (part == 0) {
      BarrierWait(SharedAddress(&barriers.full[at.stage]), at.round);
    }
#pragma unroll
    for (int k = 0; k < kEights; ++k) {
      loader.Load(address_a + at.stage * stage_bytes, part * kEights + k, a[k]);
    }
  };
  // Multiplies unit `unit`, the `part`-th of its stage, and loads the next.
  auto multiply = [&](int unit, int part, const Fragments& a, Fragments& next) {
    const uint64_t b = Descriptor(address_b + at.stage * stage_bytes);
    WgmmaFence();
#pragma unroll
    for (int k = 0; k < kEights; ++k) {
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
        WgmmaTf32<2 * kHalfN>(
            acc[m], a[k][m],
            b + (part * kEights + k) * kReductionStep<Contiguous::kReduction>);
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
    }
    if (unit + 1 < units) load((part + 1) % kUnits, next);
  };

  Fragments even, odd;
  load(0, even);
  for (int unit = 0; unit < units; unit += 2) {
    multiply(unit, 0, even, odd);
    if (unit + 1 < units) multiply(unit + 1, 1 % kUnits, odd, even);
  }
  WgmmaWait<0>();
  if (signals) BarrierArrive(SharedAddress(&barriers.empty[previous]));
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_HOPPER_TF32_FRAGMENTS_CUH_
