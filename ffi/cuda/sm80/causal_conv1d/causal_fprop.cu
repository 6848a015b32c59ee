// SPDX-License-Identifier: Apache-2.0
// y of the short causal convolution, and of one more input.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "activation.h"
#include "cuda/sm80/causal_conv1d/causal_conv1d.h"
#include "cuda/sm80/causal_conv1d/dispatch.cuh"
#include "cuda/sm80/causal_conv1d/walk.cuh"

namespace jax_convbatch::causal {
namespace {

constexpr int kRows = 4;  // that a thread loads at a time

template <int kVector>
__device__ __forceinline__ void ActivateAll(bool silu, float (&z)[kVector]) {
  if (!silu) return;
#pragma unroll
  for (int v = 0; v < kVector; ++v) z[v] = Activate(Activation::kSilu, z[v]);
}

template <typename T, int kTaps, int kVector, bool kSegments>
__global__ void __launch_bounds__(kThreads) FpropKernel(const Problem p) {
  using V = Vector<T, kVector>;
  const Walk<T, kVector> walk(p);
  if (walk.first >= walk.end) return;
  float w[kTaps][kVector], bias[kVector];
#pragma unroll
  for (int t = 0; t < kTaps; ++t) {
    walk.LoadWeights(p.arrays.w, kTaps, t, w[t]);
  }
  walk.LoadWeights(p.arrays.bias, 1, 0, bias);
  // Rows before the first, then those of a turn; and those of the next turn.
  float x[kTaps - 1 + kRows][kVector];
  int ids[kTaps - 1 + kRows];
  V next[kRows];
  int next_ids[kRows];
  auto load = [&](int64_t i) {
#pragma unroll
    for (int u = 0; u < kRows; ++u) {
      next[u] = V{};
      next_ids[u] = 0;
      if (i + u >= walk.end) continue;
      next[u] = walk.Load(p.arrays.x, i + u);
      if constexpr (kSegments) next_ids[u] = walk.Id(i + u);
    }
  };
  load(walk.first);
#pragma unroll
  for (int t = 0; t < kTaps - 1; ++t) {
    const int64_t i = walk.first + t - (kTaps - 1);
    Widen(walk.LoadEarlier(i), x[t]);
    if constexpr (kSegments) ids[t] = walk.Id(i);
  }
  for (int64_t i = walk.first; i < walk.end; i += kRows) {
#pragma unroll
    for (int u = 0; u < kRows; ++u) {
      Widen(next[u], x[kTaps - 1 + u]);
      ids[kTaps - 1 + u] = next_ids[u];
    }
    load(i + kRows);
#pragma unroll
    for (int u = 0; u < kRows; ++u) {
      if (i + u >= walk.end) break;
      float z[kVector];
      SumTaps<kTaps, kVector, kSegments>(w, bias, x + u, ids + u, z);
      ActivateAll(p.silu, z);
      static_cast<V*>(p.arrays.y)[walk.At(i + u)] = Narrow<T>(z);
    }
#pragma unroll
    for (int t = 0; t < kTaps - 1; ++t) {
      ids[t] = ids[t + kRows];
#pragma unroll
      for (int v = 0; v < kVector; ++v) x[t][v] = x[t + kRows][v];
    }
  }
}

struct UpdateProblem {
  int64_t n, columns, C, dilation, state_rows;
  bool silu;
  Arrays arrays;
};

constexpr int kSamples = 2;  // of a thread, which have its weights

// One thread has all rows of a few samples' state in its channels, so that
// these may be overwritten.
template <typename T, int kTaps, int kVector>
__global__ void __launch_bounds__(kThreads)
    UpdateKernel(const UpdateProblem p) {
  using V = Vector<T, kVector>;
  const int64_t column = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t set = blockIdx.z;
  if (column >= p.columns) return;
  const V* const state = static_cast<const V*>(p.arrays.state);
  const V* const input = static_cast<const V*>(p.arrays.x);
  V rows[kSamples][kTaps];
  int64_t samples[kSamples];
#pragma unroll
  for (int s = 0; s < kSamples; ++s) {
    const int64_t sample = int64_t{blockIdx.y} * kSamples + s;
    samples[s] = set * p.n + sample;
    if (sample >= p.n) samples[s] = -1;
    if (samples[s] < 0) continue;
#pragma unroll
    for (int t = 0; t < kTaps - 1; ++t) {
      const int64_t row = samples[s] * p.state_rows + t * p.dilation;
      rows[s][t] = state[row * p.columns + column];
    }
    rows[s][kTaps - 1] = input[samples[s] * p.columns + column];
  }
  float w[kTaps][kVector], bias[kVector];
  const int64_t channel = column * kVector;
#pragma unroll
  for (int v = 0; v < kVector; ++v) {
    bias[v] = p.arrays.bias[set * p.C + channel + v];
#pragma unroll
    for (int t = 0; t < kTaps; ++t) {
      w[t][v] = p.arrays.w[(set * kTaps + t) * p.C + channel + v];
    }
  }
#pragma unroll
  for (int s = 0; s < kSamples; ++s) {
    if (samples[s] < 0) continue;
    float x[kTaps][kVector], z[kVector];
#pragma unroll
    for (int t = 0; t < kTaps; ++t) Widen(rows[s][t], x[t]);
    SumTaps<kTaps, kVector, false>(w, bias, x, nullptr, z);
    ActivateAll(p.silu, z);
    static_cast<V*>(p.arrays.y)[samples[s] * p.columns + column] = Narrow<T>(z);
    V* const to = static_cast<V*>(p.arrays.new_state) +
                  samples[s] * p.state_rows * p.columns + column;
    if (p.dilation == 1) {
#pragma unroll
      for (int t = 0; t < kTaps - 1; ++t) to[t * p.columns] = rows[s][t + 1];
    } else {
      const V* const from =
          state + samples[s] * p.state_rows * p.columns + column;
      for (int64_t row = 0; row + 1 < p.state_rows; ++row) {
        to[row * p.columns] = from[(row + 1) * p.columns];
      }
      if (p.state_rows > 0) {
        to[(p.state_rows - 1) * p.columns] = rows[s][kTaps - 1];
      }
    }
  }
}

template <typename T, int kTaps, int kVector>
cudaError_t LaunchFprop(cudaStream_t stream, const CausalConv1d& call,
                        const Arrays& arrays) {
  const Tasks tasks = TasksOf(call, kVector);
  const int64_t blocks = tasks.blocks(call.G);
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  const Problem problem = ProblemOf(call, tasks, arrays);
  const auto kernel = call.has_ids ? &FpropKernel<T, kTaps, kVector, true>
                                   : &FpropKernel<T, kTaps, kVector, false>;
  kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(problem);
  return cudaGetLastError();
}

template <typename T, int kTaps, int kVector>
cudaError_t LaunchUpdate(cudaStream_t stream, const CausalConv1d& call,
                         const Arrays& arrays) {
  const int64_t columns = call.C / kVector;
  const int64_t across = (columns + kThreads - 1) / kThreads;
  const int64_t down = (call.n + kSamples - 1) / kSamples;
  if (across > INT32_MAX || down > 65535 || call.G > 65535) {
    return cudaErrorInvalidConfiguration;
  }
  const UpdateProblem problem{
      call.n,        columns,         call.C,
      call.dilation, call.state_rows, call.activation == Activation::kSilu,
      arrays};
  const dim3 blocks(static_cast<unsigned>(across), static_cast<unsigned>(down),
                    static_cast<unsigned>(call.G));
  UpdateKernel<T, kTaps, kVector><<<blocks, kThreads, 0, stream>>>(problem);
  return cudaGetLastError();
}

// 16 bytes of one row, or 8 of longer filters, whose rows take more registers.
template <typename T, int kTaps>
constexpr int kWide = (sizeof(T) == 2 && kTaps > 4) ? 4 : 16 / sizeof(T);

}  // namespace

cudaError_t Fprop(cudaStream_t stream, const CausalConv1d& call,
                  const Arrays& arrays) {
  return ForDtypeAndTaps(call, [&](auto tag, auto taps) {
    using T = typename decltype(tag)::type;
    constexpr int kTaps = taps(), kVector = kWide<T, kTaps>;
    if (call.C % kVector == 0) {
      return LaunchFprop<T, kTaps, kVector>(stream, call, arrays);
    }
    return LaunchFprop<T, kTaps, 1>(stream, call, arrays);
  });
}

cudaError_t Update(cudaStream_t stream, const CausalConv1d& call,
                   const Arrays& arrays) {
  return ForDtypeAndTaps(call, [&](auto tag, auto taps) {
    using T = typename decltype(tag)::type;
    constexpr int kTaps = taps(), kVector = kWide<T, kTaps>;
    if (call.C % kVector == 0) {
      return LaunchUpdate<T, kTaps, kVector>(stream, call, arrays);
    }
    return LaunchUpdate<T, kTaps, 1>(stream, call, arrays);
  });
}

}  // namespace jax_convbatch::causal
