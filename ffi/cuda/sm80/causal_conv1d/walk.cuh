// SPDX-License-Identifier: Apache-2.0
// What a thread walks along: rows that are a dilation apart.
#ifndef JAX_CONVBATCH_CUDA_SM80_CAUSAL_CONV1D_WALK_CUH_
#define JAX_CONVBATCH_CUDA_SM80_CAUSAL_CONV1D_WALK_CUH_

#include <algorithm>
#include <cstdint>

#include "cuda/common/floats.h"
#include "cuda/sm80/causal_conv1d/causal_conv1d.h"
#include "cuda/sm80/causal_conv1d/tasks.h"

namespace jax_convbatch::causal {

struct Problem {
  Tasks tasks;
  int64_t n, L, C, dilation, state_rows;
  int64_t phases;  // sequences of a sample
  bool silu;
  Arrays arrays;
};

inline Problem ProblemOf(const CausalConv1d& call, const Tasks& tasks,
                         const Arrays& arrays) {
  return {tasks,
          call.n,
          call.L,
          call.C,
          call.dilation,
          call.state_rows,
          std::min(call.dilation, call.L),
          call.activation == Activation::kSilu,
          arrays};
}

// Rows are counted along the thread's sequence: row i is position
// phase + i * dilation, and rows before 0 are the state's.
template <typename T, int kVector>
class Walk {
 public:
  using V = Vector<T, kVector>;

  int64_t set, group;  // of weights; of chunks
  int64_t first, end;  // rows of this thread; none where it has no task
  int64_t length;      // rows of the sequence
  int64_t column;      // of channels
  bool has_channels;
  int lane, team;

  __device__ explicit Walk(const Problem& p) : p_(p) {
    const Tasks& tasks = p.tasks;
    lane = threadIdx.x % tasks.lanes;
    team = threadIdx.x / tasks.lanes;
    const int64_t tile = blockIdx.x % tasks.tiles;
    const int64_t rest = blockIdx.x / tasks.tiles;
    group = rest % tasks.groups;
    set = rest / tasks.groups;
    column = tile * tasks.lanes + lane;
    has_channels = column < tasks.columns;
    const int64_t task = group * tasks.teams + team;
    const int64_t sequence = task / tasks.chunks;
    const int64_t sample = sequence / p.phases;
    const bool has_task = sample < p.n && has_channels;
    phase_ = sequence - sample * p.phases;
    sample_ = set * p.n + (has_task ? sample : 0);
    length = (p.L - phase_ + p.dilation - 1) / p.dilation;
    first = (task - sequence * tasks.chunks) * tasks.chunk;
    end = has_task ? min(first + tasks.chunk, length) : 0;
    if (!has_task) first = 0;
  }

  // Row i of x, or of an array like it; i in [0, length).
  __device__ int64_t At(int64_t i) const {
    const int64_t position = phase_ + i * p_.dilation;
    return (sample_ * p_.L + position) * p_.tasks.columns + column;
  }
  // Row i of the state; i in [1 - taps, 0).
  __device__ int64_t AtState(int64_t i) const {
    const int64_t position = p_.state_rows + phase_ + i * p_.dilation;
    return (sample_ * p_.state_rows + position) * p_.tasks.columns + column;
  }
  __device__ V Load(const void* array, int64_t i) const {
    return static_cast<const V*>(array)[At(i)];
  }
  // Of x or the state before it.
  __device__ V LoadEarlier(int64_t i) const {
    if (i >= 0) return Load(p_.arrays.x, i);
    if (p_.arrays.state == nullptr) return V{};
    return static_cast<const V*>(p_.arrays.state)[AtState(i)];
  }
  __device__ int Id(int64_t i) const {
    const int64_t position = p_.state_rows + phase_ + i * p_.dilation;
    return p_.arrays.ids[sample_ * (p_.state_rows + p_.L) + position];
  }
  // Of weights [G, kRows, C].
  __device__ void LoadWeights(const float* array, int rows, int row,
                              float (&to)[kVector]) const {
    const int64_t at = (set * rows + row) * p_.C + column * kVector;
#pragma unroll
    for (int v = 0; v < kVector; ++v) to[v] = has_channels ? array[at + v] : 0;
  }

 private:
  const Problem& p_;
  int64_t phase_, sample_;
};

template <typename T, int kVector>
__device__ __forceinline__ void Widen(const Vector<T, kVector>& from,
                                      float (&to)[kVector]) {
#pragma unroll
  for (int v = 0; v < kVector; ++v) to[v] = Convert<float>(from.values[v]);
}

template <typename T, int kVector>
__device__ __forceinline__ Vector<T, kVector> Narrow(
    const float (&from)[kVector]) {
  Vector<T, kVector> to;
#pragma unroll
  for (int v = 0; v < kVector; ++v) to.values[v] = Convert<T>(from[v]);
  return to;
}

// z = bias + the sum of w[t] x[t] over those taps whose ids are the last one's.
template <int kTaps, int kVector, bool kSegments>
__device__ __forceinline__ void SumTaps(const float (&w)[kTaps][kVector],
                                        const float (&bias)[kVector],
                                        const float (*x)[kVector],
                                        const int* ids, float (&z)[kVector]) {
#pragma unroll
  for (int v = 0; v < kVector; ++v) z[v] = bias[v];
#pragma unroll
  for (int t = 0; t < kTaps; ++t) {
    const bool reads = !kSegments || ids[t] == ids[kTaps - 1];
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      z[v] = fmaf(w[t][v], reads ? x[t][v] : 0.0f, z[v]);
    }
  }
}

}  // namespace jax_convbatch::causal

#endif  // JAX_CONVBATCH_CUDA_SM80_CAUSAL_CONV1D_WALK_CUH_
