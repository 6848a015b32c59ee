// SPDX-License-Identifier: Apache-2.0
// y of the short causal convolution, and of one more input.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "activation.h"
#include "cuda/sm80/causal_conv1d/causal_conv1d.h"
#include "cuda/sm80/causal_conv1d/dispatch.cuh"
#include "cuda/sm80/causal_conv1d/fprop.cuh"
#include "cuda/sm80/causal_conv1d/walk.cuh"

namespace jax_convbatch::causal {
namespace {

struct UpdateProblem {
  int across, down;  // blocks of channels, and of samples of one set of weights
  int64_t n, columns, C, dilation, state_rows;
  bool silu;
  Arrays arrays;
};

constexpr int kSamples = 2;  // of a thread, which have its weights

// One thread has all rows of a few samples' state in its channels, so that
// these may be overwritten.
template <typename T, int kTaps, int kVector>
__global__ void __launch_bounds__(kThreads, 4)
    UpdateKernel(const UpdateProblem p) {
  using V = Vector<T, kVector>;
  const unsigned rest = blockIdx.x / static_cast<unsigned>(p.across);
  const unsigned across = blockIdx.x - rest * p.across;
  const int64_t column = int64_t{across} * kThreads + threadIdx.x;
  const int64_t set = rest / static_cast<unsigned>(p.down);
  const unsigned down = rest - static_cast<unsigned>(set) * p.down;
  if (column >= p.columns) return;
  const V* const state = static_cast<const V*>(p.arrays.state);
  const V* const input = static_cast<const V*>(p.arrays.x);
  V rows[kSamples][kTaps];
  int64_t samples[kSamples];
#pragma unroll
  for (int s = 0; s < kSamples; ++s) {
    const int64_t sample = int64_t{down} * kSamples + s;
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
    SumTaps<kTaps, kVector, false>(w, bias, x, {}, kTaps - 1, z);
    if (p.silu) ActivateAll(z);
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
  const Tasks tasks = TasksOf(call, kVector, kFpropBlocks);
  if (!tasks.fits(call.G)) return cudaErrorInvalidConfiguration;
  const unsigned blocks = static_cast<unsigned>(tasks.blocks(call.G));
  const Problem problem = ProblemOf(call, tasks, arrays);
  // Odd channels have one kernel.
  const auto kernel =
      kVector == 1 || call.has_ids
          ? &FpropKernel<CausalRows<T, kVector, true>, kTaps>
          : &FpropKernel<CausalRows<T, kVector, kVector == 1>, kTaps>;
  kernel<<<blocks, kThreads, 0, stream>>>(problem);
  return cudaGetLastError();
}

template <typename T, int kTaps, int kVector>
cudaError_t LaunchUpdate(cudaStream_t stream, const CausalConv1d& call,
                         const Arrays& arrays) {
  const int64_t columns = call.C / kVector;
  const int64_t across = (columns + kThreads - 1) / kThreads;
  const int64_t down = (call.n + kSamples - 1) / kSamples;
  const int64_t blocks = call.G * down * across;
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  const UpdateProblem problem{static_cast<int>(across),
                              static_cast<int>(down),
                              call.n,
                              columns,
                              call.C,
                              call.dilation,
                              call.state_rows,
                              call.activation == Activation::kSilu,
                              arrays};
  UpdateKernel<T, kTaps, kVector>
      <<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(problem);
  return cudaGetLastError();
}

// Channels of a thread: more of them take more registers than they save work.
constexpr int kWide = 4;

}  // namespace

cudaError_t Fprop(cudaStream_t stream, const CausalConv1d& call,
                  const Arrays& arrays) {
  return ForDtypeAndTaps(call, [&](auto tag, auto taps) {
    using T = typename decltype(tag)::type;
    constexpr int kTaps = taps();
    if (call.C % kWide == 0) {
      return LaunchFprop<T, kTaps, kWide>(stream, call, arrays);
    }
    return LaunchFprop<T, kTaps, 1>(stream, call, arrays);
  });
}

cudaError_t Update(cudaStream_t stream, const CausalConv1d& call,
                   const Arrays& arrays) {
  return ForDtypeAndTaps(call, [&](auto tag, auto taps) {
    using T = typename decltype(tag)::type;
    constexpr int kTaps = taps();
    if (call.C % kWide == 0) {
      return LaunchUpdate<T, kTaps, kWide>(stream, call, arrays);
    }
    return LaunchUpdate<T, kTaps, 1>(stream, call, arrays);
  });
}

}  // namespace jax_convbatch::causal
