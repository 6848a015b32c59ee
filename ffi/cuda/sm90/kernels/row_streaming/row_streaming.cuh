// SPDX-License-Identifier: Apache-2.0
// fprop and dgrad with few output channels, stems' dgrad among them: the
// multiplier's 64 columns are not output channels but all that a row of input
// pixels adds to the outputs above and below it.
//
// Outputs come in patches: one pixel, or for a dgrad of stride s the s x s
// pixels of dx that the same pixels of dy reach. A warpgroup streams down a
// strip of the image 64 patches wide. Its sums belong to the rows of patches
// that the input row at hand takes part in, 4 of them with 16 values a patch,
// or 8, 2 or 1 with 8, 32 or 64; after each input row one row of patches is
// done and stored, and the others move up. So each input row is copied once a
// strip, and read from shared memory once for each tap along the row, at a
// shifted address.
//
// Values that a patch does not have, and taps that one of its pixels does not
// have, are zeros of the filter. Where an infinity or nan has met such a zero,
// the sum is nan and is computed again.
#pragma once

#include "cuda/sm90/copy/pipeline.cuh"
#include "cuda/sm90/kernels/row_streaming/row_streaming_plan.h"
#include "cuda/sm90/kernels/row_streaming/row_streaming_problem.h"

namespace jax_convbatch::hopper {

inline constexpr int kRowStreamingThreads =
    (kRowStreamingConsumers + 1) * kWarpgroup;
// 24 x 128 + 112 x 512 registers of the 96 x 640 that a block begins with.
inline constexpr int kRowStreamingProducerRegisters = 24,
                     kRowStreamingRegisters = 112;

// kRows rows of patches at a time, 64 / kRows values a patch. kStages: of each
// warpgroup.
template <typename T_, int kRows_, int kStages_>
struct RowStreamingConfig {
  using T = T_;
  static constexpr int kStages = kStages_;
  static constexpr int kRows = kRows_;
  static constexpr int kValues = 64 / kRows;
};

struct RowStreamingStrip {
  int image, col, begin, end;  // patches

  __device__ RowStreamingStrip(const RowStreamingProblem& problem,
                               uint32_t strip) {
    col = static_cast<int>(TakeDigit(problem.col_strips, strip)) * 64;
    begin =
        static_cast<int>(TakeDigit(problem.row_strips, strip)) * problem.rows;
    end = min(problem.h.patches, begin + problem.rows);
    image = static_cast<int>(strip);
  }
};

// A value of a patch: which of the patch's rows and columns, which channel.
struct RowStreamingValue {
  int a, b, c;
  bool there;

  __device__ RowStreamingValue(const RowStreamingProblem& problem, int value) {
    there = value < problem.values;
    a = value / problem.row_values;
    b = (value - a * problem.row_values) / problem.out_c;
    c = value - a * problem.row_values - b * problem.out_c;
  }

  // In one register: none of them reaches 64.
  __device__ explicit RowStreamingValue(int packed)
      : a(packed & 255),
        b(packed >> 8 & 255),
        c(packed >> 16 & 255),
        there(packed >> 24) {}
  __device__ int Packed() const {
    return a | b << 8 | c << 16 | int{there} << 24;
  }
};

// The filter's element for input (i, j) of a patch, or null.
__device__ __forceinline__ const uint16_t* RowStreamingWeight(
    const RowStreamingProblem& problem, const RowStreamingValue& value, int i,
    int j) {
  const RowStreamingAxis &h = problem.h, &w = problem.w_axis;
  const int r = h.first + value.a + i * h.tap_step;
  const int s = w.first + value.b + j * w.tap_step;
  if (!value.there || r < 0 || r >= h.filter || s < 0 || s >= w.filter) {
    return nullptr;
  }
  return problem.w + (int64_t{r} * w.filter + s) * problem.w_tap +
         value.c * problem.w_out;
}

// By all threads: for each 64 input channels and each tap along a row, 64 lines
// of these channels, kValues for each row of patches. The rows of patches that
// the taps do not fill come first.
template <typename Config>
__device__ __forceinline__ void LoadRowStreamingFilter(
    const RowStreamingProblem& problem, uint32_t to) {
  const int boxes = problem.w_axis.taps * problem.channel_blocks;
  for (int i = threadIdx.x; i < boxes * 64 * 8; i += blockDim.x) {
    const int line = i / 8 % 64, chunk = i % 8;
    const int box = i / (64 * 8);
    const int block = box / problem.w_axis.taps;
    const int tap = box - block * problem.w_axis.taps;
    const int c = block * 64 + chunk * 8;
    const RowStreamingValue value(problem, line % Config::kValues);
    const int row = line / Config::kValues - (Config::kRows - problem.h.taps);
    uint32_t words[4] = {0, 0, 0, 0};
    const uint16_t* from =
        row < 0 ? nullptr : RowStreamingWeight(problem, value, row, tap);
    if (from != nullptr) {
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        if (c + e < problem.in_c) {
          words[e / 2] |= uint32_t{__ldg(from + (c + e) * problem.w_in)}
                          << (e % 2 * 16);
        }
      }
    }
    StoreShared4(
        to + box * kBoxBytes + line * 128 + ((chunk ^ line % 8) << 4),
        make_float4(__uint_as_float(words[0]), __uint_as_float(words[1]),
                    __uint_as_float(words[2]), __uint_as_float(words[3])));
  }
  FenceAsyncProxy();
}

template <typename Config>
__device__ __forceinline__ void IssueRowStreamingCopies(
    const RowStreamingProblem& problem, int consumer, uint32_t ring,
    RingBarriers<Config::kStages>& barriers) {
  RingPosition<Config::kStages> at;
  for (int t = consumer * gridDim.x + blockIdx.x; t < problem.strips;
       t += kRowStreamingConsumers * gridDim.x) {
    const RowStreamingStrip strip(problem, t);
    const int first = strip.begin - problem.h.offset;
    const int rows = strip.end - strip.begin + problem.h.taps - 1;
    const int col = strip.col - problem.w_axis.offset;
    for (int i = 0; i < rows; ++i) {
      for (int block = 0; block < problem.channel_blocks; ++block) {
        const uint32_t full = SharedAddress(&barriers.full[at.stage]);
        BarrierWait(SharedAddress(&barriers.empty[at.stage]), at.round ^ 1);
        BarrierArriveExpect(full, kRowStreamingStageBytes);
        LoadTile4(ring + at.stage * kRowStreamingStageBytes, problem.in, full,
                  block * 64, col, first + i, strip.image);
        at.Advance();
      }
    }
  }
}

template <typename T>
__device__ __forceinline__ float RowStreamingFloat(uint16_t bits) {
  return static_cast<float>(reinterpret_cast<const T&>(bits));
}

// Where value (a, b, c) of patch (p, q) lies, or null where the output ends
// before it.
__device__ __forceinline__ uint16_t* RowStreamingOutput(
    const RowStreamingProblem& problem, const RowStreamingValue& value,
    int image, int p, int q) {
  const RowStreamingAxis &h = problem.h, &w = problem.w_axis;
  const int y = p * h.step + value.a, x = q * w.step + value.b;
  if (!value.there || y >= h.size || x >= w.size) return nullptr;
  return problem.out +
         ((int64_t{image} * h.size + y) * w.size + x) * problem.out_c + value.c;
}

// The sum without what meets no tap.
template <typename T>
__device__ float RowStreamingSum(const RowStreamingProblem& problem,
                                 const RowStreamingValue& value, int image,
                                 int p, int q) {
  float sum = 0;
  for (int i = 0; i < problem.h.taps; ++i) {
    for (int j = 0; j < problem.w_axis.taps; ++j) {
      const uint16_t* w = RowStreamingWeight(problem, value, i, j);
      if (w == nullptr) continue;
      const int y = p + i - problem.h.offset;
      const int x = q + j - problem.w_axis.offset;
      const bool inside =
          0 <= y && y < problem.in_h && 0 <= x && x < problem.in_w;
      const uint16_t* in =
          problem.input +
          ((int64_t{image} * problem.in_h + y) * problem.in_w + x) *
              problem.in_c;
      for (int c = 0; c < problem.in_c; ++c) {
        sum += (inside ? RowStreamingFloat<T>(in[c]) : 0.0f) *
               RowStreamingFloat<T>(w[c * problem.w_in]);
      }
    }
  }
  return sum;
}

// Computes again what this thread stored of a row of patches and is nan.
template <typename Config>
__device__ __noinline__ void RepairRowStreaming(
    const RowStreamingProblem& problem, int image, int p, int line) {
  using T = typename Config::T;
  for (int i = 0; i < Config::kValues / 4; ++i) {
    const int thread = static_cast<int>(threadIdx.x) % 4;
    const RowStreamingValue value(problem, i / 2 * 8 + thread * 2 + i % 2);
    for (int q = line; q <= line + 8; q += 8) {
      if (q >= problem.w_axis.patches) continue;
      uint16_t* const at = RowStreamingOutput(problem, value, image, p, q);
      if (at == nullptr ||
          RowStreamingFloat<T>(*at) == RowStreamingFloat<T>(*at))
        continue;
      const float sum = RowStreamingSum<T>(problem, value, image, p, q);
      *at = static_cast<uint16_t>(Pack<T>(sum, sum));
    }
  }
}

// Stores rows of patches that are done. A thread has kValues / 2 sums: for
// every 8 values of a patch two of pixel lane / 4 and two of the pixel 8
// further.
template <typename Config>
class RowStreamingStore {
 public:
  static constexpr int kSums = Config::kValues / 2;

  __device__ explicit RowStreamingStore(const RowStreamingProblem& problem)
      : problem_(problem) {
#pragma unroll
    for (int i = 0; i < kSums / 2; ++i) {
      const int value =
          i / 2 * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + i % 2;
      values_[i] = RowStreamingValue(problem, value).Packed();
    }
  }

  __device__ __forceinline__ void Store(const RowStreamingStrip& strip, int p,
                                        const float (&v)[kSums]) const {
    const int thread = threadIdx.x % kWarpgroup;
    const int line = strip.col + thread / 32 * 16 + thread % 32 / 4;
    bool nan = false;
#pragma unroll
    for (int i = 0; i < kSums; i += 2) {
      const int q = line + i / 2 % 2 * 8;
      if (q >= problem_.w_axis.patches) continue;
      const uint32_t packed = Pack<typename Config::T>(v[i], v[i + 1]);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        uint16_t* const to = RowStreamingOutput(
            problem_, RowStreamingValue(values_[i / 4 * 2 + e]), strip.image, p,
            q);
        if (to == nullptr) continue;
        nan |= v[i + e] != v[i + e];
        if (!problem_.pairs) {
          *to = static_cast<uint16_t>(packed >> (e * 16));
        } else if (e == 0) {
          *reinterpret_cast<uint32_t*>(to) = packed;
        }
      }
    }
    if (nan) RepairRowStreaming<Config>(problem_, strip.image, p, line);
  }

 private:
  const RowStreamingProblem& problem_;
  int values_[kSums / 2];
};

// Adds what one input row gives.
template <typename Config>
__device__ __forceinline__ void MultiplyRowStreamingRow(
    const RowStreamingProblem& problem, float (&acc)[32], uint32_t filter,
    uint32_t ring, RingBarriers<Config::kStages>& barriers,
    RingPosition<Config::kStages>& at) {
  const bool signals = threadIdx.x % 32 == 0;
  const int taps = problem.w_axis.taps;
  const int count = taps * problem.channel_blocks;
  int tap = 0, previous = -1;
  for (int i = 0; i < count; ++i) {
    if (tap == 0) {
      BarrierWait(SharedAddress(&barriers.full[at.stage]), at.round);
    }
    const uint64_t pixels =
        Descriptor(ring + at.stage * kRowStreamingStageBytes + tap * 128);
    const uint64_t weights = Descriptor(filter + i * kBoxBytes);
    WgmmaFence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      Wgmma<typename Config::T, Contiguous::kReduction, Contiguous::kReduction,
            64>(acc, pixels + k * kReductionStep<Contiguous::kReduction>,
                weights + k * kReductionStep<Contiguous::kReduction>);
    }
    WgmmaCommit();
    WgmmaWait<1>();
    if (previous >= 0 && signals) {
      BarrierArrive(SharedAddress(&barriers.empty[previous]));
    }
    previous = -1;
    if (++tap == taps) {
      tap = 0;
      previous = at.stage;
      at.Advance();
    }
  }
  WgmmaWait<0>();
  if (signals) BarrierArrive(SharedAddress(&barriers.empty[previous]));
}

template <typename Config>
__device__ __forceinline__ void ConsumeRowStreaming(
    const RowStreamingProblem& problem, int consumer, uint32_t filter,
    uint32_t ring, RingBarriers<Config::kStages>& barriers) {
  constexpr int kDone = Config::kValues / 2;  // sums of a row of patches
  const int missing = Config::kRows - problem.h.taps;
  const RowStreamingStore<Config> out(problem);
  RingPosition<Config::kStages> at;
  for (int t = consumer * gridDim.x + blockIdx.x; t < problem.strips;
       t += kRowStreamingConsumers * gridDim.x) {
    const RowStreamingStrip strip(problem, t);
    float acc[32];
#pragma unroll
    for (int i = 0; i < 32; ++i) acc[i] = 0;
    for (int p = strip.begin - problem.h.taps + 1; p < strip.end; ++p) {
      MultiplyRowStreamingRow<Config>(problem, acc, filter, ring, barriers, at);
      if (p >= strip.begin) {
        float done[kDone];
#pragma unroll
        for (int i = 0; i < kDone; ++i) done[i] = acc[32 - kDone + i];
        out.Store(strip, p, done);
      }
      // The rows that no tap fills must not keep a nan.
#pragma unroll
      for (int i = 31; i >= 0; --i) {
        acc[i] = i / kDone <= missing ? 0 : acc[max(0, i - kDone)];
      }
    }
  }
}

template <typename Config>
__global__ void __launch_bounds__(kRowStreamingThreads, 1)
    RowStreamingKernel(const __grid_constant__ RowStreamingProblem problem) {
  extern __shared__ uint8_t shared[];
  __shared__ RingBarriers<Config::kStages> barriers[kRowStreamingConsumers];
  const uint32_t rings = (SharedAddress(shared) + 1023) & ~1023u;
  const uint32_t filter = rings + kRowStreamingConsumers * Config::kStages *
                                      kRowStreamingStageBytes;
  if (threadIdx.x < kRowStreamingConsumers) {
    barriers[threadIdx.x].Init(1, kWarpgroup / 32);
  }
  LoadRowStreamingFilter<Config>(problem, filter);
  __syncthreads();
  const int warpgroup = threadIdx.x / kWarpgroup;
  const int consumer =
      warpgroup == 0 ? static_cast<int>(threadIdx.x) / 32 : warpgroup - 1;
  const uint32_t ring =
      rings + consumer * Config::kStages * kRowStreamingStageBytes;
  if (warpgroup == 0) {
    GiveRegisters<kRowStreamingProducerRegisters>();
    if (threadIdx.x % 32 == 0) {
      IssueRowStreamingCopies<Config>(problem, consumer, ring,
                                      barriers[consumer]);
    }
  } else {
    TakeRegisters<kRowStreamingRegisters>();
    ConsumeRowStreaming<Config>(problem, consumer, filter, ring,
                                barriers[consumer]);
  }
}

}  // namespace jax_convbatch::hopper
