// SPDX-License-Identifier: Apache-2.0
// The epilogue of conv_tf32_kernel.cuh: a thread has two neighbouring channels
// of many pixels, so residual and z need not go through shared memory.
#pragma once

#include "cuda/sm90/epilogue/epilogue.cuh"

namespace jax_convbatch::hopper {

// Channels k and k + 1 of a tile of [pixels, channels], kPixels pixels at a
// time: the thread has those at 8 i and 8 i + 1 from `pixel` on.
template <int kPixels>
class PairEpilogue {
 public:
  __device__ __forceinline__ PairEpilogue(const Epilogue& e, int k,
                                          int channels, int pixel, int pixels)
      : k_(k), channels_(channels), pixel_(pixel), pixels_(pixels) {
    auto load = [&](const void* from, float2 none) {
      if (from == nullptr || k >= channels) return none;
      return __ldg(static_cast<const float2*>(from) + k / 2);
    };
    scale_ = load(e.scale, make_float2(1, 1));
    bias_ = load(e.bias, make_float2(0, 0));
    Load(e, 0);
  }

  // Of pixels p and following, in order: v[4 i + odd] is pixel 8 i + odd, k;
  // v[4 i + odd + 2] is channel k + 1.
  template <Activation kActivation>
  __device__ __forceinline__ void Apply(const Epilogue& e, int p,
                                        float (&v)[kPixels / 2]) {
#pragma unroll
    for (int i = 0; i < kPixels / 4; ++i) {
      float* pair = &v[i / 2 * 4 + i % 2];
      pair[0] = fmaf(pair[0], scale_.x, bias_.x) + residual_[i].x;
      pair[2] = fmaf(pair[2], scale_.y, bias_.y) + residual_[i].y;
      if (e.z != nullptr && IsThere(p, i)) {
        reinterpret_cast<float2*>(e.z)[Place(p, i)] =
            make_float2(pair[0], pair[2]);
      }
    }
    Load(e, p + kPixels);  // while these are on their way
#pragma unroll
    for (float& value : v) value = Activate(kActivation, value);
  }

 private:
  __device__ __forceinline__ int Pixel(int p, int i) const {
    return pixel_ + p + i / 2 * 8 + i % 2;
  }
  __device__ __forceinline__ bool IsThere(int p, int i) const {
    return Pixel(p, i) < pixels_ && k_ < channels_;
  }
  __device__ __forceinline__ int64_t Place(int p, int i) const {
    return (int64_t{Pixel(p, i)} * channels_ + k_) / 2;
  }
  __device__ __forceinline__ void Load(const Epilogue& e, int p) {
#pragma unroll
    for (int i = 0; i < kPixels / 4; ++i) {
      residual_[i] = make_float2(0, 0);
      if (e.residual != nullptr && IsThere(p, i)) {
        residual_[i] =
            __ldg(static_cast<const float2*>(e.residual) + Place(p, i));
      }
    }
  }

  int k_, channels_, pixel_, pixels_;
  float2 scale_, bias_, residual_[kPixels / 4];
};

}  // namespace jax_convbatch::hopper
