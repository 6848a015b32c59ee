// SPDX-License-Identifier: Apache-2.0
// What a thread walks along: rows that are a dilation apart.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cuda/common/floats.h"
#include "cuda/sm80/causal_conv1d/causal_conv1d.h"
#include "cuda/sm80/causal_conv1d/tasks.h"

namespace jax_convbatch::causal {

struct Problem {
  int lanes, teams, tiles, chunk, chunks, groups, columns;
  int n, L, C, dilation, state_rows;
  int phases;  // sequences of a sample
  bool silu;
  Arrays arrays;
};

inline Problem ProblemOf(const CausalConv1d& call, const Tasks& tasks,
                         const Arrays& arrays) {
  const auto narrow = [](int64_t i) { return static_cast<int>(i); };
  return {tasks.lanes,
          tasks.teams,
          narrow(tasks.tiles),
          narrow(tasks.chunk),
          narrow(tasks.chunks),
          narrow(tasks.groups),
          narrow(tasks.columns),
          narrow(call.n),
          narrow(call.L),
          narrow(call.C),
          narrow(call.dilation),
          narrow(call.state_rows),
          narrow(std::min(call.dilation, call.L)),
          call.activation == Activation::kSilu,
          arrays};
}

// A filter of the data's dtype over a sequence of any padding: row t of y reads
// with the last tap row t + shift of x, or zero where x has none.
struct PaddedProblem : Problem {
  int x_rows, shift;
  const void* filter;  // of the tap that reads the first row
  int tap_step;        // filter rows from one tap to the next: 1 or -1
};

// Rows are counted along the thread's sequence: row i is position
// phase + i * dilation, and rows before 0 are the state's. What has no task
// walks along no rows, and what has no channels along those of the first.
template <typename T, int kVector>
class Walk {
 public:
  using V = Vector<T, kVector>;

  int set, group, tile;  // of weights; of chunks; of channels
  int first, end;        // rows of this thread
  int length;            // rows of the sequence
  int phase;
  int64_t sample;  // of all
  int column, lane, team;
  bool has_channels;

  __device__ explicit Walk(const Problem& p) {
    lane = threadIdx.x % static_cast<unsigned>(p.lanes);
    team = threadIdx.x / static_cast<unsigned>(p.lanes);
    const unsigned rest = blockIdx.x / static_cast<unsigned>(p.tiles);
    tile = blockIdx.x - rest * p.tiles;
    set = rest / static_cast<unsigned>(p.groups);
    group = rest - set * p.groups;
    column = tile * p.lanes + lane;
    has_channels = column < p.columns;
    if (!has_channels) column = 0;
    const unsigned task = group * p.teams + team;
    const unsigned sequence = task / static_cast<unsigned>(p.chunks);
    unsigned of_set = sequence / static_cast<unsigned>(p.phases);
    phase = sequence - of_set * p.phases;
    const bool has_task = of_set < static_cast<unsigned>(p.n) && has_channels;
    if (!has_task) of_set = 0;
    length = (p.L - phase + p.dilation - 1) / p.dilation;
    first = (task - sequence * p.chunks) * p.chunk;
    end = min(first + p.chunk, length);
    if (!has_task) first = end = 0;
    sample = int64_t{set} * p.n + of_set;
    constexpr int64_t kSize = sizeof(V);
    stride_ = p.dilation * p.columns * static_cast<int>(kSize);
    row_ = ((sample * p.L + phase) * p.columns + column) * kSize;
    const int64_t behind = (sample + 1) * p.state_rows + phase;
    state_row_ = (behind * p.columns + column) * kSize;
    id_ = sample * (p.state_rows + p.L) + p.state_rows + phase;
  }

  // Row 0 of x, or of an array like it; row i is Row(origin, i).
  __device__ char* Origin(const void* array) const {
    return Kept(static_cast<char*>(const_cast<void*>(array)) + row_);
  }
  // Of an array of samples of other lengths, `shift` rows farther.
  __device__ char* Origin(const void* array, int rows, int shift,
                          int columns) const {
    const int64_t row = (sample * rows + phase + shift) * columns + column;
    return Kept(static_cast<char*>(const_cast<void*>(array)) +
                row * static_cast<int>(sizeof(V)));
  }
  // Of the state, whose rows are those before 0.
  __device__ char* StateOrigin(const void* state) const {
    return Kept(static_cast<char*>(const_cast<void*>(state)) + state_row_);
  }
  __device__ V* Row(char* origin, int i) const {
    return reinterpret_cast<V*>(origin + int64_t{i} * stride_);
  }
  // Of x or the state before it.
  __device__ V LoadEarlier(const Arrays& arrays, int i) const {
    if (i >= 0) return *Row(Origin(arrays.x), i);
    if (arrays.state == nullptr) return V{};
    return *Row(StateOrigin(arrays.state), i);
  }
  __device__ int Id(const Problem& p, int i) const {
    if (kVector == 1 && p.arrays.ids == nullptr) return 0;
    return p.arrays.ids[id_ + int64_t{i} * p.dilation];
  }
  // Of weights [G, rows, C].
  __device__ void LoadWeights(const float* array, int rows, int row,
                              const Problem& p, float (&to)[kVector]) const {
    const int64_t at = (int64_t{set} * rows + row) * p.C + column * kVector;
    const auto* const from =
        reinterpret_cast<const Vector<float, kVector>*>(array + at);
    const Vector<float, kVector> loaded = *from;
#pragma unroll
    for (int v = 0; v < kVector; ++v) to[v] = loaded.values[v];
  }

 private:
  // In registers: else each row's address is formed from more parts.
  static __device__ char* Kept(char* address) {
    asm("" : "+l"(address));
    __builtin_assume(__isGlobal(address));
    return address;
  }

  int stride_;               // bytes
  int64_t row_, state_row_;  // bytes
  int64_t id_;
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

// The last kTaps rows, the u-th of a turn among them. In the place of a row
// lies later the one that is kTaps farther.
template <int kTaps>
__device__ constexpr int Place(int u) {
  return (u + kTaps) % kTaps;
}

// z = bias + the sum of w[t] x[t] over those taps whose ids are the last one's,
// which is that of row u.
template <int kTaps, int kVector, bool kSegments>
__device__ __forceinline__ void SumTaps(const float (&w)[kTaps][kVector],
                                        const float (&bias)[kVector],
                                        const float (&x)[kTaps][kVector],
                                        const int (&ids)[kTaps], int u,
                                        float (&z)[kVector]) {
#pragma unroll
  for (int v = 0; v < kVector; ++v) z[v] = bias[v];
#pragma unroll
  for (int t = 0; t < kTaps; ++t) {
    const int from = Place<kTaps>(u + 1 + t);
    const bool reads = !kSegments || ids[from] == ids[Place<kTaps>(u)];
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      z[v] = fmaf(w[t][v], reads ? x[from][v] : 0.0f, z[v]);
    }
  }
}

// w, bias, and the rows before the first.
template <typename T, int kTaps, int kVector>
struct Window {
  float w[kTaps][kVector], bias[kVector], x[kTaps][kVector];
  int ids[kTaps];

  template <bool kSegments>
  __device__ void Load(const Walk<T, kVector>& walk, const Problem& p) {
#pragma unroll
    for (int t = 0; t < kTaps - 1; ++t) {
      const int i = walk.first + t - (kTaps - 1);
      Widen(walk.LoadEarlier(p.arrays, i), x[Place<kTaps>(t + 1)]);
      if constexpr (kSegments) ids[Place<kTaps>(t + 1)] = walk.Id(p, i);
    }
#pragma unroll
    for (int t = 0; t < kTaps; ++t) {
      walk.LoadWeights(p.arrays.w, kTaps, t, p, w[t]);
    }
    walk.LoadWeights(p.arrays.bias, 1, 0, p, bias);
  }
};

}  // namespace jax_convbatch::causal
