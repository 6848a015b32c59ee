// SPDX-License-Identifier: Apache-2.0
// All gradients of the short causal convolution in one pass over x and dy.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <type_traits>

#include "activation.h"
#include "cuda/common/dependent_launch.cuh"
#include "cuda/reductions/add_chunks.cuh"
#include "cuda/sm80/causal_conv1d/causal_conv1d.h"
#include "cuda/sm80/causal_conv1d/dispatch.cuh"
#include "cuda/sm80/causal_conv1d/walk.cuh"

namespace jax_convbatch::causal {
namespace {

// dw and dbias of one thread's rows and channels, taps and then bias.
template <int kTaps, int kVector>
using Sums = float[kTaps + 1][kVector];

// Adds those of a block's teams, in order, and stores a partial sum.
template <int kTaps, int kVector>
__device__ void StorePartials(const Problem& p, int set, int group, int tile,
                              int lane, int team,
                              const Sums<kTaps, kVector>& sums) {
  extern __shared__ float shared[];
  const int width = p.lanes * kVector;
#pragma unroll
  for (int t = 0; t <= kTaps; ++t) {
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      shared[(team * (kTaps + 1) + t) * width + lane * kVector + v] =
          sums[t][v];
    }
  }
  __syncthreads();
  const int64_t sets = int64_t{set} * p.groups + group;
  float* const dw = p.arrays.partials + sets * kTaps * p.C;
  float* const dbias = p.arrays.partials +
                       gridDim.x / p.tiles * int64_t{kTaps} * p.C + sets * p.C;
  for (int i = threadIdx.x; i < (kTaps + 1) * width; i += kThreads) {
    float total = 0;
    for (int from = 0; from < p.teams; ++from) {
      total += shared[from * (kTaps + 1) * width + i];
    }
    const int t = i / width;
    const int64_t channel = int64_t{tile} * width + i - t * width;
    if (channel >= p.C) continue;
    if (t < kTaps) {
      dw[t * p.C + channel] = total;
    } else {
      dbias[channel] = total;
    }
  }
}

// Of a multiprocessor, as many as their registers allow.
template <typename T, int kTaps, int kVector, bool kSegments>
constexpr int kBlocks =
    kTaps > 4 || kVector == 1 ? 2 : 4 - kSegments - (sizeof(T) == 4);

template <typename T, int kTaps, int kVector, bool kSegments, bool kSilu>
__global__ void __launch_bounds__(kThreads,
                                  kBlocks<T, kTaps, kVector, kSegments>)
    GradKernel(const Problem p) {
  using V = Vector<T, kVector>;
  constexpr int kEarlier = kTaps - 1, kRows = Turn<kTaps, kGradRows>::kRows;
  const Walk<T, kVector> walk(p);
  Window<T, kTaps, kVector> window;
  float (&x)[kTaps][kVector] = window.x;
  float dz[kTaps][kVector] = {};
  Sums<kTaps, kVector> sums = {};
  char* const x_rows = walk.Origin(p.arrays.x);
  char* const dy_rows = walk.Origin(p.arrays.dy);
  char* const dx_rows = walk.Origin(p.arrays.dx);
  V next_x[kRows], next_dy[kRows];
  int next_ids[kRows];
  // A row's dx is whole when the dz of kEarlier more rows are there, so that a
  // thread goes beyond its end. The first that are whole lie before its first:
  // the state's, if anybody's of those who want them.
  const bool has_dstate = walk.first == 0 && p.arrays.dstate != nullptr;
  char* early_rows = has_dstate ? walk.StateOrigin(p.arrays.dstate) : dx_rows;
  bool stores_early = has_dstate;
  const int there = min(walk.end + kEarlier, walk.length);
  // Beyond what is there the last row, with a dy of zero.
  auto load = [&](int i, int u) {
    const int row = min(i + u, there - 1);
    next_x[u] = *walk.Row(x_rows, row);
    next_dy[u] = *walk.Row(dy_rows, row);
    if (i + u >= there) next_dy[u] = V{};
    if constexpr (kSegments) next_ids[u] = walk.Id(p, row);
  };
  // One turn: of this thread's own rows, or of the last of them and those
  // behind, of which dw and dbias take nothing.
  auto turn = [&](auto own, int i) {
    constexpr bool kOwn = decltype(own)::value;
#pragma unroll
    for (int u = 0; u < kRows; ++u) {
      const int at = Place<kTaps>(u);
      Widen(next_x[u], x[at]);
      Widen(next_dy[u], dz[at]);
      if constexpr (kSegments) window.ids[at] = next_ids[u];
      load(i + kRows, u);
      if constexpr (kSilu) {
        float z[kVector];
        SumTaps<kTaps, kVector, kSegments>(window.w, window.bias, x, window.ids,
                                           u, z);
#pragma unroll
        for (int v = 0; v < kVector; ++v) {
          const float of = ActivationGrad(Activation::kSilu, z[v], dz[at][v]);
          dz[at][v] = kVector > 1 || p.silu ? of : dz[at][v];
        }
      }
      if (kOwn || i + u < walk.end) {
#pragma unroll
        for (int t = 0; t < kTaps; ++t) {
          const int from = Place<kTaps>(u + 1 + t);
          const bool reads = !kSegments || window.ids[from] == window.ids[at];
#pragma unroll
          for (int v = 0; v < kVector; ++v) {
            const float of = reads ? x[from][v] : 0.0f;
            sums[t][v] = fmaf(dz[at][v], of, sums[t][v]);
          }
        }
#pragma unroll
        for (int v = 0; v < kVector; ++v) sums[kTaps][v] += dz[at][v];
      }
      // The row that is whole now.
      const int row = i + u - kEarlier;
      const int place = Place<kTaps>(u + 1);
      float dx[kVector] = {};
#pragma unroll
      for (int t = 0; t < kTaps; ++t) {
        const int from = Place<kTaps>(u - t);
        const bool reads = !kSegments || window.ids[from] == window.ids[place];
#pragma unroll
        for (int v = 0; v < kVector; ++v) {
          dx[v] = fmaf(window.w[t][v], reads ? dz[from][v] : 0.0f, dx[v]);
        }
      }
      V* const to = walk.Row(u < kEarlier ? early_rows : dx_rows, row);
      const bool stores = u >= kEarlier || stores_early;
      if (stores && row < walk.end) *to = Narrow<T>(dx);
    }
    early_rows = dx_rows;
    stores_early = true;
  };
  if (walk.first < walk.end) {
#pragma unroll
    for (int u = 0; u < kRows; ++u) load(walk.first, u);
    window.template Load<kSegments>(walk, p);
    int i = walk.first;
    for (; i + kRows <= walk.end; i += kRows) turn(std::true_type(), i);
    for (; i < walk.end + kEarlier; i += kRows) turn(std::false_type(), i);
  }
  LaunchDependents();
  StorePartials<kTaps, kVector>(p, walk.set, walk.group, walk.tile, walk.lane,
                                walk.team, sums);
}

template <typename T, int kTaps, int kVector>
cudaError_t LaunchGrad(cudaStream_t stream, const CausalConv1d& call,
                       const Arrays& arrays) {
  const Tasks tasks = TasksOf(call, kVector, kGradBlocks);
  if (!tasks.fits(call.G)) return cudaErrorInvalidConfiguration;
  const unsigned blocks = static_cast<unsigned>(tasks.blocks(call.G));
  const Problem problem = ProblemOf(call, tasks, arrays);
  const int shared = kThreads * (kTaps + 1) * kVector * int{sizeof(float)};
  const auto kernel = [&] {
    // Odd channels have one kernel.
    if constexpr (kVector == 1) return &GradKernel<T, kTaps, 1, true, true>;
    if (call.activation == Activation::kSilu) {
      return call.has_ids ? &GradKernel<T, kTaps, kVector, true, true>
                          : &GradKernel<T, kTaps, kVector, kVector == 1, true>;
    }
    return call.has_ids
               ? &GradKernel<T, kTaps, kVector, true, kVector == 1>
               : &GradKernel<T, kTaps, kVector, kVector == 1, kVector == 1>;
  }();
  kernel<<<blocks, kThreads, shared, stream>>>(problem);
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
  const Tasks tasks = TasksOf(call, GradVector(call), kGradBlocks);
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
