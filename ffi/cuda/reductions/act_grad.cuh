// SPDX-License-Identifier: Apache-2.0
// The kernels of ActGrad, to be instantiated for a dtype.
#pragma once

#include "cuda/common/relu_bitmask.cuh"
#include "cuda/reductions/bias_grad.h"
#include "cuda/reductions/row_sums.cuh"

namespace jax_convbatch {

template <Activation kActivation>
struct GradOf {
  template <typename F>
  __device__ F operator()(F saved, F dy) const {
    return ActivationGrad(kActivation, saved, dy);
  }
};

// For what is rare and need not be fast.
struct GradOfAny {
  Activation activation;

  template <typename F>
  __device__ F operator()(F saved, F dy) const {
    return ActivationGrad(activation, saved, dy);
  }
};

// A source of row_sums.cuh: dz[] = dy[] where its bit is set, else 0.
template <typename T>
struct BitmaskSource {
  static constexpr int kVector = 16 / sizeof(T);
  using Acc = Accumulator<T>;
  struct Loaded {
    Vector<T, kVector> dy;
    uint8_t bitmask;
  };
  static constexpr int kThreads = 256, kBlocks = 2;
  static constexpr int kUnroll = 8;
  static constexpr int kMaxLanes = 16;
  static constexpr bool kSpread = true;
  static constexpr int64_t kVectorBytes = sizeof(Vector<T, kVector>);
  const uint8_t* bitmask;
  const T* dy;
  T* dz;

  __device__ void SetColumn(int64_t) const {}
  __device__ Loaded Load(int64_t at) const {
    constexpr int kParts = 8 / kVector;  // of a byte
    return {LoadInOrder(reinterpret_cast<const Vector<T, kVector>*>(dy) + at),
            static_cast<uint8_t>(bitmask[at / kParts] >>
                                 static_cast<int>(at % kParts) * kVector)};
  }
  __device__ void Add(const Loaded& loaded, int64_t at,
                      Acc (&sum)[kVector]) const {
    union {
      uint32_t words[4];
      Vector<T, kVector> vector;
    } dz_of = {.vector = loaded.dy};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      dz_of.words[i] &= ReluMask<sizeof(T)>(loaded.bitmask, i);
    }
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      sum[i] += Convert<Acc>(dz_of.vector.values[i]);
    }
    reinterpret_cast<Vector<T, kVector>*>(dz)[at] = dz_of.vector;
  }
  __device__ Acc Element(int64_t at) const {
    const T value = bitmask[at / 8] >> at % 8 & 1 ? dy[at] : Convert<T>(0.0f);
    dz[at] = value;
    return Convert<Acc>(value);
  }
  __device__ BitmaskSource Batch(int64_t offset) const {
    return {bitmask + offset / 8, dy + offset, dz + offset};
  }
};

template <typename T>
cudaError_t ActGrad(const ActGradCall& call, cudaStream_t stream) {
  const SumSizes& s = call.sizes;
  if (call.bitmask) {
    if constexpr (sizeof(T) <= 4) {
      const BitmaskSource<T> source{static_cast<const uint8_t*>(call.saved),
                                    static_cast<const T*>(call.dy),
                                    static_cast<T*>(call.dz)};
      return SumSource<T, BitmaskSource<T>::kVector>(stream, s.B, s.rows, s.K,
                                                     s.chunk_rows, source,
                                                     call.partials, call.db);
    }
    return cudaErrorInvalidValue;
  }
  auto run = [&](auto vector, auto grad) {
    constexpr int kVector = decltype(vector)::value;
    const GradSource<T, kVector, decltype(grad)> source{
        static_cast<const T*>(call.saved), static_cast<const T*>(call.dy),
        static_cast<T*>(call.dz), grad};
    return SumSource<T, kVector>(stream, s.B, s.rows, s.K, s.chunk_rows, source,
                                 call.partials, call.db);
  };
  return ForVector<T>(s.B, s.rows, s.K, [&](auto vector) {
    if constexpr (decltype(vector)::value == 1) {
      return run(vector, GradOfAny{call.activation});
    } else {
      return DispatchActivation(call.activation, [&](auto tag) {
        return run(vector, GradOf<decltype(tag)::value>());
      });
    }
  });
}

}  // namespace jax_convbatch
