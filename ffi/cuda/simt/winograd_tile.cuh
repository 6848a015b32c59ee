// What the kernels by Winograd's F(2x2, 3x3) share: 16 products of matrices in
// place of what 36 multiplications would be (Lavin and Gray, "Fast algorithms
// for convolutional neural networks", arXiv:1509.09308).
#ifndef JAX_CONVBATCH_CUDA_SIMT_WINOGRAD_TILE_CUH_
#define JAX_CONVBATCH_CUDA_SIMT_WINOGRAD_TILE_CUH_

#include <type_traits>

#include "cuda/simt/tile.cuh"

namespace jax_convbatch::simt {

// A block: 64 rows (tiles, or wgrad's input channels) by 32 output channels of
// each of the 16 products; a warp has two of these.
struct WinogradTile {
  static constexpr int kRows = 64, kChannels = 32, kThreads = 256;
  static constexpr int kDepth = 8, kPlaces = 16;
  static constexpr int kPitchV = kRows + 4, kPitchM = kChannels + 4;
  // From one product to the next: halves of a warp read other banks.
  static constexpr int kPlaceV = kDepth * kPitchV + 16;
  static constexpr int kPlaceU = kDepth * kChannels + 16;
  static constexpr int kV = kPlaces * kPlaceV, kU = kPlaces * kPlaceU;
  static constexpr int kSharedBytes = kPlaces * kRows * kPitchM * 4;
  static_assert(2 * (kV + kU) * 4 <= kSharedBytes);
};

// Of two channels of a tile: 4x4 pixels.
struct Patch {
  float2 at[4][4];
};

inline __device__ float2 Plus(float2 a, float2 b) {
  return make_float2(a.x + b.x, a.y + b.y);
}
inline __device__ float2 Minus(float2 a, float2 b) {
  return make_float2(a.x - b.x, a.y - b.y);
}
inline __device__ float4 Plus(float4 a, float4 b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}
inline __device__ float4 Minus(float4 a, float4 b) {
  return make_float4(a.x - b.x, a.y - b.y, a.z - b.z, a.w - b.w);
}

// The transforms make nan of what an infinity, or a sum past the largest
// number, touches: such results are summed again, directly. All others have no
// operand that is not finite, as every operand of a result is in some term of
// it.
inline __device__ bool IsFinite(float4 v) {
  return v.x * 0.0f + v.y * 0.0f + v.z * 0.0f + v.w * 0.0f == 0.0f;
}
// Those of `direct` where `v` is not finite.
inline __device__ float4 Mend(float4 v, float4 direct) {
  auto mend = [](float a, float b) { return a * 0.0f == 0.0f ? a : b; };
  return make_float4(mend(v.x, direct.x), mend(v.y, direct.y),
                     mend(v.z, direct.z), mend(v.w, direct.w));
}
inline __device__ float4 MultiplyAdd(float a, float4 b, float4 sum) {
  return make_float4(fmaf(a, b.x, sum.x), fmaf(a, b.y, sum.y),
                     fmaf(a, b.z, sum.z), fmaf(a, b.w, sum.w));
}

// What a thread multiplies of a depth: 16 rows by 8 channels.
struct WinogradFragments {
  float a[16], b[8];

  __device__ __forceinline__ void Load(const float* v, const float* u) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float4 q = reinterpret_cast<const float4*>(v)[4 * i];
      a[4 * i] = q.x, a[4 * i + 1] = q.y, a[4 * i + 2] = q.z;
      a[4 * i + 3] = q.w;
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float4 q = reinterpret_cast<const float4*>(u)[4 * j];
      b[4 * j] = q.x, b[4 * j + 1] = q.y, b[4 * j + 2] = q.z;
      b[4 * j + 3] = q.w;
    }
  }
};

// Row i of B' d B, to the stage; the second channel goes kNext further.
template <int i, int kNext>
__device__ __forceinline__ void StoreRow(const Patch& d, float* v) {
  float2 row[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const float2 d0 = d.at[0][j], d1 = d.at[1][j];
    const float2 d2 = d.at[2][j], d3 = d.at[3][j];
    row[j] = i == 0   ? Minus(d0, d2)
             : i == 1 ? Plus(d1, d2)
             : i == 2 ? Minus(d2, d1)
                      : Minus(d1, d3);
  }
  const float2 out[4] = {Minus(row[0], row[2]), Plus(row[1], row[2]),
                         Minus(row[2], row[1]), Minus(row[1], row[3])};
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    float* const to = v + (4 * i + j) * WinogradTile::kPlaceV;
    if constexpr (kNext == 1) {
      *reinterpret_cast<float2*>(to) = out[j];
    } else {
      to[0] = out[j].x;
      to[kNext] = out[j].y;
    }
  }
}

// A thread's sums: half a warp has one of the 16 products. Neighbours share
// addresses of one operand or the other, so that loads take half as long.
class WinogradSums {
 public:
  using T = WinogradTile;

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
#pragma unroll
      for (int j = 0; j < 8; ++j) sums_[i][j] = 0.0f;
    }
  }

  // Where the thread's parts of a stage begin.
  __device__ static int AtV() { return Place() * T::kPlaceV + Row(); }
  __device__ static int AtU() { return Place() * T::kPlaceU + Col(); }

  // Adds the products of a depth. In u, channels 2i and 2i + 1 are in each
  // other's place. The compiler has b, which is loaded as vectors, and the sums
  // of a row, which are stored as such, in registers in a row from an even one
  // on, and two even or two odd ones are not read at once.
  __device__ __forceinline__ void Add(const float* v, const float* u) {
    WinogradFragments f;
    f.Load(v, u);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
#pragma unroll
      for (int turn = 0; turn < 8; ++turn) {
        // There and back: a row begins with the number that was read last.
        const int j = i % 2 == 0 ? turn : 7 - turn;
        sums_[i][j ^ 1] = fmaf(f.a[i], f.b[j], sums_[i][j ^ 1]);
      }
    }
  }

  // To m[product][row][channel], in rows of kPitchM.
  __device__ __forceinline__ void Store(float* m) const {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      float* const to =
          m + (Place() * T::kRows + Row() + i / 4 * 16 + i % 4) * T::kPitchM +
          Col();
#pragma unroll
      for (int j = 0; j < 8; j += 4) {
        const float* const s = sums_[i] + j;
        *reinterpret_cast<float4*>(to + j * 4) =
            make_float4(s[0], s[1], s[2], s[3]);
      }
    }
  }

 private:
  __device__ static int Place() { return threadIdx.x / 16; }
  __device__ static int Row() { return threadIdx.x / 2 % 4 * 4; }
  __device__ static int Col() {
    return (threadIdx.x % 2 + threadIdx.x / 8 % 2 * 2) * 4;
  }

  float sums_[16][8];
};

// Adds the products of a stage, and meanwhile stores the next stage's operands:
// store(i) for i from 0 to 3.
template <typename Store>
__device__ __forceinline__ void WinogradStage(const float* v, const float* u,
                                              bool stores, WinogradSums& sums,
                                              Store&& store) {
  using T = WinogradTile;
  auto add = [&](int k) { sums.Add(v + k * T::kPitchV, u + k * T::kChannels); };
#pragma unroll
  for (int k = 0; k < 4; ++k) add(k);
  // A branch, before which the compiler does not wait for what is stored.
  if (stores) {
    add(4);
    store(std::integral_constant<int, 0>());
    add(5);
    store(std::integral_constant<int, 1>());
    add(6);
    store(std::integral_constant<int, 2>());
    add(7);
    store(std::integral_constant<int, 3>());
  } else {
#pragma unroll
    for (int k = 4; k < T::kDepth; ++k) add(k);
  }
}

}  // namespace jax_convbatch::simt

#endif  // JAX_CONVBATCH_CUDA_SIMT_WINOGRAD_TILE_CUH_
