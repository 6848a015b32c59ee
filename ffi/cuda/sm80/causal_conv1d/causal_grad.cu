// SPDX-License-Identifier: Apache-2.0
// All gradients of the short causal convolution in one pass over x and dy.
#include <cuda_runtime_api.h>

#include <cstdint>

#include "activation.h"
#include "cuda/common/dependent_launch.cuh"
#include "cuda/reductions/add_chunks.cuh"
#include "cuda/sm80/causal_conv1d/causal_conv1d.h"
#include "cuda/sm80/causal_conv1d/dispatch.cuh"
#include "cuda/sm80/causal_conv1d/walk.cuh"

namespace jax_convbatch::causal {
namespace {

constexpr int kRows = 4;  // that a thread loads at a time

// dw and dbias of one thread's rows and channels, taps and then bias.
template <int kTaps, int kVector>
using Sums = float[kTaps + 1][kVector];

// Adds those of a block's teams, in order, and stores a partial sum.
template <int kTaps, int kVector>
__device__ void StorePartials(const Problem& p, int64_t set, int64_t group,
                              int64_t tile, int lane, int team,
                              const Sums<kTaps, kVector>& sums) {
  extern __shared__ float shared[];
  const int width = p.tasks.lanes * kVector;
#pragma unroll
  for (int t = 0; t <= kTaps; ++t) {
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      shared[(team * (kTaps + 1) + t) * width + lane * kVector + v] =
          sums[t][v];
    }
  }
  __syncthreads();
  const int64_t sets = set * p.tasks.groups + group;
  float* const dw = p.arrays.partials + sets * kTaps * p.C;
  float* const dbias = p.arrays.partials +
                       gridDim.x / p.tasks.tiles * int64_t{kTaps} * p.C +
                       sets * p.C;
  for (int i = threadIdx.x; i < (kTaps + 1) * width; i += kThreads) {
    float total = 0;
    for (int from = 0; from < p.tasks.teams; ++from) {
      total += shared[from * (kTaps + 1) * width + i];
    }
    const int t = i / width;
    const int64_t channel = tile * width + i - t * width;
    if (channel >= p.C) continue;
    if (t < kTaps) {
      dw[t * p.C + channel] = total;
    } else {
      dbias[channel] = total;
    }
  }
}

template <typename T, int kTaps, int kVector, bool kSegments>
__global__ void __launch_bounds__(kThreads) GradKernel(const Problem p) {
  using V = Vector<T, kVector>;
  constexpr int kEarlier = kTaps - 1;
  const Walk<T, kVector> walk(p);
  float w[kTaps][kVector], bias[kVector];
#pragma unroll
  for (int t = 0; t < kTaps; ++t) {
    walk.LoadWeights(p.arrays.w, kTaps, t, w[t]);
  }
  walk.LoadWeights(p.arrays.bias, 1, 0, bias);
  Sums<kTaps, kVector> sums = {};
  // Rows before a turn's, and its own. A row's dx is whole when the dz of
  // kEarlier more rows are there, so that a thread goes beyond its end.
  float x[kEarlier + kRows][kVector], dz[kEarlier + kRows][kVector];
  int ids[kEarlier + kRows];
  V next_x[kRows], next_dy[kRows];
  int next_ids[kRows];
  const bool has_rows = walk.first < walk.end;
  const int64_t last = has_rows ? walk.end + kEarlier : walk.first;
  const int64_t there = min(last, walk.length);  // rows that are read
  auto load = [&](int64_t i) {
#pragma unroll
    for (int u = 0; u < kRows; ++u) {
      next_x[u] = V{};
      next_dy[u] = V{};
      next_ids[u] = 0;
      if (i + u >= there) continue;
      next_x[u] = walk.Load(p.arrays.x, i + u);
      next_dy[u] = walk.Load(p.arrays.dy, i + u);
      if constexpr (kSegments) next_ids[u] = walk.Id(i + u);
    }
  };
  if (has_rows) {
    load(walk.first);
#pragma unroll
    for (int t = 0; t < kEarlier; ++t) {
      const int64_t i = walk.first + t - kEarlier;
      Widen(walk.LoadEarlier(i), x[t]);
      if constexpr (kSegments) ids[t] = walk.Id(i);
#pragma unroll
      for (int v = 0; v < kVector; ++v) dz[t][v] = 0;
    }
  }
  for (int64_t i = walk.first; i < last; i += kRows) {
#pragma unroll
    for (int u = 0; u < kRows; ++u) {
      Widen(next_x[u], x[kEarlier + u]);
      Widen(next_dy[u], dz[kEarlier + u]);
      ids[kEarlier + u] = next_ids[u];
    }
    load(i + kRows);
#pragma unroll
    for (int u = 0; u < kRows; ++u) {
      float (&own)[kVector] = dz[kEarlier + u];
      if (p.silu) {
        float z[kVector];
        SumTaps<kTaps, kVector, kSegments>(w, bias, x + u, ids + u, z);
#pragma unroll
        for (int v = 0; v < kVector; ++v) {
          own[v] = ActivationGrad(Activation::kSilu, z[v], own[v]);
        }
      }
      if (i + u >= there) {
#pragma unroll
        for (int v = 0; v < kVector; ++v) own[v] = 0;
      }
      if (i + u < walk.end) {
#pragma unroll
        for (int t = 0; t < kTaps; ++t) {
          const bool reads = !kSegments || ids[u + t] == ids[u + kEarlier];
#pragma unroll
          for (int v = 0; v < kVector; ++v) {
            sums[t][v] = fmaf(own[v], reads ? x[u + t][v] : 0.0f, sums[t][v]);
          }
        }
#pragma unroll
        for (int v = 0; v < kVector; ++v) sums[kTaps][v] += own[v];
      }
      // The row that is whole now.
      const int64_t row = i + u - kEarlier;
      const bool is_state = row < 0 && p.arrays.dstate != nullptr;
      if (i + u < last && (row >= walk.first || is_state)) {
        float dx[kVector] = {};
#pragma unroll
        for (int t = 0; t < kTaps; ++t) {
          const bool reads = !kSegments || ids[u + kEarlier - t] == ids[u];
#pragma unroll
          for (int v = 0; v < kVector; ++v) {
            const float of = reads ? dz[u + kEarlier - t][v] : 0.0f;
            dx[v] = fmaf(w[t][v], of, dx[v]);
          }
        }
        const V stored = Narrow<T>(dx);
        if (row < 0) {
          static_cast<V*>(p.arrays.dstate)[walk.AtState(row)] = stored;
        } else {
          static_cast<V*>(p.arrays.dx)[walk.At(row)] = stored;
        }
      }
    }
#pragma unroll
    for (int t = 0; t < kEarlier; ++t) {
      ids[t] = ids[t + kRows];
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        x[t][v] = x[t + kRows][v];
        dz[t][v] = dz[t + kRows][v];
      }
    }
  }
  LaunchDependents();
  StorePartials<kTaps, kVector>(p, walk.set, walk.group,
                                blockIdx.x % p.tasks.tiles, walk.lane,
                                walk.team, sums);
}

template <typename T, int kTaps, int kVector>
cudaError_t LaunchGrad(cudaStream_t stream, const CausalConv1d& call,
                       const Arrays& arrays) {
  const Tasks tasks = TasksOf(call, kVector);
  const int64_t blocks = tasks.blocks(call.G);
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  const Problem problem = ProblemOf(call, tasks, arrays);
  const int shared = kThreads * (kTaps + 1) * kVector * int{sizeof(float)};
  const auto kernel = call.has_ids ? &GradKernel<T, kTaps, kVector, true>
                                   : &GradKernel<T, kTaps, kVector, false>;
  kernel<<<static_cast<unsigned>(blocks), kThreads, shared, stream>>>(problem);
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) return error;
  const int64_t taps = kTaps * call.C;
  const float* const of_bias = arrays.partials + call.G * tasks.groups * taps;
  const cudaError_t of_dw = LaunchAddChunks<float>(
      stream, call.G, tasks.groups, taps, arrays.partials, arrays.dw);
  if (of_dw != cudaSuccess) return of_dw;
  return LaunchAddChunks<float>(stream, call.G, tasks.groups, call.C, of_bias,
                                arrays.dbias);
}

}  // namespace

int64_t PartialSums(const CausalConv1d& call) {
  const Tasks tasks = TasksOf(call, GradVector(call));
  return call.G * tasks.groups * (call.taps + 1) * call.C;
}

cudaError_t Grad(cudaStream_t stream, const CausalConv1d& call,
                 const Arrays& arrays) {
  // No tap reads a state's rows between those of the first inputs.
  if (arrays.dstate != nullptr && call.dilation > call.L) {
    const int64_t bytes = call.state_size() * (call.dtype == ffi::F32 ? 4 : 2);
    const cudaError_t error =
        cudaMemsetAsync(arrays.dstate, 0, static_cast<size_t>(bytes), stream);
    if (error != cudaSuccess) return error;
  }
  return ForDtypeAndTaps(call, [&](auto tag, auto taps) {
    using T = typename decltype(tag)::type;
    constexpr int kTaps = taps(), kVector = kTaps > 4 ? 2 : 4;
    if (GradVector(call) == kVector) {
      return LaunchGrad<T, kTaps, kVector>(stream, call, arrays);
    }
    return LaunchGrad<T, kTaps, 1>(stream, call, arrays);
  });
}

}  // namespace jax_convbatch::causal
